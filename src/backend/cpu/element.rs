//! Element types of the CPU back end and the dispatch from a data type to them.

use half::{bf16, f16};

use crate::numerics::{bf16_from_f32, f16_from_f32, f16_to_f32, f32_canonical};

/// A high-precision element: read exactly as f32, written with one rounding (NaN as the hardware writes it).
pub(crate) trait Element: Copy + Send + Sync + 'static {
    fn load(self) -> f32;
    fn store(v: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn load(self) -> f32 {
        self
    }
    #[inline(always)]
    fn store(v: f32) -> Self {
        f32_canonical(v)
    }
}

impl Element for f16 {
    #[inline(always)]
    fn load(self) -> f32 {
        f16_to_f32(self)
    }
    #[inline(always)]
    fn store(v: f32) -> Self {
        f16_from_f32(v)
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn store(v: f32) -> Self {
        bf16_from_f32(v)
    }
}

/// `with_high!(dtype, T => expression)`: the expression with `T` as the element type of a high-precision data type.
macro_rules! with_high {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            crate::tensor::DType::F32 => {
                type $t = f32;
                $body
            }
            crate::tensor::DType::F16 => {
                type $t = half::f16;
                $body
            }
            crate::tensor::DType::Bf16 => {
                type $t = half::bf16;
                $body
            }
            other => unreachable!("validated as high precision: {}", other.name()),
        }
    };
}

/// `with_fp8!(dtype, F => expression)`: likewise with `F` as the FP8 format.
macro_rules! with_fp8 {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            crate::tensor::DType::E4m3 => {
                type $t = crate::numerics::E4M3;
                $body
            }
            crate::tensor::DType::E5m2 => {
                type $t = crate::numerics::E5M2;
                $body
            }
            other => unreachable!("validated as FP8: {}", other.name()),
        }
    };
}
pub(crate) use {with_fp8, with_high};
