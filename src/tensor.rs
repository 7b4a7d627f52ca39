//! Data types, pointers and the one way in which a matrix is described.

use std::fmt;

use crate::error::{Error, Result, Status};

/// Element type. The numbers are the C ABI's `NVTE_*` data types and those of `kernels/common/base.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DType {
    /// IEEE binary32.
    F32 = 0,
    /// IEEE binary16.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
    /// FP8 E4M3 ("fn": no infinity, largest finite 448).
    E4m3 = 3,
    /// FP8 E5M2 (largest finite 57344).
    E5m2 = 4,
}

impl DType {
    /// All types, in the order of their numbers.
    pub const ALL: [DType; 5] = [DType::F32, DType::F16, DType::Bf16, DType::E4m3, DType::E5m2];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
            DType::E4m3 | DType::E5m2 => 1,
        }
    }

    /// Whether it is an FP8 format.
    pub const fn is_fp8(self) -> bool {
        matches!(self, DType::E4m3 | DType::E5m2)
    }

    /// Name as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::E4m3 => "e4m3",
            DType::E5m2 => "e5m2",
        }
    }

    /// The type with this number; `argument` names it in the error.
    pub fn from_i32(argument: impl fmt::Display, v: i32) -> Result<Self> {
        usize::try_from(v).ok().and_then(|i| Self::ALL.get(i).copied()).ok_or_else(|| {
            Error::argument(Status::InvalidEnum, argument, v, "a data type is 0 (f32), 1 (f16), 2 (bf16), 3 (e4m3) or 4 (e5m2)")
        })
    }
}

/// An address on the context's device (for the CPU back end: an address of this process). 0 is null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Ptr(pub u64);

impl Ptr {
    /// The null address.
    pub const NULL: Ptr = Ptr(0);

    /// Whether it is null.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `bytes` further on.
    pub const fn offset(self, bytes: u64) -> Ptr {
        Ptr(self.0 + bytes)
    }

    /// As a pointer of this process.
    pub const fn as_ptr<T>(self) -> *mut T {
        self.0 as *mut T
    }
}

impl<T> From<*const T> for Ptr {
    fn from(p: *const T) -> Self {
        Ptr(p as u64)
    }
}

impl<T> From<*mut T> for Ptr {
    fn from(p: *mut T) -> Self {
        Ptr(p as u64)
    }
}

/// A matrix in the caller's memory, row-major, with what travels beside FP8 codes.
///
/// `data` holds `[rows, cols]` with row stride `ld` elements; `data_t` the transposed copy `[cols, rows]` with row stride `ld_t`.
/// Either may be null: this layout is absent. The three slots are single f32 values on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorView {
    /// Element type of both layouts.
    pub dtype: DType,
    /// Number of rows (tokens, for activations).
    pub rows: i64,
    /// Number of columns (features).
    pub cols: i64,
    /// Row-wise layout.
    pub data: Ptr,
    /// Row stride of `data` in elements.
    pub ld: i64,
    /// Transposed layout.
    pub data_t: Ptr,
    /// Row stride of `data_t` in elements.
    pub ld_t: i64,
    /// Casts: the multiplier (read; written by current scaling).
    pub scale: Ptr,
    /// Written by casts beside the codes; read by GEMM and dequantize.
    pub scale_inv: Ptr,
    /// Recorded as a maximum by casts; null: not recorded.
    pub amax: Ptr,
}

impl TensorView {
    /// A dense row-major matrix with no slots.
    pub fn new(dtype: DType, data: impl Into<Ptr>, rows: i64, cols: i64) -> Self {
        Self {
            dtype,
            rows,
            cols,
            data: data.into(),
            ld: cols,
            data_t: Ptr::NULL,
            ld_t: 0,
            scale: Ptr::NULL,
            scale_inv: Ptr::NULL,
            amax: Ptr::NULL,
        }
    }

    /// The same with another row stride.
    pub fn with_ld(mut self, ld: i64) -> Self {
        self.ld = ld;
        self
    }

    /// The same with a transposed copy `[cols, rows]`.
    pub fn with_transpose(mut self, data_t: impl Into<Ptr>, ld_t: i64) -> Self {
        self.data_t = data_t.into();
        self.ld_t = ld_t;
        self
    }

    /// The same with scale, scale_inv and amax slots.
    pub fn with_scaling(mut self, scale: impl Into<Ptr>, scale_inv: impl Into<Ptr>, amax: impl Into<Ptr>) -> Self {
        self.scale = scale.into();
        self.scale_inv = scale_inv.into();
        self.amax = amax.into();
        self
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.rows == 0 || self.cols == 0
    }
}
