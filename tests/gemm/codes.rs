//! Every pair of FP8 codes, multiplied.

use nvte::{ops::gemm::GemmArgs, Context, DType, TensorView};
use rand::RngExt;

use crate::{
    case::*,
    common::{context, oracle, rng, Guarded, Tensor, POISON},
};

/// All 256 codes, one per row of `k`, at column `position`; zeros beside them, NaN between rows.
fn all_codes(ctx: &Context, k: usize, ld: usize, position: usize, offset: usize) -> Guarded {
    let mut bytes = vec![POISON; 255 * ld + k];
    for code in 0..256 {
        bytes[code * ld..][..k].fill(0);
        bytes[code * ld + position] = code as u8;
    }
    Guarded::from_bytes(ctx, &bytes, offset)
}

/// 65,536 products per pair of formats, each a single product and zeros: exact in f32 on every path, with NaN and infinity as IEEE says.
#[test]
fn every_pair_of_codes_multiplies_exactly() {
    let (ctx, mut rng) = (context(), rng("every_pair_of_codes_multiplies_exactly"));
    // An outer product; rows that tensor cores read as they lie; rows that have to be repacked.
    for (k, pad, offset) in [(1, 0, 0), (32, 0, 0), (19, 4, 3), (160, 16, 16)] {
        for a in FP8 {
            for b in FP8 {
                let position = rng.random_range(0..k);
                let memory = [offset, 2 * offset].map(|offset| all_codes(&ctx, k, k + pad, position, offset));
                let view = |t: DType, g: &Guarded| TensorView::new(t, g.ptr(), 256, k as i64).with_ld((k + pad) as i64);
                for mode in MODES {
                    let d = Tensor::output(&ctx, DType::F32, 256, 256, 256 + pad, offset);
                    run(&ctx, &GemmArgs::new(view(a, &memory[0]), view(b, &memory[1]), d.view(), mode));
                    for (i, got) in d.read().into_iter().enumerate() {
                        let (p, q) = ((i / 256) as u32, (i % 256) as u32);
                        let want = oracle::decode(a, p) * oracle::decode(b, q);
                        let same = f64::from(got) == want || (got.is_nan() && want.is_nan());
                        let what = format_args!("{} {p:#04x} x {} {q:#04x}", a.name(), b.name());
                        assert!(same, "{what}: got {got}, want {want} (K = {k}, column {position}, {mode:?})");
                    }
                }
            }
        }
    }
}
