//! Scaling recipes as plain types.

use super::{Fp8Format, E4M3, E5M2};
use crate::{
    error::{Error, Result, Status},
    tensor::DType,
};

/// Which format serves which pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// E4M3 everywhere.
    E4m3,
    /// E4M3 forward, E5M2 for gradients.
    #[default]
    Hybrid,
}

impl Format {
    /// Format of activations and weights.
    pub const fn forward(self) -> DType {
        DType::E4m3
    }

    /// Format of gradients.
    pub const fn backward(self) -> DType {
        match self {
            Format::E4m3 => DType::E4m3,
            Format::Hybrid => DType::E5m2,
        }
    }
}

/// How the amax of a period follows from its window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum AmaxComputeAlgo {
    /// The largest of the window.
    #[default]
    Max = 0,
    /// The newest.
    MostRecent = 1,
}

/// Delayed scaling: scales follow from the amaxes of earlier steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DelayedScaling {
    /// The scale is divided by 2^margin.
    pub margin: i32,
    /// The scale changes at every interval-th update.
    pub interval: u32,
    /// Which format serves which pass.
    pub fp8_format: Format,
    /// Window length L, the current amax included.
    pub amax_history_len: usize,
    /// How the amax follows from the window.
    pub amax_compute_algo: AmaxComputeAlgo,
    /// Whether amaxes are reduced over the ranks before the update.
    pub reduce_amax: bool,
    /// Round scales down to powers of two.
    pub power_of_two: bool,
    /// Floor of the amax.
    pub epsilon: f32,
}

impl Default for DelayedScaling {
    fn default() -> Self {
        Self {
            margin: 0,
            interval: 1,
            fp8_format: Format::Hybrid,
            amax_history_len: 1024,
            amax_compute_algo: AmaxComputeAlgo::Max,
            reduce_amax: true,
            power_of_two: false,
            epsilon: 0.0,
        }
    }
}

impl DelayedScaling {
    /// Checks every parameter.
    pub fn validate(&self) -> Result<()> {
        check_margin(self.margin)?;
        check_epsilon(self.epsilon)?;
        if self.interval == 0 {
            return Err(Error::argument(Status::InvalidValue, "interval", 0, "at least 1"));
        }
        if self.amax_history_len == 0 {
            return Err(Error::argument(Status::InvalidValue, "amax_history_len", 0, "at least 1"));
        }
        Ok(())
    }
}

/// Current ("just in time") scaling: each cast takes the amax of its own tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Float8CurrentScaling {
    /// Which format serves which pass.
    pub fp8_format: Format,
    /// The scale is divided by 2^margin.
    pub margin: i32,
    /// Round scales down to powers of two.
    pub power_of_two: bool,
    /// Floor of the amax.
    pub epsilon: f32,
}

impl Default for Float8CurrentScaling {
    fn default() -> Self {
        Self { fp8_format: Format::Hybrid, margin: 0, power_of_two: false, epsilon: 0.0 }
    }
}

impl Float8CurrentScaling {
    /// Checks every parameter.
    pub fn validate(&self) -> Result<()> {
        check_margin(self.margin)?;
        check_epsilon(self.epsilon)
    }
}

/// A recipe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Recipe {
    /// Scales from earlier steps.
    Delayed(DelayedScaling),
    /// Scales from the tensor itself.
    Current(Float8CurrentScaling),
}

/// Largest finite value of an FP8 type.
pub(crate) const fn format_max(dtype: DType) -> f32 {
    match dtype {
        DType::E5m2 => E5M2::MAX,
        _ => E4M3::MAX,
    }
}

/// 2^-margin and the scales it gives must stay normal numbers.
pub(crate) fn check_margin(margin: i32) -> Result<()> {
    if (-64..=64).contains(&margin) {
        return Ok(());
    }
    Err(Error::argument(Status::InvalidValue, "margin", margin, "between -64 and 64"))
}

pub(crate) fn check_epsilon(epsilon: f32) -> Result<()> {
    if epsilon.is_finite() && epsilon >= 0.0 {
        return Ok(());
    }
    Err(Error::argument(Status::InvalidValue, "epsilon", epsilon, "finite and not negative"))
}
