//! Operations: arguments as a struct, validation, then the back end. One file per family.
//!
//! Every operation is an `unsafe fn`: the library checks what it can see (shapes, types, strides, nulls, alignment, overlap, the
//! device a pointer belongs to), and the caller vouches that pointers are live for the extents described until the stream has passed.
//! On an error nothing was enqueued and nothing written.

pub mod activation;
pub mod adamw;
pub mod amax;
pub mod cast;
pub(crate) mod check;
pub mod cross_entropy;
pub mod dequantize;
pub mod dropout;
pub mod gemm;
pub mod grad_norm;
pub mod list;
pub mod multi_cast;
pub mod norm;
pub mod rope;
pub mod scaling;
pub mod softmax;
