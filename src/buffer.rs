//! A piece of device memory, for programs with no allocator of their own: examples, tests, tools.

use crate::{
    context::{Context, Stream},
    error::{Error, Result, Status},
    tensor::Ptr,
};

/// Owned memory on a context's device, aligned to 256 bytes, freed on drop. Operations never need one: they take any pointer.
#[derive(Debug)]
pub struct Buffer {
    context: Context,
    ptr: Ptr,
    bytes: usize,
}

impl Buffer {
    /// `bytes` of uninitialised memory.
    pub fn new(context: &Context, bytes: usize) -> Result<Self> {
        let ptr = context.backend().allocate(bytes.max(1))?;
        Ok(Self { context: context.clone(), ptr, bytes })
    }

    /// A copy of `values`.
    pub fn from_slice<T: bytemuck::NoUninit>(context: &Context, values: &[T]) -> Result<Self> {
        let buffer = Self::new(context, std::mem::size_of_val(values))?;
        buffer.write(0, values)?;
        Ok(buffer)
    }

    /// Its address.
    pub fn ptr(&self) -> Ptr {
        self.ptr
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `values` to byte `offset`, waiting for it.
    pub fn write<T: bytemuck::NoUninit>(&self, offset: usize, values: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.range(offset, bytes.len())?;
        // SAFETY: the range was checked, and `bytes` is a live slice.
        unsafe { self.context.backend().upload(self.ptr.offset(offset as u64), bytes) }
    }

    /// `len` values from byte `offset`, after everything enqueued on the device has run.
    pub fn read<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&self, offset: usize, len: usize) -> Result<Vec<T>> {
        let mut out = vec![T::zeroed(); len];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut out);
        self.range(offset, bytes.len())?;
        // SAFETY: the range was checked, and `bytes` is a live slice.
        unsafe { self.context.backend().download(bytes, self.ptr.offset(offset as u64)) }?;
        Ok(out)
    }

    /// Fills it with a byte, in stream order.
    pub fn fill(&self, byte: u8, stream: Stream) -> Result<()> {
        // SAFETY: the whole buffer is ours.
        unsafe { self.context.backend().fill(self.ptr, byte, self.bytes, stream) }
    }

    fn range(&self, offset: usize, bytes: usize) -> Result<()> {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        Err(Error::argument(Status::InvalidShape, "offset", offset, format!("{bytes} bytes from there must lie in {} bytes", self.bytes)))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by the same back end, freed once.
        unsafe { self.context.backend().free(self.ptr, self.bytes.max(1)) }
    }
}
