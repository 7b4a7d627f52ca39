//! A Linear of the CPU back end, forward and backward, in bf16 and FP8; and what a call costs before any work: on the prepare stream
//! everything is checked and planned, and nothing runs.

mod common;

use common::{context, matrix};
use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use nvte::{
    layers::{BackwardArgs, ForwardArgs, Kind, Layer, LayerCall, LayerConfig, LayerFlags, NormConfig, Rows},
    numerics::{DelayedScaling, Float8CurrentScaling, Recipe},
    ops::activation::Activation,
    Buffer, Context, DType, Ptr, Stream, TensorView,
};

/// A layer with its data: everything a call needs.
struct Made {
    layer: Layer,
    forward: ForwardArgs,
    backward: BackwardArgs,
    _memory: Vec<Buffer>,
}

fn make(ctx: &Context, kind: Kind, tokens: i64, features: i64, recipe: Option<Recipe>) -> Made {
    let mlp = matches!(kind, Kind::NormMlp(..));
    let ffn_features = if mlp { 4 * features } else { 0 };
    let config = LayerConfig { kind, ffn_features, ..LayerConfig::linear(features, features, DType::Bf16, recipe) };
    let layer = Layer::new(ctx, &config).expect("a layer");
    let flags = LayerFlags::training();
    let (sizes, mut memory) = (layer.sizes(&flags), Vec::new());
    let mut bytes = |n: u64| {
        let buffer = Buffer::from_slice(ctx, &vec![0u8; n as usize]).expect("memory");
        let at = buffer.ptr();
        memory.push(buffer);
        at
    };
    let (saved, workspace) = (sizes.saved.bytes(tokens), sizes.forward_workspace.bytes(tokens).max(sizes.backward_workspace.bytes(tokens)));
    let call = LayerCall {
        tokens,
        flags,
        saved: bytes(saved.max(1)),
        saved_bytes: saved,
        workspace: bytes(workspace),
        workspace_bytes: workspace,
        live: bytes(4 * u64::from(sizes.slots)),
        scale: Ptr::NULL,
        skip_refresh: Ptr::NULL,
    };
    let mut values = |dtype, rows, cols| {
        let (buffer, view) = matrix(ctx, dtype, rows, cols);
        memory.push(buffer);
        view
    };
    let rows = |t: TensorView| Rows { data: t.data, ld: t.ld };
    let width = if mlp { ffn_features } else { features };
    let mut weights = || [rows(values(DType::Bf16, width, features)), rows(values(DType::Bf16, features, width))];
    let (w, dw) = (weights(), weights());
    let [x, y, dy, dx] = [(); 4].map(|()| rows(values(DType::Bf16, tokens, features)));
    let db = [(); 2].map(|()| values(DType::Bf16, 1, width).data);
    let forward =
        ForwardArgs { call, x, gamma: Ptr::NULL, beta: Ptr::NULL, weights: w, biases: [Ptr::NULL; 2], y, norm_out: Rows::default() };
    let backward = BackwardArgs {
        call,
        dy,
        x,
        gamma: Ptr::NULL,
        weights: w,
        dnorm_out: Rows::default(),
        dx,
        dgamma: Ptr::NULL,
        dbeta: Ptr::NULL,
        dw,
        dw_dtype: DType::Bf16,
        db,
    };
    Made { layer, forward, backward, _memory: memory }
}

fn recipes() -> [(&'static str, Option<Recipe>); 3] {
    [
        ("bf16", None),
        ("FP8 delayed", Some(Recipe::Delayed(DelayedScaling::default()))),
        ("FP8 current", Some(Recipe::Current(Float8CurrentScaling::default()))),
    ]
}

fn linear(c: &mut Criterion) {
    const TOKENS: i64 = 256;
    const FEATURES: i64 = 1024;
    let mut group = c.benchmark_group("layers");
    group.throughput(Throughput::Elements((6 * TOKENS * FEATURES * FEATURES) as u64)).sample_size(10);
    for threads in [None, Some(1)] {
        let (ctx, name) = context(threads);
        for (how, recipe) in recipes() {
            let m = make(&ctx, Kind::Linear, TOKENS, FEATURES, recipe);
            group.bench_function(name(&format!("Linear 1024, 256 tokens, forward and backward, {how}")), |b| {
                // SAFETY: all memory is live.
                b.iter(|| unsafe {
                    m.layer.forward(&m.forward, None, Stream::NULL)?;
                    m.layer.backward(&m.backward, None, Stream::NULL)
                })
            });
        }
    }
}

fn host(c: &mut Criterion) {
    let mut group = c.benchmark_group("layers, checks and plans alone");
    let (ctx, _) = context(Some(1));
    let norm = NormConfig { rms: false, eps: 1e-5, zero_centered_gamma: false };
    for (kind, what) in
        [(Kind::Linear, "Linear"), (Kind::NormLinear(norm), "LayerNormLinear"), (Kind::NormMlp(norm, Activation::Gelu), "LayerNormMLP")]
    {
        for (how, recipe) in recipes() {
            let m = make(&ctx, kind, 16, 64, recipe);
            group.bench_function(format!("{what} forward, {how}"), |b| {
                // SAFETY: all memory is live.
                b.iter(|| unsafe { m.layer.forward(&m.forward, None, Stream::PREPARE) })
            });
            group.bench_function(format!("{what} backward, {how}"), |b| {
                // SAFETY: as above.
                b.iter(|| unsafe { m.layer.backward(&m.backward, None, Stream::PREPARE) })
            });
        }
    }
}

criterion_group!(benches, linear, host);
criterion_main!(benches);
