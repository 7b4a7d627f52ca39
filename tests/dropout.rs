//! Dropout: the generator against its published vectors, every element and every bit of the mask against the same operations done here.

mod common;

use common::{context, oracle, relative_error, rng, sync, Guarded, Tensor};
use nvte::{
    numerics,
    ops::dropout::{dropout_bwd, dropout_bwd_workspace, dropout_fwd, DropoutBwdArgs, DropoutFwdArgs, Random},
    Context, DType, Ptr, Stream,
};
use rand::{rngs::StdRng, RngExt};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Philox4x32-10 from the paper's description: a counter of two pairs, each multiplied, exchanged and xored with the bumped keys.
fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut x, mut k) = (counter, key);
    for round in 0..10 {
        if round > 0 {
            k = [k[0].wrapping_add(0x9E3779B9), k[1].wrapping_add(0xBB67AE85)];
        }
        let product = |v: u32, m: u64| (u64::from(v) * m) as u128;
        let (first, second) = (product(x[0], 0xD2511F53), product(x[2], 0xCD9E8D57));
        let high = |p: u128| (p >> 32) as u32;
        let low = |p: u128| (p & 0xFFFF_FFFF) as u32;
        x = [high(second) ^ x[1] ^ k[0], low(second), high(first) ^ x[3] ^ k[1], low(first)];
    }
    x
}

/// The known-answer vectors that come with Random123, for ten rounds.
#[test]
fn the_generator_gives_the_published_words() {
    let known = [
        ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
        ([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0], [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]),
    ];
    for (counter, key, words) in known {
        assert_eq!(philox(counter, key), words);
        assert_eq!(numerics::philox4x32(counter, key), words);
    }
    let [a, b, c, d] = [0x85a308d3_243f6a88u64, 0x03707344_13198a2e, 0x299f31d0_a4093822, 5];
    assert_eq!(numerics::random_words(c, a, b, 0), known[2].2);
    assert_eq!(numerics::random_words(c, a.wrapping_sub(d), b, d), known[2].2);
    assert_eq!([0.0, 0.5, 1.0, 1e-12].map(numerics::drop_threshold), [0, 1 << 31, 1 << 32, 0]);
}

/// What a test draws.
struct Draw {
    seed: u64,
    offset: u64,
    stream: u64,
    p: f64,
    memory: Guarded,
}

impl Draw {
    fn new(ctx: &Context, rng: &mut StdRng) -> Self {
        let p = match rng.random_range(0..8) {
            0 => 0.0,
            1 => 1.0,
            2 => 0.5,
            _ => rng.random_range(0.0..1.0),
        };
        // Now and then so that the counter wraps.
        let offset = if rng.random_bool(0.3) { u64::MAX - rng.random_range(0..50) } else { rng.random() };
        let (seed, stream) = (rng.random(), if rng.random_bool(0.5) { 0 } else { rng.random() });
        let bytes = [seed, offset].iter().flat_map(|v: &u64| v.to_ne_bytes()).collect::<Vec<u8>>();
        Self { seed, offset, stream, p, memory: Guarded::from_bytes(ctx, &bytes, 8) }
    }

    fn random(&self) -> Random {
        Random { rng: self.memory.ptr(), stream: self.stream }
    }

    fn kept(&self, i: u64) -> bool {
        let at = self.offset.wrapping_add(i / 4);
        let counter = [at as u32, (at >> 32) as u32, self.stream as u32, (self.stream >> 32) as u32];
        let word = philox(counter, [self.seed as u32, (self.seed >> 32) as u32])[(i % 4) as usize];
        u64::from(word) >= (self.p * 2f64.powi(32)).round() as u64
    }

    fn scale(&self) -> f32 {
        if self.p == 1.0 {
            0.0
        } else {
            (1.0 / (1.0 - self.p)) as f32
        }
    }
}

/// Where a matrix lies: so that vectors can be used, without gaps, or somewhere.
fn place(rng: &mut StdRng, cols: usize, how: u32) -> (usize, usize) {
    match how {
        0 => (cols.next_multiple_of(8) + 8 * rng.random_range(0..2), 16 * rng.random_range(0..2)),
        1 => (cols, 0),
        _ => (cols + rng.random_range(0..4), rng.random_range(0..4)),
    }
}

/// Sizes of all kinds: below and above a tile, multiples of eight and others, one long row.
fn sizes(rng: &mut StdRng) -> (usize, usize) {
    match rng.random_range(0..6) {
        0 => (1, rng.random_range(1..9000)),
        1 => (rng.random_range(1..80), 8 * rng.random_range(1..70)),
        2 => (rng.random_range(1..300), rng.random_range(1..20)),
        3 => (rng.random_range(30..70), 256),
        4 => (rng.random_range(1..5), rng.random_range(1000..1100)),
        _ => (rng.random_range(1..40), rng.random_range(1..600)),
    }
}

fn code(dtype: DType, v: f32) -> u32 {
    if v.is_nan() {
        return if dtype == DType::F32 { 0x7FFF_FFFF } else { 0x7FFF };
    }
    u32::from_le_bytes(oracle::to_bytes(dtype, v).0)
}

/// A mask on the device: rows of whole bytes, with gaps.
struct Mask {
    memory: Guarded,
    ld: usize,
    rows: usize,
    cols: usize,
}

impl Mask {
    fn new(ctx: &Context, rows: usize, cols: usize, how: u32, rng: &mut StdRng) -> Self {
        let ld = cols.div_ceil(8) + if how == 1 { 0 } else { rng.random_range(0..3) };
        let bytes = (rows - 1) * ld + cols.div_ceil(8);
        Self { memory: Guarded::new(ctx, bytes, if how == 1 { 0 } else { rng.random_range(0..4) }), ld, rows, cols }
    }

    /// Bits of all elements; panics where a gap was written or bits past the last column are not 0.
    fn read(&self) -> Vec<bool> {
        let (bytes, width) = (self.memory.read(), self.cols.div_ceil(8));
        let mut out = Vec::new();
        for r in 0..self.rows {
            let row = &bytes[r * self.ld..][..width];
            out.extend((0..self.cols).map(|c| row[c / 8] >> (c % 8) & 1 == 1));
            assert!((self.cols..8 * width).all(|c| row[c / 8] >> (c % 8) & 1 == 0), "bits past the last column");
            let gap = &bytes[(r * self.ld + width).min(bytes.len())..((r + 1) * self.ld).min(bytes.len())];
            assert!(gap.iter().all(|b| *b == common::POISON), "the gap after row {r} was written");
        }
        out
    }
}

fn case(ctx: &Context, dtype: DType, rng: &mut StdRng) {
    let ((rows, cols), how, draw) = (sizes(rng), rng.random_range(0..3), Draw::new(ctx, rng));
    let spot = |rng: &mut StdRng| place(rng, cols, how);
    let (ld, offset) = spot(rng);
    let (x, values) = Tensor::random(ctx, dtype, rows, cols, ld, offset, rng, true);
    let bias = rng.random_bool(0.5).then(|| {
        let t = HIGH[rng.random_range(0..3)];
        Tensor::random(ctx, t, 1, cols, cols, rng.random_range(0..3), rng, false)
    });
    let residual = rng.random_bool(0.5).then(|| {
        let (ld, offset) = spot(rng);
        Tensor::random(ctx, dtype, rows, cols, ld, offset, rng, true)
    });
    let in_place = rng.random_range(0..4);
    let (ld, offset) = spot(rng);
    let fresh = Tensor::output(ctx, dtype, rows, cols, ld, offset);
    let y = match in_place {
        0 => &x,
        1 => residual.as_ref().map_or(&fresh, |r| &r.0),
        _ => &fresh,
    };
    let mask = rng.random_bool(0.6).then(|| Mask::new(ctx, rows, cols, how, rng));
    let args = DropoutFwdArgs {
        x: x.view(),
        bias: bias.as_ref().map(|b| b.0.view()),
        residual: residual.as_ref().map(|r| r.0.view()),
        y: y.view(),
        mask: mask.as_ref().map_or(Ptr::NULL, |m| m.memory.ptr()),
        mask_ld: mask.as_ref().map_or(0, |m| m.ld as i64),
        p: draw.p,
        random: draw.random(),
    };
    let what = format!(
        "{} [{rows}, {cols}] p {} bias {} residual {} mask {} in place {in_place} how {how}",
        dtype.name(),
        draw.p,
        bias.is_some(),
        residual.is_some(),
        mask.is_some(),
    );
    println!("{what}");
    // SAFETY: everything is live.
    unsafe { dropout_fwd(ctx, &args, Stream::NULL) }.unwrap_or_else(|e| panic!("{what}: {e}"));
    sync(ctx);
    let kept: Vec<bool> = (0..rows * cols).map(|i| draw.kept(i as u64)).collect();
    let want: Vec<u32> = (0..rows * cols)
        .map(|i| {
            let mut v = 0.0;
            if kept[i] {
                v = values[i];
                if let Some((_, b)) = &bias {
                    v += b[i % cols];
                }
                v *= draw.scale();
            }
            code(dtype, residual.as_ref().map_or(v, |r| v + r.1[i]))
        })
        .collect();
    common::assert_codes_equal(&what, &y.codes(), &want, cols);
    if let Some(m) = &mask {
        assert!(m.read() == kept, "{what}: the mask");
    }

    // Backward, drawn again or by the mask.
    let (ld, offset) = spot(rng);
    let (dy, gradient) = Tensor::random(ctx, dtype, rows, cols, ld, offset, rng, false);
    let (ld, offset) = spot(rng);
    let fresh = Tensor::output(ctx, dtype, rows, cols, ld, offset);
    let dx = if rng.random_bool(0.3) { &dy } else { &fresh };
    let (bias_type, accumulate) = (HIGH[rng.random_range(0..3)], rng.random_bool(0.3));
    let dbias = rng.random_bool(0.5).then(|| Tensor::random(ctx, bias_type, 1, cols, cols, rng.random_range(0..3), rng, false));
    let workspace = Guarded::new(ctx, dropout_bwd_workspace(ctx, rows as i64, cols as i64).unwrap() as usize, 0);
    let args = DropoutBwdArgs {
        dy: dy.view(),
        dx: dx.view(),
        mask: args.mask,
        mask_ld: args.mask_ld,
        p: draw.p,
        random: if mask.is_some() { Random { rng: Ptr::NULL, stream: 0 } } else { draw.random() },
        dbias: dbias.as_ref().map_or(Ptr::NULL, |d| d.0.ptr()),
        dbias_dtype: bias_type,
        accumulate,
        workspace: workspace.ptr(),
        workspace_bytes: workspace.bytes() as u64,
    };
    // SAFETY: everything is live.
    unsafe { dropout_bwd(ctx, &args, Stream::NULL) }.unwrap_or_else(|e| panic!("{what}: backward: {e}"));
    sync(ctx);
    let exact: Vec<f32> = (0..rows * cols).map(|i| if kept[i] { gradient[i] * draw.scale() } else { 0.0 }).collect();
    let want: Vec<u32> = exact.iter().map(|v| code(dtype, *v)).collect();
    common::assert_codes_equal(&format!("{what}: dx"), &dx.codes(), &want, cols);
    workspace.read();
    if let Some((d, before)) = &dbias {
        let sums: Vec<f64> = (0..cols)
            .map(|c| {
                let sum: f64 = (0..rows).map(|r| f64::from(exact[r * cols + c])).sum();
                sum + if accumulate { f64::from(before[c]) } else { 0.0 }
            })
            .collect();
        let terms: Vec<f64> =
            (0..cols).map(|c| (0..rows).map(|r| f64::from(exact[r * cols + c]).abs()).sum::<f64>() + f64::from(before[c]).abs()).collect();
        common::tolerance::assert_within(&format!("{what}: dbias"), bias_type, &d.read(), &sums, |i| {
            oracle::ulp(bias_type, sums[i]) + 2f64.powi(-20) * terms[i]
        });
    }
}

#[test]
fn every_element_and_every_bit() {
    let (ctx, mut rng) = (context(), rng("dropout"));
    for dtype in HIGH {
        for _ in 0..40 {
            case(&ctx, dtype, &mut rng);
        }
    }
}

/// Enough rows that a block adds up more than one strip of them; the same call gives the same bits.
#[test]
fn a_bias_gradient_of_many_rows_is_deterministic() {
    let (ctx, mut rng) = (context(), rng("many_rows"));
    let (rows, cols) = (if std::env::var_os("NVTE_TEST_SMALL").is_some() { 2000 } else { 20_000 }, 264);
    let draw = Draw { p: 0.25, ..Draw::new(&ctx, &mut rng) };
    let (dy, gradient) = Tensor::random(&ctx, DType::Bf16, rows, cols, cols, 0, &mut rng, false);
    let workspace = Guarded::new(&ctx, dropout_bwd_workspace(&ctx, rows as i64, cols as i64).unwrap() as usize, 0);
    let mut seen: Vec<Vec<u32>> = Vec::new();
    for _ in 0..2 {
        let dx = Tensor::output(&ctx, DType::Bf16, rows, cols, cols, 0);
        let dbias = Tensor::output(&ctx, DType::F32, 1, cols, cols, 0);
        let args = DropoutBwdArgs {
            dy: dy.view(),
            dx: dx.view(),
            mask: Ptr::NULL,
            mask_ld: 0,
            p: draw.p,
            random: draw.random(),
            dbias: dbias.ptr(),
            dbias_dtype: DType::F32,
            accumulate: false,
            workspace: workspace.ptr(),
            workspace_bytes: workspace.bytes() as u64,
        };
        // SAFETY: everything is live.
        unsafe { dropout_bwd(&ctx, &args, Stream::NULL) }.unwrap();
        sync(&ctx);
        let sums: Vec<f64> = (0..cols)
            .map(|c| (0..rows).filter(|r| draw.kept((r * cols + c) as u64)).map(|r| f64::from(gradient[r * cols + c]) / 0.75).sum())
            .collect();
        assert!(relative_error(&dbias.read(), &sums) < 1e-5);
        seen.push(dbias.codes());
    }
    assert_eq!(seen[0], seen[1]);
    // About as many are kept as should be.
    let kept = (0..400_000u64).filter(|i| draw.kept(*i)).count() as f64;
    assert!((kept / 400_000.0 - 0.75).abs() < 0.005, "{kept} of 400000 are kept");
}

#[test]
fn empty_tensors() {
    let (ctx, mut rng) = (context(), rng("empty"));
    for (rows, cols) in [(0, 5), (5, 0), (0, 0)] {
        let t = Tensor::output(&ctx, DType::F16, rows, cols, cols, 0);
        let none = Random { rng: Ptr::NULL, stream: 0 };
        let args =
            DropoutFwdArgs { x: t.view(), bias: None, residual: None, y: t.view(), mask: Ptr::NULL, mask_ld: 0, p: 0.5, random: none };
        // SAFETY: nothing is read or written.
        unsafe { dropout_fwd(&ctx, &args, Stream::NULL) }.unwrap();
        for accumulate in [false, true] {
            let (dbias, before) = Tensor::random(&ctx, DType::F32, 1, cols, cols, 0, &mut rng, false);
            let args = DropoutBwdArgs {
                dy: t.view(),
                dx: t.view(),
                mask: Ptr::NULL,
                mask_ld: 0,
                p: 0.5,
                random: none,
                dbias: dbias.ptr(),
                dbias_dtype: DType::F32,
                accumulate,
                workspace: Ptr::NULL,
                workspace_bytes: 0,
            };
            // SAFETY: only dbias is written.
            unsafe { dropout_bwd(&ctx, &args, Stream::NULL) }.unwrap();
            sync(&ctx);
            assert_eq!(dbias.read(), if accumulate { before } else { vec![0.0; cols] });
        }
    }
}
