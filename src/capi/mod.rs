//! The C ABI: `extern "C"` only. Each function guards, unpacks its arguments and calls `ops`. One file per family, named as in `ops`.
//!
//! Signatures stand in plain sight (cbindgen does not expand macros); `include/nvte.h` is generated from this folder.

// These docs are the header's, where [n] is a shape and not a link.
#![allow(rustdoc::broken_intra_doc_links)]

pub mod activation;
pub mod adamw;
pub mod amax;
pub mod api;
pub mod cast;
pub mod context;
pub mod cross_entropy;
pub mod dequantize;
pub mod dropout;
pub mod gemm;
pub mod grad_norm;
mod guard;
mod handle;
pub mod info;
pub mod layer_args;
pub mod layers;
pub mod list;
pub mod multi_cast;
pub mod norm;
pub mod rope;
pub mod scaling;
pub mod softmax;
pub mod types;
