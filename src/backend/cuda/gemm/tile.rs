//! Which tile a product is cut into: pure functions of shape and device.

/// A tile of `kernels/gemm_sm90.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) bm: u32,
    pub(crate) bn: u32,
    pub(crate) stages: u32,
    /// Blocks that share one tile of B.
    pub(crate) cluster: u32,
    /// Clocks of one tile: per 128 of K, and once (filling, writing).
    per_step: u32,
    once: u32,
    modes: Modes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Modes {
    Fast,
    Precise,
    Both,
}

impl Tile {
    /// Whether it exists for this accumulation mode.
    pub(crate) fn serves(&self, precise: bool) -> bool {
        match self.modes {
            Modes::Both => true,
            Modes::Fast => !precise,
            Modes::Precise => precise,
        }
    }
}

/// The clocks are estimates: a 64-row instruction of N columns takes N/2 clocks, smaller tiles wait for shared memory (they read and write more of
/// it per product), a cluster spares L2 traffic. Only their ratios matter. 192 KiB of stages each.
#[rustfmt::skip]
pub(crate) const SM90_TILES: [Tile; 6] = [
    Tile { bm: 128, bn: 256, stages: 4, cluster: 2, per_step: 1060, once: 1500, modes: Modes::Fast },
    Tile { bm: 128, bn: 256, stages: 4, cluster: 1, per_step: 1120, once: 1500, modes: Modes::Fast },
    Tile { bm: 256, bn: 128, stages: 4, cluster: 2, per_step: 1160, once: 1500, modes: Modes::Precise },
    Tile { bm: 256, bn: 128, stages: 4, cluster: 1, per_step: 1220, once: 1500, modes: Modes::Precise },
    Tile { bm: 128, bn: 128, stages: 6, cluster: 1, per_step: 680, once: 900, modes: Modes::Both },
    Tile { bm: 128, bn: 64, stages: 8, cluster: 1, per_step: 470, once: 600, modes: Modes::Both },
];

/// The tile with the least estimated time: rounds of the device times clocks of a tile. `m`, `n`, `k` are positive.
pub(crate) fn sm90_tile(m: i64, n: i64, k: i64, precise: bool, multiprocessors: u32) -> Tile {
    let [m, n, k] = [m, n, k].map(|v| v as u64);
    let steps = k.div_ceil(128);
    let time = |t: &Tile| {
        let clusters = m.div_ceil(u64::from(t.bm * t.cluster)) * n.div_ceil(u64::from(t.bn));
        let rounds = clusters.div_ceil(u64::from((multiprocessors / t.cluster).max(1)));
        rounds * (steps * u64::from(t.per_step) + u64::from(t.once))
    };
    *SM90_TILES.iter().filter(|t| t.serves(precise)).min_by_key(|t| time(t)).expect("there are tiles for both modes")
}

/// Rows of tiles walked together, column by column: the choice that lets what runs at the same time touch the fewest rows and columns.
pub(crate) fn group(bm: u32, bn: u32, at_once: u32) -> u32 {
    [2, 4, 8, 16, 32].into_iter().min_by_key(|g| g * bm + at_once.div_ceil(*g) * bn).expect("not empty")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_products_get_large_tiles_and_small_ones_fill_the_device() {
        let fast = sm90_tile(12288, 28996, 1024, false, 132);
        assert_eq!((fast.bm, fast.bn, fast.cluster), (128, 256, 2));
        let precise = sm90_tile(12288, 28996, 1024, true, 132);
        assert_eq!((precise.bm, precise.bn), (256, 128));
        // 33 x 16 tiles are four full rounds of 132; pairs of rows would need five.
        let odd = sm90_tile(4097, 4095, 4099, false, 132);
        assert_eq!((odd.bm, odd.bn, odd.cluster), (128, 256, 1));
        let few = sm90_tile(512, 512, 4096, false, 132);
        assert_eq!((few.bm, few.bn), (128, 64));
        assert_eq!(sm90_tile(1, 1, 1, true, 1).bm, 128);
    }

    #[test]
    fn every_tile_fits_shared_memory() {
        for t in SM90_TILES {
            assert!(1024 + t.stages * (t.bm + t.bn) * 128 + 8 * 4096 + 8 * 32 + 16 * t.stages <= 232_448);
        }
    }
}
