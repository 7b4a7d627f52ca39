//! nvte: FP8 training of Transformers as one small library.
//!
//! # How data flows
//!
//! A request walks one way: binding → [`capi`](self) (C functions) → ([`layers`] →) [`ops`] (arguments, validation) → back end (CPU or
//! CUDA) → kernel.
//! Nothing calls back up, and the same file name runs through every room: `ops/cast.rs`, `backend/cpu/cast.rs`,
//! `backend/cuda/cast.rs`, `capi/cast.rs`, `kernels/cast.cu`, `tests/cast.rs`.
//!
//! * [`numerics`]: formats, scale rules and recipes as pure functions.
//! * [`TensorView`]: how a matrix in the caller's memory is described.
//! * [`Context`]: one device and its caches. [`Stream`]: a borrowed queue.
//! * [`ops`]: one `unsafe fn` per operation: it checks its arguments, enqueues, and returns.
//! * [`layers`]: Linear, norm + Linear, norm + MLP as one call forward and one backward.
//!
//! All memory is the caller's. An operation never allocates device memory, never synchronises, and is safe to capture into a CUDA
//! graph once its kernels are loaded: pass [`Stream::PREPARE`] to load them ahead.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod buffer;
#[cfg(feature = "capi")]
pub mod capi;
mod context;
mod debug;
mod error;
mod info;
pub mod layers;
pub mod numerics;
pub mod ops;
mod tensor;

pub use buffer::Buffer;
pub use context::{Capability, Context, ContextOptions, Device, Stream};
pub use error::{Error, Result, Status};
pub use info::info;
pub use tensor::{DType, Ptr, TensorView};

/// Version of the library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use backend::cuda::testing as cuda_testing;

/// The README's Rust program is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
