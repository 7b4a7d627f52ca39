//! Norms of rows that are long, or not aligned for vectors: `kernels/norm_fwd_any.cu`, `norm_fwd_ring.cu` and `norm_bwd_any.cu`, and how
//! they run.

use super::{backward::Matrices, vector, HIGH};
use crate::{
    backend::cuda::{jit::kernel_spec, launch::Launch, sources::SourceFile, testing::Variant},
    ops::norm::Norm,
    tensor::DType,
};

/// Every module of these kernels.
pub(super) fn variants() -> Vec<Variant> {
    let mut all = vec![Variant::of(&Any::Dx)];
    for x in HIGH {
        for norm in [Norm::Layer, Norm::Rms] {
            all.push(Variant::of(&AnyForward { vectors: true, x, norm, smem: 0 }));
            if Ring::serves(x) {
                all.push(Variant::of(&RingSpec { x, norm, smem: 0 }).on(90, 999));
            }
        }
    }
    all
}

/// `norm_fwd_wide`, which needs vectors, and `norm_fwd_any`.
#[derive(Clone, Copy)]
pub(super) struct AnyForward {
    pub(super) vectors: bool,
    pub(super) x: DType,
    pub(super) norm: Norm,
    /// Dynamic shared memory that the device allows.
    pub(super) smem: u32,
}

kernel_spec!(
    AnyForward: NormFwdAny, s => if s.vectors { "norm_fwd_wide" } else { "norm_fwd_any" }, "X" = s.x, "RMS" = s.norm; also s.vectors;
    smem = s.smem
);

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

    /// Element by element, `unit` columns a slot. Few warps a row and many rows a multiprocessor wait less for each other than the other
    /// way round, until shared memory holds too few rows.
    fn any(rows: u64, cols: u64, unit: u64, most_slots: u64) -> Self {
        let units = cols.max(1).div_ceil(unit);
        Self::new(rows, units, units.div_ceil(most_slots).clamp(1, ANY_WARPS))
    }

    /// For a forward pass; with how many slots wait in shared memory.
    pub(super) fn forward(vectors: bool, dtype: DType, rows: u64, cols: u64, multiprocessors: u32, max_smem: u32) -> (Self, u32) {
        let unit = 32 * vector(dtype);
        let plan = match vectors {
            // The longest rows: a block has a multiprocessor to itself, and fetches its next row while it writes one.
            true => Self::new(rows.min(u64::from(multiprocessors)), cols.max(1).div_ceil(unit), WIDE_WARPS),
            false => Self::any(rows, cols, unit, if cols <= 40 * unit { 9 } else { 13 }),
        };
        (plan, u64::from(max_smem / (16 * plan.block)).min(plan.slots) as u32)
    }

    /// For `norm_bwd_dx`.
    pub(super) fn backward(rows: u64, cols: u64) -> Self {
        Self::any(rows, cols, 256, 9)
    }

    pub(super) fn launch(&self, kept: u32) -> Launch {
        let mut launch = Launch::new([self.grid, 1, 1], self.block);
        launch.smem = kept * 16 * self.block;
        launch
    }
}

/// `norm_fwd_ring`.
#[derive(Clone, Copy)]
pub(super) struct RingSpec {
    pub(super) x: DType,
    pub(super) norm: Norm,
    /// Dynamic shared memory that the device allows.
    pub(super) smem: u32,
}

kernel_spec!(RingSpec: NormFwdRing, s => "norm_fwd_ring", "X" = s.x, "RMS" = s.norm; smem = s.smem);

/// How `norm_fwd_ring` runs: each row by a cluster, whose blocks hold groups of `warps` warps with a share of a row each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ring {
    pub(super) warps: u32,
    pub(super) slots: u32,
    groups: u32,
    smem: u32,
}

impl Ring {
    /// Blocks of a cluster, groups of a block and its threads at most, columns of a thread.
    const BLOCKS: u64 = 8;
    const GROUPS: u64 = 4;
    const THREADS: u64 = 768;
    const COLUMNS: u64 = 32;
    /// Rows to come.
    pub(super) const STAGES: u64 = 1;
    /// Static arrays take more than other kernels' do.
    pub(super) const SMEM_LESS: u32 = 6 * 1024 + 512;

    /// Nothing where a share is too long for a block, or where there are too few registers.
    pub(super) fn new(dtype: DType, norm: Norm, cols: u64, max_smem: u32) -> Option<Self> {
        if !Self::serves(dtype) {
            return None;
        }
        let vectors = (cols / vector(dtype)).div_ceil(Self::BLOCKS).max(1);
        let threads = (vectors * vector(dtype)).div_ceil(Self::COLUMNS).next_multiple_of(32);
        let parameters = threads * Self::COLUMNS * 4 * if norm == Norm::Rms { 1 } else { 2 };
        let smem = |groups: u64| parameters + Self::STAGES * groups * threads * Self::COLUMNS * dtype.size() as u64;
        let most = Self::GROUPS.min(Self::THREADS / threads);
        let groups = (1..=most).rev().find(|g| smem(*g) <= u64::from(max_smem))?;
        let slots = vectors.div_ceil(threads) as u32;
        Some(Self { warps: (threads / 32) as u32, slots, groups: groups as u32, smem: smem(groups) as u32 })
    }

    pub(super) fn serves(dtype: DType) -> bool {
        dtype != DType::F32
    }

    /// With one cluster; and the clusters that rows give work.
    pub(super) fn launch(&self, rows: u64) -> (Launch, u32) {
        let mut launch = Launch::new([Self::BLOCKS as u32, 1, 1], self.warps * 32 * self.groups);
        (launch.smem, launch.cluster) = (self.smem, Self::BLOCKS as u32);
        (launch, rows.div_ceil(u64::from(self.groups)).clamp(1, 1 << 20) as u32)
    }
}

/// The kernels of `norm_bwd_any.cu`.
#[derive(Clone, Copy)]
pub(super) enum Any {
    Dx,
    Params,
    Sum,
}

kernel_spec!(enum Any: NormBwdAny, Dx = "norm_bwd_dx", Params = "norm_bwd_params", Sum = "norm_param_sum");

/// `Args` of `norm_bwd_any.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AnyArgs {
    pub(super) matrices: Matrices,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_covers_its_row_and_fits() {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            for norm in [Norm::Layer, Norm::Rms] {
                let n = vector(dtype);
                for cols in (0..600).chain([1001, 4099, 12_288, 18_433, 32_776, 65_536, 65_544, 100_000, 131_072, 250_001, 1 << 34]) {
                    for (max_smem, vectors) in [(98_304, true), (229_376, true), (98_304, false), (229_376, false)] {
                        let (p, kept) = AnyRows::forward(vectors, dtype, 700, cols, 132, max_smem);
                        assert!(u64::from(p.warps) * p.slots * 32 * n >= cols && p.launch(kept).smem <= max_smem, "{p:?} for {cols}");
                        assert!(p.block <= if vectors { 1024 } else { 640 } && u64::from(kept) <= p.slots, "{p:?}");
                        let p = AnyRows::backward(700, cols);
                        assert!(u64::from(p.warps) * p.slots * 256 >= cols && p.block <= 640, "{p:?} for {cols}");
                        let Some(p) = Ring::new(dtype, norm, cols, max_smem) else {
                            assert!(dtype == DType::F32 || cols > 49_152, "{cols} columns have no plan");
                            continue;
                        };
                        let launch = p.launch(700).0;
                        assert!(launch.smem <= max_smem && launch.block <= 768 && p.groups <= 4 && p.slots <= 4);
                        assert!(u64::from(p.warps * 32 * p.slots) * n * 8 >= cols / n * n, "{p:?} for {cols}");
                    }
                }
            }
        }
    }
}
