//! Number formats, scale rules and recipes as pure functions and plain types: no pointers, no unsafe.

mod e8m0;
mod fp8;
mod philox;
mod recipe;
mod scaling;
mod sixteen;

pub use e8m0::E8m0;
pub use fp8::{Fp8Format, E4M3, E5M2};
pub use philox::{drop_threshold, philox4x32, random_words};
pub(crate) use recipe::{check_epsilon, check_margin, format_max};
pub use recipe::{AmaxComputeAlgo, DelayedScaling, Float8CurrentScaling, Format, Recipe};
pub use scaling::{amax_bits, canonical_amax, scale_from_amax, update_slot, ScaleRule, SlotUpdate};
pub use sixteen::{bf16_from_f32, f16_from_f32, f16_to_f32, f32_canonical};
