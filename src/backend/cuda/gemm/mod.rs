//! Matrix products on CUDA.

pub(crate) mod kernels;
pub(crate) mod own;
pub mod testing;
mod tile;
