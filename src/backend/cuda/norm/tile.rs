//! The forward pass to FP8 in both layouts in one pass: `kernels/norm_fwd_tile.cu`, and how it runs.

use super::{forward::ForwardArgs, MAX_GRID_X};
use crate::{
    backend::cuda::{
        jit::kernel_spec,
        launch::{arguments, Launch, Queue},
        sources::SourceFile,
        testing::Variant,
    },
    error::Result,
    ops::norm::{Norm, NormFwdArgs},
    tensor::DType,
};

/// Columns of a block: so many groups of warps with 256 each.
const GROUPS: [u64; 4] = [1, 2, 3, 4];
/// Types of 16 bits, which the tensor cores take.
const TYPES: [DType; 2] = [DType::F16, DType::Bf16];

/// Every module of this kernel.
pub(super) fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for x in TYPES {
        for norm in [Norm::Layer, Norm::Rms] {
            all.extend(GROUPS.map(|groups| Variant::of(&TileSpec { x, norm, groups }).on(90, 999)));
        }
    }
    all
}

#[derive(Clone, Copy)]
struct TileSpec {
    x: DType,
    norm: Norm,
    groups: u64,
}

kernel_spec!(
    TileSpec: NormFwdTile, s => "norm_fwd_tile", "X" = s.x, "RMS" = s.norm, "GROUPS" = s.groups; smem = Tile::smem(s.groups)
);

/// How `norm_fwd_tile` runs: a cluster of `blocks` blocks for each `Tile::rows(groups)` rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tile {
    groups: u64,
    blocks: u64,
    clusters: u64,
}

impl Tile {
    /// Columns of a warp.
    const COLUMNS: u64 = 256;
    /// Of a cluster.
    const MOST_BLOCKS: u64 = 16;
    /// Of clusters that find places sooner where their blocks may share a multiprocessor.
    const PACKED: std::ops::RangeInclusive<u64> = 3..=7;
    /// That fill the device with larger blocks.
    const MANY_ROWS: u64 = 8192;

    fn rows(groups: u64) -> u64 {
        if groups < 3 {
            64
        } else {
            32
        }
    }

    fn smem(groups: u64) -> u32 {
        (Self::rows(groups) * groups * Self::COLUMNS * 2) as u32
    }

    /// Nothing for other types, rows that the transposed layout cannot take in sixteens, and columns that make no cluster.
    pub(super) fn new(x: DType, rows: u64, cols: u64) -> Option<Self> {
        let chunks = cols.div_ceil(Self::COLUMNS);
        if !TYPES.contains(&x) || rows == 0 || rows % 16 != 0 || cols % 8 != 0 || !(2..=4 * Self::MOST_BLOCKS).contains(&chunks) {
            return None;
        }
        // As measured: small blocks, and where those of one group would be more than a cluster has, those that leave few columns without work.
        let groups = match chunks {
            4 if rows >= Self::MANY_ROWS && cols % Self::COLUMNS != 0 => 2,
            ..=16 => 1,
            25..=32 => 2,
            17..=24 | 33..=48 => 3,
            _ => 4,
        };
        let (blocks, clusters) = (chunks.div_ceil(groups), rows.div_ceil(Self::rows(groups)));
        (clusters.saturating_mul(blocks) <= MAX_GRID_X).then_some(Self { groups, blocks, clusters })
    }

    /// Whether the device has room for its clusters; it is enqueued then.
    ///
    /// # Safety
    /// Arguments validated, pointers live; x, residual, sum and parameters aligned for vectors, yt to 16 bytes and y to 8.
    pub(super) unsafe fn run(&self, queue: &Queue<'_>, norm: Norm, a: &NormFwdArgs, mut args: ForwardArgs) -> Result<bool> {
        let spec = TileSpec { x: a.x.dtype, norm, groups: self.groups };
        let threads = Self::rows(self.groups) / 16 * 32 * self.groups;
        let mut launch = Launch::new([(self.clusters * self.blocks) as u32, 1, 1], threads as u32);
        (launch.cluster, launch.smem) = (self.blocks as u32, Self::smem(self.groups));
        let resident = u64::from(queue.resident(&spec, &launch)?);
        if resident == 0 {
            return Ok(false);
        }
        launch.packed = Self::PACKED.contains(&self.blocks) && self.clusters > resident;
        // With a residual, reads are ahead of writes as it is.
        if a.residual.is_none() {
            args.early = u32::try_from(resident * self.blocks / 2).unwrap_or(u32::MAX);
        }
        // SAFETY: `Args`, with pointers live by contract.
        unsafe { queue.launch(&spec, &launch, arguments![args])? };
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_covers_its_tensor_with_clusters_that_exist() {
        for rows in [16, 48, 64, 4096, 16_384, 50_320, 1 << 33] {
            for cols in (8..=20_480).step_by(8) {
                let Some(t) = Tile::new(DType::Bf16, rows, cols) else {
                    assert!(cols <= 256 || cols > 16_384 || rows > 1 << 30, "[{rows}, {cols}] has no plan");
                    continue;
                };
                assert!((2..=Tile::MOST_BLOCKS).contains(&t.blocks) && GROUPS.contains(&t.groups), "{t:?} for {cols}");
                // No block without columns, no cluster without rows.
                let (width, height) = (t.groups * Tile::COLUMNS, Tile::rows(t.groups));
                assert!(t.blocks * width >= cols && (t.blocks - 1) * width < cols, "{t:?} for {cols}");
                assert!(t.clusters * height >= rows && (t.clusters - 1) * height < rows && t.clusters * t.blocks <= MAX_GRID_X);
                assert!(Tile::smem(t.groups) <= 64 << 10);
            }
        }
        assert!(Tile::new(DType::F32, 64, 1024).is_none() && Tile::new(DType::Bf16, 65, 1024).is_none());
        assert!(Tile::new(DType::F16, 64, 1028).is_none() && Tile::new(DType::F16, 0, 1024).is_none());
    }
}
