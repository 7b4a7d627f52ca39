//! The scaling state of a model: each layer has its consecutive slots, one per FP8 tensor, all in a few small arrays.

use std::cell::Cell;

use nvte::{
    numerics::{DelayedScaling, Fp8Format, E4M3, E5M2},
    ops::scaling::ScalingUpdateArgs,
    Buffer, DType, Ptr, Result,
};

use crate::compute::Compute;

/// Most slots of a model.
const CAPACITY: usize = 256;

/// Where a layer's slots begin.
#[derive(Clone, Copy, Debug)]
pub struct Slot(usize);

/// The recipe of delayed scaling. A short run has no use for the usual window of 1024 steps.
pub fn recipe() -> DelayedScaling {
    DelayedScaling { amax_history_len: 16, ..Default::default() }
}

/// `live`, `scale`, `history` and `format_max` on the device.
pub struct Slots {
    recipe: DelayedScaling,
    formats: Vec<DType>,
    live: Buffer,
    scale: Buffer,
    history: Buffer,
    format_max: Buffer,
    /// A training step has recorded amaxes that no update has taken yet.
    due: Cell<bool>,
}

impl Slots {
    /// No slots yet.
    pub fn new(c: &Compute) -> Result<Self> {
        let recipe = recipe();
        Ok(Self {
            recipe,
            formats: Vec::new(),
            live: c.upload(&[0.0f32; CAPACITY])?,
            scale: c.upload(&[1.0f32; CAPACITY])?,
            history: c.upload(&vec![0.0f32; CAPACITY * (recipe.amax_history_len - 1)])?,
            format_max: c.upload(&[1.0f32; CAPACITY])?,
            due: Cell::new(false),
        })
    }

    /// The next `count` free slots: a layer's inputs and weights, then as many gradients as it has products.
    pub fn take(&mut self, count: usize) -> Slot {
        let first = Slot(self.formats.len());
        let formats =
            (0..count).map(|i| if i < 2 * count / 3 { self.recipe.fp8_format.forward() } else { self.recipe.fp8_format.backward() });
        self.formats.extend(formats);
        first
    }

    /// Called once when all slots are taken.
    pub fn seal(&self) -> Result<()> {
        let max = |d: &DType| if *d == DType::E5m2 { E5M2::MAX } else { E4M3::MAX };
        assert!(self.formats.len() <= CAPACITY, "{} slots", self.formats.len());
        self.format_max.write(0, &self.formats.iter().map(max).collect::<Vec<f32>>())
    }

    /// Where amaxes are recorded from this slot on.
    pub fn live(&self, s: Slot) -> Ptr {
        self.live.ptr().offset(4 * s.0 as u64)
    }

    /// The scales from this slot on.
    pub fn scale(&self, s: Slot) -> Ptr {
        self.scale.ptr().offset(4 * s.0 as u64)
    }

    /// A training step begins: the period of the step before ends, and its amaxes become scales, all in one launch.
    pub fn begin_step(&self, c: &Compute) -> Result<()> {
        if !self.due.replace(true) {
            return Ok(());
        }
        let older = self.recipe.amax_history_len as i64 - 1;
        c.scaling_update(&ScalingUpdateArgs {
            slots: self.formats.len() as i64,
            live: self.live.ptr(),
            scale: self.scale.ptr(),
            history: self.history.ptr(),
            slot_stride: older,
            step_stride: 1,
            format_max: self.format_max.ptr(),
            ..ScalingUpdateArgs::from_recipe(&self.recipe)
        })
    }

    /// Scales of all slots, for a look.
    #[cfg(test)]
    pub fn scales(&self) -> Result<Vec<f32>> {
        self.scale.read(0, self.formats.len())
    }
}
