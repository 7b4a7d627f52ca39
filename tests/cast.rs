//! Casts to FP8 against an oracle, bit for bit.

mod common;

use common::{assert_codes_equal, context, oracle, rng, sync, SlotF32, Tensor};
use nvte::{
    ops::cast::{cast_to_fp8, CastArgs},
    DType, Stream,
};
use rand::RngExt;

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const FP8: [DType; 2] = [DType::E4m3, DType::E5m2];

#[test]
fn cast_equals_the_oracle() {
    let ctx = context();
    let mut rng = rng("cast_equals_the_oracle");
    for (rows, cols) in [(1, 1), (3, 5), (64, 64), (65, 130), (17, 33), (128, 256), (1, 1000), (1000, 1), (0, 7), (7, 0)] {
        for input in HIGH {
            for output in FP8 {
                for (row_wise, transposed) in [(true, false), (false, true), (true, true)] {
                    let pad = rng.random_range(0..3);
                    let offset = rng.random_range(0..4);
                    let (x, held) = Tensor::random(&ctx, input, rows, cols, cols + pad, offset, &mut rng, true);
                    let q = Tensor::output(&ctx, output, rows, cols, cols + 2 * pad, offset);
                    let qt = Tensor::output(&ctx, output, cols, rows, rows + pad, offset + 1);
                    let factor: f32 = rng.random_range(0.01f32..100.0);
                    let before = rng.random_range(0.0f32..4.0);
                    let (scale, inv, amax) = (SlotF32::new(&ctx, factor), SlotF32::poisoned(&ctx), SlotF32::new(&ctx, before));
                    let mut view = q.view().with_transpose(qt.ptr(), qt.ld as i64).with_scaling(scale.ptr(), inv.ptr(), amax.ptr());
                    if !row_wise {
                        view.data = nvte::Ptr::NULL;
                    }
                    if !transposed {
                        view.data_t = nvte::Ptr::NULL;
                    }
                    // SAFETY: all tensors are live.
                    unsafe { cast_to_fp8(&ctx, &CastArgs { input: x.view(), output: view }, Stream::NULL) }.unwrap();
                    sync(&ctx);
                    let what = format!("{} -> {} [{rows}, {cols}]", input.name(), output.name());
                    let want: Vec<u32> = held.iter().map(|v| oracle::encode(output, v * factor)).collect();
                    let want_t: Vec<u32> = (0..cols * rows).map(|i| want[(i % rows) * cols + i / rows]).collect();
                    if row_wise {
                        assert_codes_equal(&what, &q.codes(), &want, cols);
                    }
                    if transposed {
                        assert_codes_equal(&format!("{what} transposed"), &qt.codes(), &want_t, rows);
                    }
                    assert_eq!(inv.read().to_bits(), (1.0f32 / factor).to_bits(), "{what}: scale_inv");
                    let mut all = held.clone();
                    all.push(before);
                    assert_eq!(amax.read().to_bits(), oracle::amax(&all).to_bits(), "{what}: amax");
                }
            }
        }
    }
}
