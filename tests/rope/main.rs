//! Rotary position embedding: every element against the same rounded operations done here, and against f64.

#[path = "../common/mod.rs"]
mod common;
mod memory;

use common::{context, oracle, rng, sync, Guarded};
use memory::{Block, Order};
use nvte::{
    ops::rope::{rope_bwd, rope_fwd, rope_qkv_bwd, rope_qkv_fwd, rope_table, Places, QkvOrder, RopeArgs, RopeQkvArgs, Rotation},
    Context, DType, Ptr, Status, Stream,
};
use rand::{rngs::StdRng, RngExt};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// A table on the device, and its values.
struct Table {
    cos: (Guarded, Vec<f32>),
    sin: (Guarded, Vec<f32>),
    rows: usize,
    half: usize,
    ld: usize,
}

impl Table {
    /// Angles of a usual embedding, for `rows` positions; the gaps between rows are NaN.
    fn new(ctx: &Context, rows: usize, rotary_dim: usize, ld: usize, offset: usize) -> Self {
        let half = rotary_dim / 2;
        let (mut cos, mut sin) = (vec![0f32; rows * half], vec![0f32; rows * half]);
        rope_table(0, rotary_dim as i64, 100.0, &mut cos, &mut sin).unwrap();
        let upload = |v: &[f32]| {
            let mut wide = vec![f32::NAN; rows * ld];
            for (row, values) in v.chunks(half.max(1)).enumerate() {
                wide[row * ld..row * ld + half].copy_from_slice(values);
            }
            let bytes: Vec<u8> = wide.iter().flat_map(|v| v.to_ne_bytes()).collect();
            Guarded::from_bytes(ctx, &bytes, 4 * offset)
        };
        Self { cos: (upload(&cos), cos), sin: (upload(&sin), sin), rows, half, ld }
    }

    fn rotation(&self, interleaved: bool) -> Rotation {
        Rotation {
            interleaved,
            rotary_dim: 2 * self.half as i64,
            cos: self.cos.0.ptr(),
            sin: self.sin.0.ptr(),
            table_rows: self.rows as i64,
            table_ld: self.ld as i64,
        }
    }

    /// Cosine and sine of pair `i` at a position; NaN outside.
    fn angle(&self, position: i64, i: usize) -> (f32, f32) {
        match usize::try_from(position).ok().filter(|p| *p < self.rows) {
            Some(p) => (self.cos.1[p * self.half + i], self.sin.1[p * self.half + i]),
            None => (f32::NAN, f32::NAN),
        }
    }
}

fn words(ctx: &Context, v: &[i64], wide: bool) -> Guarded {
    let bytes: Vec<u8> =
        if wide { v.iter().flat_map(|v| v.to_ne_bytes()).collect() } else { v.iter().flat_map(|v| (*v as i32).to_ne_bytes()).collect() };
    Guarded::from_bytes(ctx, &bytes, 0)
}

/// Positions on the device, and the row of each token; `None`: it belongs to no sequence.
struct Positions {
    places: Places,
    rows: Vec<Option<i64>>,
    _kept: Vec<Guarded>,
}

impl Positions {
    /// `how`: 0 by number, 1 with a start, 2 an array for each token, 3 one for all sequences, 4 starts, 5 packed, 6 packed with starts.
    fn new(ctx: &Context, how: u32, seq: usize, batch: usize, table: usize, rng: &mut StdRng) -> Self {
        let (mut places, mut kept) = (Places::default(), Vec::new());
        let mut keep = |g: Guarded| {
            let p = g.ptr();
            kept.push(g);
            p
        };
        let mut rows = vec![Some(0); seq * batch];
        let each = |rows: &mut Vec<Option<i64>>, f: &mut dyn FnMut(usize, usize) -> i64| {
            for s in 0..seq {
                for b in 0..batch {
                    rows[s * batch + b] = Some(f(s, b));
                }
            }
        };
        match how {
            1 => {
                places.start = rng.random_range(-3..5);
                each(&mut rows, &mut |s, _| s as i64 + places.start);
            }
            2 | 3 => {
                places.positions_i64 = rng.random_bool(0.5);
                let many = if how == 2 { batch } else { 1 };
                // Now and then outside the table.
                let values: Vec<i64> = (0..seq * many).map(|_| rng.random_range(-1..=table as i64)).collect();
                // [sequence, token] or [token, sequence].
                let turned = rng.random_bool(0.5);
                (places.positions_seq_stride, places.positions_batch_stride) = if turned { (1, seq as i64) } else { (many as i64, 1) };
                if how == 3 {
                    (places.positions_seq_stride, places.positions_batch_stride) = (1, 0);
                }
                let (s, b) = (places.positions_seq_stride as usize, places.positions_batch_stride as usize);
                each(&mut rows, &mut |i, j| values[i * s + j * b]);
                places.positions = keep(words(ctx, &values, places.positions_i64));
            }
            4 => {
                let starts: Vec<i64> = (0..batch).map(|_| rng.random_range(0..9)).collect();
                places.start = 1;
                each(&mut rows, &mut |s, b| s as i64 + starts[b] + 1);
                places.starts = keep(words(ctx, &starts, false));
            }
            5 | 6 => {
                assert_eq!(batch, 1);
                let sequences = rng.random_range(0..7);
                let mut cu: Vec<i64> = (0..=sequences).map(|_| rng.random_range(0..=seq as i64)).collect();
                cu.sort();
                if rng.random_bool(0.5) {
                    cu[0] = 0;
                    *cu.last_mut().unwrap() = if sequences > 0 { seq as i64 } else { 0 };
                }
                let starts: Vec<i64> = (0..sequences).map(|_| if how == 6 { rng.random_range(0..5) } else { 0 }).collect();
                for (t, row) in rows.iter_mut().enumerate() {
                    let t = t as i64;
                    *row = (0..sequences).find(|i| cu[*i] <= t && t < cu[*i + 1]).map(|i| t - cu[i] + starts[i]);
                }
                (places.cu_seqlens, places.sequences) = (keep(words(ctx, &cu, false)), sequences as i64);
                if how == 6 {
                    places.starts = keep(words(ctx, &starts, false));
                }
            }
            _ => each(&mut rows, &mut |s, _| s as i64),
        }
        Self { places, rows, _kept: kept }
    }
}

/// What a head must become: codes, each with its exact value and the largest term, where it is rotated.
fn expected(
    dtype: DType,
    head: &[u32],
    table: &Table,
    row: Option<i64>,
    interleaved: bool,
    backward: bool,
) -> Vec<(u32, Option<(f64, f64)>)> {
    let mut out: Vec<(u32, Option<(f64, f64)>)> = head.iter().map(|c| (*c, None)).collect();
    let Some(row) = row else { return out };
    for i in 0..table.half {
        let (first, second) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + table.half) };
        let (a, b) = (oracle::from_code(dtype, head[first]), oracle::from_code(dtype, head[second]));
        let (c, s) = table.angle(row, i);
        let s = if backward { -s } else { s };
        let mut put = |at: usize, v: f32, p: f64, q: f64| {
            let (bytes, _) = oracle::to_bytes(dtype, v);
            out[at] = (u32::from_le_bytes(bytes), Some((p + q, p.abs().max(q.abs()))));
        };
        let wide = |x: f32, y: f32| f64::from(x) * f64::from(y);
        put(first, a * c - b * s, wide(a, c), -wide(b, s));
        put(second, b * c + a * s, wide(b, c), wide(a, s));
    }
    out
}

fn check_head(what: &str, dtype: DType, got: &[u32], want: &[(u32, Option<(f64, f64)>)]) {
    for (i, (g, (w, exact))) in got.iter().zip(want).enumerate() {
        let Some((exact, term)) = exact else {
            assert_eq!(g, w, "{what}: element {i} is copied");
            continue;
        };
        let (value, wanted) = (oracle::from_code(dtype, *g), oracle::from_code(dtype, *w));
        if wanted.is_nan() {
            let canonical = if dtype == DType::F32 { 0x7FFF_FFFF } else { 0x7FFF };
            assert_eq!(*g, canonical, "{what}: element {i} is NaN");
            continue;
        }
        assert_eq!(g, w, "{what}: element {i}: got {value}, want {wanted}");
        if value.is_finite() {
            let bound = common::tolerance::forward_bound(dtype, *exact, *term) + 2f64.powi(-23) * term;
            assert!((f64::from(value) - exact).abs() <= bound, "{what}: element {i}: got {value}, exactly {exact}");
        }
    }
}

/// Sizes of a head: (head_dim, rotary_dim).
fn head_sizes(aligned: bool, rng: &mut StdRng) -> (usize, usize) {
    match aligned {
        true => [(128, 128), (64, 64), (128, 64), (64, 16), (80, 80), (96, 32), (128, 0), (24, 16), (256, 256)][rng.random_range(0..9)],
        false => {
            let d = rng.random_range(1..40);
            (d, 2 * rng.random_range(0..=d / 2))
        }
    }
}

fn plain_case(ctx: &Context, dtype: DType, aligned: bool, rng: &mut StdRng) {
    let (d, r) = head_sizes(aligned, rng);
    let how = rng.random_range(0..7);
    let (seq, heads) = (rng.random_range(1..40), rng.random_range(1..8));
    let batch = if how >= 5 { 1 } else { rng.random_range(1..4) };
    let (interleaved, backward, in_place) = (rng.random_bool(0.5), rng.random_bool(0.5), rng.random_bool(0.3));
    let table = if aligned {
        Table::new(ctx, 40, r, r / 2, 0)
    } else {
        Table::new(ctx, 40, r, r / 2 + rng.random_range(0..3), rng.random_range(0..4))
    };
    let p = Positions::new(ctx, how, seq, batch, table.rows, rng);
    let orders = [Order::Sbhd, Order::Bshd, Order::Bhsd];
    let x = Block::random(ctx, dtype, [seq, batch, heads, d], orders[rng.random_range(0..3)], aligned, rng);
    let y =
        if in_place { None } else { Some(Block::output(ctx, dtype, [seq, batch, heads, d], orders[rng.random_range(0..3)], aligned, rng)) };
    let before = x.codes();
    let args = RopeArgs {
        dtype,
        seq: seq as i64,
        batch: batch as i64,
        heads: heads as i64,
        head_dim: d as i64,
        x: x.view(),
        y: y.as_ref().unwrap_or(&x).view(),
        rotation: table.rotation(interleaved),
        places: p.places,
    };
    let what = format!(
        "{} seq {seq} batch {batch} heads {heads} head {d} rotary {r} interleaved {interleaved} backward {backward} positions {how} in place {in_place} aligned {aligned}",
        dtype.name()
    );
    // SAFETY: everything is live.
    unsafe {
        match backward {
            false => rope_fwd(ctx, &args, Stream::NULL),
            true => rope_bwd(ctx, &args, Stream::NULL),
        }
    }
    .unwrap_or_else(|e| panic!("{what}: {e}"));
    sync(ctx);
    if !in_place {
        assert!(x.codes() == before, "{what}: the input was written");
    }
    let got = y.as_ref().unwrap_or(&x).codes();
    for (i, (got, head)) in got.chunks(d).zip(before.chunks(d)).enumerate() {
        let want = expected(dtype, head, &table, p.rows[i / heads], interleaved, backward);
        check_head(&format!("{what}: head {i}"), dtype, got, &want);
    }
}

#[test]
fn every_element_has_its_bits() {
    let (ctx, mut rng) = (context(), rng("rope"));
    for dtype in HIGH {
        for round in 0..60 {
            plain_case(&ctx, dtype, round % 2 == 0, &mut rng);
        }
    }
}

/// The part and number of head `n` of a packed row, written out in full.
fn heads_of(order: QkvOrder, q_heads: usize, kv_heads: usize) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    match order {
        QkvOrder::Concatenated => {
            for (part, n) in [q_heads, kv_heads, kv_heads].into_iter().enumerate() {
                all.extend((0..n).map(|i| (part, i)));
            }
        }
        QkvOrder::Grouped => {
            let mut q = 0;
            for g in 0..kv_heads {
                for _ in 0..q_heads / kv_heads {
                    all.push((0, q));
                    q += 1;
                }
                all.extend([(1, g), (2, g)]);
            }
        }
    }
    all
}

fn packed_case(ctx: &Context, dtype: DType, aligned: bool, rng: &mut StdRng) {
    let (d, r) = head_sizes(aligned, rng);
    let how = rng.random_range(0..7);
    let seq = rng.random_range(1..30);
    let batch = if how >= 5 { 1 } else { rng.random_range(1..4) };
    let order = if rng.random_bool(0.5) { QkvOrder::Concatenated } else { QkvOrder::Grouped };
    let kv_heads = rng.random_range(1..4);
    let q_heads = if order == QkvOrder::Grouped { kv_heads * rng.random_range(0..4) } else { rng.random_range(0..6) };
    let heads = q_heads + 2 * kv_heads;
    let interleaved = rng.random_bool(0.5);
    let table = Table::new(ctx, 40, r, r / 2, if aligned { 0 } else { rng.random_range(0..4) });
    let p = Positions::new(ctx, how, seq, batch, table.rows, rng);
    let packed = |rng: &mut StdRng| if rng.random_bool(0.5) { Order::Sbhd } else { Order::Bshd };
    let what = format!(
        "{} {order:?} seq {seq} batch {batch} q {q_heads} kv {kv_heads} head {d} rotary {r} interleaved {interleaved} positions {how}",
        dtype.name()
    );
    let (first, kv_order) = (packed(rng), packed(rng));
    let make = |order, heads: usize, write: bool, rng: &mut StdRng| {
        let dims = [seq, batch, heads, d];
        // Heads lie side by side.
        match write {
            true => Block::dense_output(ctx, dtype, dims, order, aligned, rng),
            false => Block::dense_random(ctx, dtype, dims, order, aligned, rng),
        }
    };
    for backward in [false, true] {
        let whole = make(first, heads, backward, rng);
        let q_order = packed(rng);
        let parts =
            [make(q_order, q_heads, !backward, rng), make(kv_order, kv_heads, !backward, rng), make(kv_order, kv_heads, !backward, rng)];
        // k and v share their strides.
        assert_eq!(parts[1].view().seq_stride, parts[2].view().seq_stride);
        let args = RopeQkvArgs {
            dtype,
            seq: seq as i64,
            batch: batch as i64,
            q_heads: q_heads as i64,
            kv_heads: kv_heads as i64,
            head_dim: d as i64,
            order,
            qkv: whole.view(),
            q: parts[0].view(),
            k: parts[1].view(),
            v: parts[2].view(),
            rotation: table.rotation(interleaved),
            places: p.places,
        };
        let before = if backward { parts.iter().map(Block::codes).collect() } else { vec![whole.codes()] };
        // SAFETY: everything is live.
        unsafe {
            match backward {
                false => rope_qkv_fwd(ctx, &args, Stream::NULL),
                true => rope_qkv_bwd(ctx, &args, Stream::NULL),
            }
        }
        .unwrap_or_else(|e| panic!("{what}: {e}"));
        sync(ctx);
        let (packed, split) = (whole.codes(), parts.each_ref().map(Block::codes));
        match backward {
            false => assert!(packed == before[0], "{what}: the input was written"),
            true => assert!(split.iter().zip(&before).all(|(a, b)| a == b), "{what}: an input was written"),
        }
        let many = [q_heads, kv_heads, kv_heads];
        for token in 0..seq * batch {
            for (n, (part, number)) in heads_of(order, q_heads, kv_heads).into_iter().enumerate() {
                let row = &packed[(token * heads + n) * d..][..d];
                let own = &split[part][(token * many[part] + number) * d..][..d];
                let (from, to) = if backward { (own, row) } else { (row, own) };
                let place = if part < 2 { p.rows[token] } else { None };
                let want = expected(dtype, from, &table, place, interleaved, backward);
                check_head(&format!("{what} backward {backward}: token {token} part {part} head {number}"), dtype, to, &want);
            }
        }
    }
}

#[test]
fn packed_qkv_is_split_and_put_together() {
    let (ctx, mut rng) = (context(), rng("rope_qkv"));
    for dtype in HIGH {
        for round in 0..24 {
            packed_case(&ctx, dtype, round % 2 == 0, &mut rng);
        }
    }
}

/// A token with more work than a block has threads.
#[test]
fn many_heads() {
    let (ctx, mut rng) = (context(), rng("many_heads"));
    for (dtype, heads, d) in [(DType::Bf16, 300, 128), (DType::F32, 700, 10)] {
        let table = Table::new(&ctx, 4, d, d / 2, 0);
        let x = Block::dense_random(&ctx, dtype, [3, 1, heads, d], Order::Sbhd, true, &mut rng);
        let y = Block::dense_output(&ctx, dtype, [3, 1, heads, d], Order::Sbhd, true, &mut rng);
        let args = RopeArgs {
            dtype,
            seq: 3,
            batch: 1,
            heads: heads as i64,
            head_dim: d as i64,
            x: x.view(),
            y: y.view(),
            rotation: table.rotation(false),
            places: Places::default(),
        };
        // SAFETY: everything is live.
        unsafe { rope_fwd(&ctx, &args, Stream::NULL) }.unwrap();
        sync(&ctx);
        for (i, (got, head)) in y.codes().chunks(d).zip(x.codes().chunks(d)).enumerate() {
            let want = expected(dtype, head, &table, Some((i / heads) as i64), false, false);
            check_head(&format!("head {i}"), dtype, got, &want);
        }
    }
}

#[test]
fn empty_tensors_need_no_memory() {
    let ctx = context();
    let args = |seq, batch, heads, head_dim| RopeArgs {
        dtype: DType::Bf16,
        seq,
        batch,
        heads,
        head_dim,
        x: Default::default(),
        y: Default::default(),
        rotation: Rotation { interleaved: false, rotary_dim: 0, cos: Ptr::NULL, sin: Ptr::NULL, table_rows: 0, table_ld: 0 },
        places: Places::default(),
    };
    for a in [args(0, 2, 3, 8), args(2, 0, 3, 8), args(2, 2, 0, 8), args(2, 2, 2, 0)] {
        // SAFETY: nothing is read or written.
        unsafe { rope_fwd(&ctx, &a, Stream::NULL) }.unwrap();
    }
    let refused = RopeArgs { rotation: Rotation { rotary_dim: 3, ..args(0, 1, 1, 8).rotation }, ..args(0, 1, 1, 8) };
    // SAFETY: as above.
    let e = unsafe { rope_fwd(&ctx, &refused, Stream::NULL) }.unwrap_err();
    assert_eq!(e.status(), Status::InvalidShape);
    assert!(e.message().contains("rotary_dim"));
}

#[test]
fn a_table_holds_the_usual_angles() {
    let (mut cos, mut sin) = (vec![f32::NAN; 5 * 4], vec![f32::NAN; 5 * 4]);
    rope_table(1000, 8, 10_000.0, &mut cos, &mut sin).unwrap();
    for row in 0..5 {
        for i in 0..4 {
            let angle = (1000 + row) as f64 / 10f64.powi(i as i32);
            assert!((f64::from(cos[row * 4 + i]) - angle.cos()).abs() < 1e-7 && (f64::from(sin[row * 4 + i]) - angle.sin()).abs() < 1e-7);
        }
    }
    assert_eq!(rope_table(0, 7, 1.0, &mut [], &mut []).unwrap_err().status(), Status::InvalidShape);
    for base in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(rope_table(0, 8, base, &mut [], &mut []).unwrap_err().status(), Status::InvalidValue);
    }
}
