//! amax on the CPU.

use super::{
    element::{with_high, Element},
    parallel::{Grid, Threads},
    simd::multiversion,
    view::{Matrix, Slot},
};
use crate::{
    numerics::amax_bits,
    ops::amax::AmaxArgs,
    tensor::{DType, TensorView},
};

multiversion! {
    /// The largest bit pattern of |x|.
    fn amax_run<T: Element>(x: &[T]) -> u32 {
        x.iter().fold(0, |m, v| amax_bits(v.load()).max(m))
    }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn record(threads: &Threads, a: &AmaxArgs) {
    // SAFETY: forwarded contract.
    unsafe { Slot(a.amax).record(of(threads, a.input.dtype, &a.input)) }
}

/// The amax of a matrix as bits, 0 for one with no elements.
///
/// # Safety
/// A live matrix of `dtype`.
pub(super) unsafe fn of(threads: &Threads, dtype: DType, x: &TensorView) -> u32 {
    with_high!(dtype, T => {
        let m = Matrix::<T>::new(x.data, x.ld, x.cols);
        let pieces = Grid::new(x.rows as usize, x.cols as usize).map(threads, |rows, cols| {
            // SAFETY: rows and columns of the matrix.
            rows.map(|r| amax_run::<T>(unsafe { m.part(r, cols.start, cols.len()) })).max().unwrap_or(0)
        });
        pieces.into_iter().max().unwrap_or(0)
    })
}
