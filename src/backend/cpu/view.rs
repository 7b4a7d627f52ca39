//! Typed access to a caller's matrix.

use crate::{numerics::canonical_amax, tensor::Ptr};

/// A matrix `[rows, cols]` with row stride `ld`, as raw memory of this process. Copies of it may be used from many threads as long as
/// they write disjoint elements.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<T> {
    base: *mut T,
    ld: usize,
    cols: usize,
}

// SAFETY: a pointer and two sizes; every access is unsafe and says what it needs.
unsafe impl<T: Send> Send for Matrix<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Matrix<T> {}

impl<T: Copy> Matrix<T> {
    pub(crate) fn new(data: Ptr, ld: i64, cols: i64) -> Self {
        Self { base: data.as_ptr(), ld: ld as usize, cols: cols as usize }
    }

    /// # Safety
    /// The row lies in live memory that nobody writes meanwhile.
    pub(crate) unsafe fn row<'a>(&self, row: usize) -> &'a [T] {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts(self.base.add(row * self.ld), self.cols) }
    }

    /// # Safety
    /// The row lies in live memory that nobody else touches meanwhile.
    pub(crate) unsafe fn row_mut<'a>(&self, row: usize) -> &'a mut [T] {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(row * self.ld), self.cols) }
    }

    /// `len` elements of a row from column `col` on.
    ///
    /// # Safety
    /// They lie in live memory that nobody writes meanwhile.
    pub(crate) unsafe fn part<'a>(&self, row: usize, col: usize, len: usize) -> &'a [T] {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts(self.base.add(row * self.ld + col), len) }
    }

    /// `len` elements of a row from column `col` on.
    ///
    /// # Safety
    /// They lie in live memory that nobody else touches meanwhile.
    pub(crate) unsafe fn part_mut<'a>(&self, row: usize, col: usize, len: usize) -> &'a mut [T] {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(row * self.ld + col), len) }
    }
}

/// A single value in the caller's memory.
#[derive(Clone, Copy)]
pub(crate) struct Slot(pub(crate) Ptr);

impl Slot {
    /// # Safety
    /// Null, or a live f32. A null slot reads as `default`.
    pub(crate) unsafe fn read_or(self, default: f32) -> f32 {
        match self.0.is_null() {
            true => default,
            // SAFETY: by contract.
            false => unsafe { self.0.as_ptr::<f32>().read() },
        }
    }

    /// # Safety
    /// Null (then nothing happens), or a live f32 that nobody else touches meanwhile.
    pub(crate) unsafe fn write(self, v: f32) {
        if !self.0.is_null() {
            // SAFETY: by contract.
            unsafe { self.0.as_ptr::<f32>().write(v) }
        }
    }

    /// Records an amax: the maximum, as bit patterns, with what the slot holds. NaN is recorded as 0x7FFFFFFF, whatever its payload was.
    ///
    /// # Safety
    /// As [`Slot::write`].
    pub(crate) unsafe fn record(self, bits: u32) {
        if !self.0.is_null() {
            // SAFETY: by contract.
            unsafe {
                let p = self.0.as_ptr::<u32>();
                p.write(p.read().max(canonical_amax(bits)));
            }
        }
    }
}
