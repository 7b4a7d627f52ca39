//! Norms of rows that are long, or not aligned for vectors: `kernels/norm_fwd_any.cu` and `norm_bwd_any.cu`, and how they run.

use super::{jit::KernelSpec, launch::Launch, norm::vector, sources::SourceFile};
use crate::{
    ops::norm::Norm,
    tensor::{DType, Ptr},
};

/// `norm_fwd_wide`, which needs vectors, and `norm_fwd_any`.
#[derive(Clone, Copy)]
pub(super) struct AnyForward {
    pub(super) vectors: bool,
    pub(super) x: DType,
    pub(super) norm: Norm,
    /// Dynamic shared memory that the device allows.
    pub(super) smem: u32,
}

impl KernelSpec for AnyForward {
    const SOURCE: SourceFile = SourceFile::NormFwdAny;

    fn id(&self) -> u64 {
        self.x as u64 | (self.norm as u64) << 4 | u64::from(self.vectors) << 8
    }

    fn defines(&self) -> Vec<String> {
        vec![format!("X={}", self.x as i32), format!("RMS={}", self.norm as i32)]
    }

    fn entry(&self) -> &'static str {
        if self.vectors {
            "norm_fwd_wide"
        } else {
            "norm_fwd_any"
        }
    }

    fn dynamic_smem(&self) -> u32 {
        self.smem
    }
}

/// How rows are shared out: a block of `warps` warps for each, or a warp for each where one is enough; a warp takes `slots` times
/// 32 vectors, or as many elements, next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnyRows {
    pub(super) warps: u32,
    pub(super) slots: u64,
    grid: u32,
    block: u32,
}

/// Rows of a block where a warp has one.
const ROWS_PER_BLOCK: u64 = 4;
/// Warps of a block at most: `norm_fwd_wide`, the others.
const WIDE_WARPS: u64 = 32;
const ANY_WARPS: u64 = 20;
/// Slots of a thread: few warps a row and many rows a multiprocessor wait less for each other than the other way round.
const WANTED_SLOTS: u64 = 8;

impl AnyRows {
    fn new(rows: u64, units: u64, warps: u64) -> Self {
        let per_block = if warps == 1 { ROWS_PER_BLOCK } else { 1 };
        Self {
            warps: warps as u32,
            slots: units.div_ceil(warps),
            grid: rows.div_ceil(per_block).clamp(1, 0x7FFF_FFFF) as u32,
            block: 32 * (warps * per_block) as u32,
        }
    }

    /// Element by element, `unit` columns a slot: about the wanted number of slots, and as little of them beyond the row as can be.
    fn any(rows: u64, cols: u64, unit: u64) -> Self {
        let units = cols.max(1).div_ceil(unit);
        let warps = (units.div_ceil(WANTED_SLOTS + 1)..=units.div_ceil(WANTED_SLOTS - 1))
            .map(|w| w.clamp(1, ANY_WARPS))
            .min_by_key(|w| (units.div_ceil(*w) * w, *w))
            .unwrap_or(1);
        Self::new(rows, units, warps)
    }

    /// For a forward pass; with how many slots wait in shared memory.
    pub(super) fn forward(vectors: bool, dtype: DType, rows: u64, cols: u64, multiprocessors: u32, max_smem: u32) -> (Self, u32) {
        let unit = 32 * vector(dtype);
        let plan = match vectors {
            // The longest rows: a block has a multiprocessor to itself, and fetches its next row while it writes one.
            true => Self::new(rows.min(u64::from(multiprocessors)), cols.max(1).div_ceil(unit), WIDE_WARPS),
            false => Self::any(rows, cols, unit),
        };
        (plan, u64::from(max_smem / (16 * plan.block)).min(plan.slots) as u32)
    }

    /// For `norm_bwd_dx`.
    pub(super) fn backward(rows: u64, cols: u64) -> Self {
        Self::any(rows, cols, 256)
    }

    pub(super) fn launch(&self, kept: u32) -> Launch {
        let mut launch = Launch::new([self.grid, 1, 1], self.block);
        launch.smem = kept * 16 * self.block;
        launch
    }
}

/// The kernels of `norm_bwd_any.cu`.
#[derive(Clone, Copy)]
pub(super) enum Any {
    Dx,
    Params,
    Sum,
}

impl KernelSpec for Any {
    const SOURCE: SourceFile = SourceFile::NormBwdAny;

    fn id(&self) -> u64 {
        *self as u64
    }

    fn defines(&self) -> Vec<String> {
        Vec::new()
    }

    fn entry(&self) -> &'static str {
        match self {
            Any::Dx => "norm_bwd_dx",
            Any::Params => "norm_bwd_params",
            Any::Sum => "norm_param_sum",
        }
    }
}

/// `Args` of `norm_bwd_any.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AnyArgs {
    pub(super) dy: Ptr,
    pub(super) lddy: i64,
    pub(super) x: Ptr,
    pub(super) ldx: i64,
    pub(super) gamma: Ptr,
    pub(super) mu: Ptr,
    pub(super) rsigma: Ptr,
    pub(super) dx: Ptr,
    pub(super) lddx: i64,
    pub(super) dsum: Ptr,
    pub(super) ld_dsum: i64,
    pub(super) partial: Ptr,
    pub(super) rows: i64,
    pub(super) hidden: i64,
    pub(super) dy_dt: i32,
    pub(super) x_dt: i32,
    pub(super) dx_dt: i32,
    pub(super) dsum_dt: i32,
    pub(super) gamma_dt: i32,
    pub(super) zero_centered: i32,
    pub(super) rms: i32,
    pub(super) warps: i32,
    pub(super) slots: i32,
}

/// Columns of a block of `norm_bwd_params`.
pub(super) const STRIP: u64 = 128;

/// Slabs of rows for `norm_bwd_params`, one partial sum each: so many that multiprocessors are full twice over.
pub(super) fn slabs(rows: u64, cols: u64, multiprocessors: u32) -> u32 {
    let most = (u64::from(multiprocessors) * 6 / cols.div_ceil(STRIP)).max(1);
    rows.div_ceil(64).min(u64::from(multiprocessors)).min(most) as u32
}
