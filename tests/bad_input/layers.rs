//! Layers. A description's call makes a layer, runs one pass and ends the layer: so faults of the context reach it too.

use std::{mem::size_of, ptr};

use nvte::capi::{layer_args::*, layers::*, types::*};

use super::framework::{create, message, Call, Fault, Function, Input, Output, Pointer};
use nvte::capi::context::{nvte_context_destroy, nvte_context_trim};

const TOKENS: i64 = 5;
const K: i64 = 12;
const N: i64 = 8;
const FLAGS: u32 = NVTE_LAYER_NEEDS_DX | NVTE_LAYER_NEEDS_DW | NVTE_LAYER_NEEDS_DW2 | NVTE_LAYER_NEEDS_DNORM;

/// Functions tried by [`the_rest`].
pub const BY_HAND: [&str; 5] =
    ["nvte_linear_create", "nvte_layernorm_linear_create", "nvte_layernorm_mlp_create", "nvte_layer_sizes", "nvte_layer_destroy"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Linear,
    NormLinear,
    Mlp,
}

fn config(kind: Kind) -> nvte_layer_config_t {
    nvte_layer_config_t {
        struct_size: size_of::<nvte_layer_config_t>() as u32,
        dtype: NVTE_F32,
        param_dtype: NVTE_BF16,
        recipe: NVTE_RECIPE_DELAYED,
        format: NVTE_FORMAT_HYBRID,
        margin: 0,
        epsilon: 0.0,
        power_of_two: 0,
        accumulate_fprop: 0,
        accumulate_dgrad: 0,
        accumulate_wgrad: 0,
        rmsnorm: 0,
        zero_centered_gamma: 0,
        activation: 0,
        eps: if kind == Kind::Linear { 0.0 } else { 1e-5 },
        reserved: 0,
        in_features: K,
        out_features: if kind == Kind::Mlp { 0 } else { N },
        ffn_features: if kind == Kind::Mlp { N } else { 0 },
    }
}

fn make(ctx: nvte_context_t, kind: Kind, config: *const nvte_layer_config_t, layer: *mut nvte_layer_t) -> nvte_status_t {
    // SAFETY: faults are what the function must see.
    unsafe {
        match kind {
            Kind::Linear => nvte_linear_create(ctx, config, layer),
            Kind::NormLinear => nvte_layernorm_linear_create(ctx, config, layer),
            Kind::Mlp => nvte_layernorm_mlp_create(ctx, config, layer),
        }
    }
}

/// Makes a layer for one call.
fn with(c: &Call, kind: Kind, run: impl FnOnce(nvte_layer_t) -> nvte_status_t) -> nvte_status_t {
    let mut layer = ptr::null_mut();
    let status = make(c.ctx, kind, &config(kind), &mut layer);
    if status != NVTE_OK {
        return status;
    }
    let status = run(layer);
    assert_eq!(nvte_layer_destroy(layer), NVTE_OK);
    status
}

fn sizes(c: &Call, kind: Kind) -> nvte_layer_sizes_t {
    // SAFETY: plain numbers.
    let mut found: nvte_layer_sizes_t = unsafe { std::mem::zeroed() };
    found.struct_size = size_of::<nvte_layer_sizes_t>() as u32;
    // SAFETY: a sized struct.
    assert_eq!(with(c, kind, |layer| unsafe { nvte_layer_sizes(layer, FLAGS, &mut found) }), NVTE_OK);
    found
}

/// The cache that the number "cache" stands for: 0 is none, the others are wrong.
fn cache(c: &Call) -> nvte_weight_cache_t {
    let which = c.number("cache") as u32;
    let workspace = c.workspace;
    nvte_weight_cache_t {
        struct_size: if which == 1 { 8 } else { size_of::<nvte_weight_cache_t>() as u32 },
        valid: if which == 3 { 255 } else { 0 },
        data: [workspace, ptr::null_mut(), workspace.wrapping_byte_add(8)][(which as usize).saturating_sub(3).min(2)],
        bytes: if which == 2 { 8 } else { 1 << 30 },
    }
}

/// Fills an argument struct: what all share, then the fields given.
macro_rules! arguments {
    ($type:ident, $c:ident, $cache:ident, $($field:ident: $value:expr),* $(,)?) => {
        $type {
            struct_size: $c.struct_size::<$type>(),
            flags: $c.number("flags") as u32,
            tokens: $c.number("tokens") as i64,
            saved: $c.pointer("saved"),
            saved_bytes: $c.number("saved_bytes") as u64,
            workspace: $c.workspace,
            workspace_bytes: $c.workspace_bytes,
            live: $c.pointer("live"),
            scale: $c.pointer("scale"),
            weight_cache: match $c.number("cache") as u32 {
                0 => ptr::null_mut(),
                6 => ptr::from_mut(&mut $cache).wrapping_byte_add(4),
                _ => &mut $cache,
            },
            skip_refresh: if $c.number("skip") == 1.0 { $c.pointer("scale") } else { ptr::null() },
            $($field: $value),*
        }
    };
}

fn stride(c: &Call, name: &str) -> i64 {
    c.number(name) as i64
}

/// What is the same for all passes.
fn pass(name: &'static str, kind: Kind, forward: bool, call: fn(&Call) -> nvte_status_t, pointers: Vec<Pointer>) -> Function {
    let mut f = Function::new(name, call);
    let slots = if kind == Kind::Mlp { 6 } else { 3 };
    let ctx = create();
    let probe = Call::of_context(ctx);
    let s = sizes(&probe, kind);
    assert_eq!(nvte_context_destroy(ctx), NVTE_OK);
    let saved = s.saved_per_token * TOKENS as u64 + s.saved_fixed;
    f.pointers = pointers;
    let role = if forward { Output } else { Input };
    f.pointers.push(Pointer::new("saved", role, saved as usize, 16, true));
    f.pointers.push(Pointer::words("live", Output, slots).optional());
    f.pointers.push(Pointer::words("scale", Output, slots).optional());
    f.numbers = vec![
        ("tokens", TOKENS as f64),
        ("flags", f64::from(FLAGS)),
        ("saved_bytes", saved as f64),
        ("cache", 0.0),
        ("skip", 0.0),
        ("dw_dtype", f64::from(NVTE_F32)),
        ("reserved", 0.0),
        ("ldk", K as f64),
        ("ldn", if kind == Kind::Mlp { K } else { N } as f64),
        ("ldw", K as f64),
    ];
    f.has_args = true;
    f.workspace = Some(match (kind, forward) {
        (Kind::Linear, true) => |c| workspace(&sizes(c, Kind::Linear), true),
        (Kind::Linear, false) => |c| workspace(&sizes(c, Kind::Linear), false),
        (Kind::NormLinear, true) => |c| workspace(&sizes(c, Kind::NormLinear), true),
        (Kind::NormLinear, false) => |c| workspace(&sizes(c, Kind::NormLinear), false),
        (Kind::Mlp, true) => |c| workspace(&sizes(c, Kind::Mlp), true),
        (Kind::Mlp, false) => |c| workspace(&sizes(c, Kind::Mlp), false),
    });
    for (name, value, status, text) in [
        ("tokens", -1.0, NVTE_ERROR_INVALID_SHAPE, "tokens"),
        ("tokens", 2f64.powi(41), NVTE_ERROR_SIZE_OVERFLOW, "tokens"),
        ("tokens", 2f64.powi(39), NVTE_ERROR_WORKSPACE_TOO_SMALL, "saved_bytes"),
        ("flags", 512.0, NVTE_ERROR_INVALID_ENUM, "flags"),
        ("flags", f64::from(FLAGS | NVTE_LAYER_CALIBRATE), NVTE_ERROR_INVALID_DTYPE, "param_dtype"),
        ("saved_bytes", saved as f64 - 1.0, NVTE_ERROR_WORKSPACE_TOO_SMALL, "saved_bytes"),
        ("flags", f64::from(FLAGS | NVTE_LAYER_SAVE_WEIGHT), NVTE_ERROR_WORKSPACE_TOO_SMALL, "saved_bytes"),
        ("cache", 1.0, NVTE_ERROR_INVALID_STRUCT_SIZE, "weight_cache.struct_size"),
        ("cache", 2.0, NVTE_ERROR_WORKSPACE_TOO_SMALL, "weight_cache.bytes"),
        ("cache", 3.0, NVTE_ERROR_INVALID_VALUE, "weight_cache.valid"),
        ("cache", 4.0, NVTE_ERROR_NULL_POINTER, "weight_cache.data"),
        ("cache", 5.0, NVTE_ERROR_MISALIGNED, "weight_cache.data"),
        ("cache", 6.0, NVTE_ERROR_MISALIGNED, "weight_cache"),
        ("skip", 1.0, NVTE_ERROR_UNSUPPORTED, "skip_refresh"),
        ("ldk", K as f64 - 1.0, NVTE_ERROR_INVALID_STRIDE, "x.ld"),
        ("ldk", 9e18, NVTE_ERROR_SIZE_OVERFLOW, "x"),
        ("ldn", 7.0, NVTE_ERROR_INVALID_STRIDE, "y.ld"),
        ("ldw", K as f64 - 1.0, NVTE_ERROR_INVALID_STRIDE, if kind == Kind::Mlp { "fc1_weight" } else { "weight" }),
    ] {
        f.faults.push(Fault::new(format!("{name} = {value}"), status, text, move |c| c.set(name, value)));
    }
    if !forward {
        for (name, value, status, text) in [
            ("dw_dtype", 9.0, NVTE_ERROR_INVALID_ENUM, "dw_dtype"),
            ("dw_dtype", f64::from(NVTE_E4M3), NVTE_ERROR_INVALID_DTYPE, "dw_dtype"),
            ("reserved", 1.0, NVTE_ERROR_UNSUPPORTED, "reserved"),
        ] {
            f.faults.push(Fault::new(format!("{name} = {value}"), status, text, move |c| c.set(name, value)));
        }
        let unasked = match kind {
            Kind::Linear => [(NVTE_LAYER_NEEDS_DX, "dx"), (NVTE_LAYER_NEEDS_DW, "dw")],
            Kind::NormLinear => [(NVTE_LAYER_NEEDS_DNORM, "dgamma"), (NVTE_LAYER_NEEDS_DW, "dw")],
            Kind::Mlp => [(NVTE_LAYER_NEEDS_DW, "dfc1_weight"), (NVTE_LAYER_NEEDS_DW2, "dfc2_weight")],
        };
        for (bit, text) in unasked {
            let change = move |c: &mut Call| c.set("flags", f64::from(FLAGS & !bit));
            f.faults.push(Fault::new(format!("{text} unasked"), NVTE_ERROR_UNSUPPORTED, text, change));
        }
    }
    f
}

fn workspace(s: &nvte_layer_sizes_t, forward: bool) -> u64 {
    match forward {
        true => s.forward_workspace_per_token * TOKENS as u64 + s.forward_workspace_fixed,
        false => s.backward_workspace_per_token * TOKENS as u64 + s.backward_workspace_fixed,
    }
}

fn matrix(name: &'static str, forward_input: bool, rows: i64, cols: i64, size: usize) -> Pointer {
    Pointer::new(name, if forward_input { Input } else { Output }, (rows * cols) as usize * size, size, true)
}

fn linear() -> Vec<Function> {
    let forward: fn(&Call) -> nvte_status_t = |c| {
        let mut cache = cache(c);
        let a = arguments!(nvte_linear_fwd_args_t, c, cache, x: c.pointer("x"), ldx: stride(c, "ldk"), weight: c.pointer("weight"),
            ldw: stride(c, "ldw"), bias: c.pointer("bias"), y: c.pointer("y"), ldy: stride(c, "ldn"));
        // SAFETY: the structs live here; faults are what the function must see.
        with(c, Kind::Linear, |layer| unsafe { nvte_linear_fwd(layer, c.args(&a), c.stream) })
    };
    let backward: fn(&Call) -> nvte_status_t = |c| {
        let mut cache = cache(c);
        let a = arguments!(nvte_linear_bwd_args_t, c, cache, dy: c.pointer("dy"), lddy: stride(c, "ldn"), x: ptr::null(), ldx: 0,
            weight: c.pointer("weight"), ldw: stride(c, "ldw"), dx: c.pointer("dx"), lddx: stride(c, "ldk"), dw: c.pointer("dw"),
            lddw: K, db: c.pointer("db"), dw_dtype: c.number("dw_dtype") as i32, reserved: c.number("reserved") as u32);
        // SAFETY: as above.
        with(c, Kind::Linear, |layer| unsafe { nvte_linear_bwd(layer, c.args(&a), c.stream) })
    };
    let ins = vec![
        matrix("x", true, TOKENS, K, 4),
        matrix("weight", true, N, K, 2),
        matrix("bias", true, 1, N, 2).optional(),
        matrix("y", false, TOKENS, N, 4),
    ];
    let outs = vec![
        matrix("dy", true, TOKENS, N, 4),
        matrix("weight", true, N, K, 2),
        matrix("dx", false, TOKENS, K, 4),
        matrix("dw", false, N, K, 4).optional(),
        matrix("db", false, 1, N, 2).optional(),
    ];
    let mut backward = pass("nvte_linear_bwd", Kind::Linear, false, backward, outs);
    backward.faults.push(Fault::new("dw misaligned rows", NVTE_ERROR_MISALIGNED, "dw", |c| {
        let p = c.pointer::<u8>("dw").wrapping_add(2);
        c.set_pointer("dw", p.cast());
    }));
    vec![pass("nvte_linear_fwd", Kind::Linear, true, forward, ins), backward]
}

fn norm_linear() -> Vec<Function> {
    let forward: fn(&Call) -> nvte_status_t = |c| {
        let mut cache = cache(c);
        let a = arguments!(nvte_layernorm_linear_fwd_args_t, c, cache, x: c.pointer("x"), ldx: stride(c, "ldk"),
            gamma: c.pointer("gamma"), beta: c.pointer("beta"), weight: c.pointer("weight"), ldw: stride(c, "ldw"),
            bias: c.pointer("bias"), y: c.pointer("y"), ldy: stride(c, "ldn"), norm_out: c.pointer("norm_out"), ld_norm_out: K);
        // SAFETY: the structs live here; faults are what the function must see.
        with(c, Kind::NormLinear, |layer| unsafe { nvte_layernorm_linear_fwd(layer, c.args(&a), c.stream) })
    };
    let backward: fn(&Call) -> nvte_status_t = |c| {
        let mut cache = cache(c);
        let a = arguments!(nvte_layernorm_linear_bwd_args_t, c, cache, dy: c.pointer("dy"), lddy: stride(c, "ldn"), x: c.pointer("x"),
            ldx: stride(c, "ldk"), gamma: c.pointer("gamma"), weight: c.pointer("weight"), ldw: stride(c, "ldw"),
            dnorm_out: c.pointer("dnorm_out"), ld_dnorm_out: K, dx: c.pointer("dx"), lddx: K, dgamma: c.pointer("dgamma"),
            dbeta: c.pointer("dbeta"), dw: c.pointer("dw"), lddw: K, db: c.pointer("db"), dw_dtype: c.number("dw_dtype") as i32,
            reserved: c.number("reserved") as u32);
        // SAFETY: as above.
        with(c, Kind::NormLinear, |layer| unsafe { nvte_layernorm_linear_bwd(layer, c.args(&a), c.stream) })
    };
    let ins = vec![
        matrix("x", true, TOKENS, K, 4),
        matrix("gamma", true, 1, K, 2).optional(),
        matrix("beta", true, 1, K, 2).optional(),
        matrix("weight", true, N, K, 2),
        matrix("bias", true, 1, N, 2).optional(),
        matrix("y", false, TOKENS, N, 4),
        matrix("norm_out", false, TOKENS, K, 4).optional(),
    ];
    let outs = vec![
        matrix("dy", true, TOKENS, N, 4),
        matrix("x", true, TOKENS, K, 4),
        matrix("gamma", true, 1, K, 2).optional(),
        matrix("weight", true, N, K, 2),
        matrix("dnorm_out", true, TOKENS, K, 4).optional(),
        matrix("dx", false, TOKENS, K, 4),
        matrix("dgamma", false, 1, K, 2).optional(),
        matrix("dbeta", false, 1, K, 2).optional(),
        matrix("dw", false, N, K, 4).optional(),
        matrix("db", false, 1, N, 2).optional(),
    ];
    vec![
        pass("nvte_layernorm_linear_fwd", Kind::NormLinear, true, forward, ins),
        pass("nvte_layernorm_linear_bwd", Kind::NormLinear, false, backward, outs),
    ]
}

fn mlp() -> Vec<Function> {
    let forward: fn(&Call) -> nvte_status_t = |c| {
        let mut cache = cache(c);
        let a = arguments!(nvte_layernorm_mlp_fwd_args_t, c, cache, x: c.pointer("x"), ldx: stride(c, "ldk"), gamma: c.pointer("gamma"),
            beta: c.pointer("beta"), fc1_weight: c.pointer("fc1_weight"), ld_fc1_weight: stride(c, "ldw"),
            fc1_bias: c.pointer("fc1_bias"), fc2_weight: c.pointer("fc2_weight"), ld_fc2_weight: N, fc2_bias: c.pointer("fc2_bias"),
            y: c.pointer("y"), ldy: stride(c, "ldn"), norm_out: ptr::null_mut(), ld_norm_out: 0);
        // SAFETY: the structs live here; faults are what the function must see.
        with(c, Kind::Mlp, |layer| unsafe { nvte_layernorm_mlp_fwd(layer, c.args(&a), c.stream) })
    };
    let backward: fn(&Call) -> nvte_status_t = |c| {
        let mut cache = cache(c);
        let a = arguments!(nvte_layernorm_mlp_bwd_args_t, c, cache, dy: c.pointer("dy"), lddy: stride(c, "ldn"), x: c.pointer("x"),
            ldx: stride(c, "ldk"), gamma: ptr::null(), fc1_weight: c.pointer("fc1_weight"), ld_fc1_weight: stride(c, "ldw"),
            fc2_weight: c.pointer("fc2_weight"), ld_fc2_weight: N, dnorm_out: ptr::null(), ld_dnorm_out: 0, dx: c.pointer("dx"),
            lddx: K, dgamma: ptr::null_mut(), dbeta: ptr::null_mut(), dfc1_weight: c.pointer("dfc1_weight"), ld_dfc1_weight: K,
            dfc1_bias: c.pointer("dfc1_bias"), dfc2_weight: c.pointer("dfc2_weight"), ld_dfc2_weight: N,
            dfc2_bias: c.pointer("dfc2_bias"), dw_dtype: c.number("dw_dtype") as i32, reserved: c.number("reserved") as u32);
        // SAFETY: as above.
        with(c, Kind::Mlp, |layer| unsafe { nvte_layernorm_mlp_bwd(layer, c.args(&a), c.stream) })
    };
    let ins = vec![
        matrix("x", true, TOKENS, K, 4),
        matrix("gamma", true, 1, K, 2).optional(),
        matrix("beta", true, 1, K, 2).optional(),
        matrix("fc1_weight", true, N, K, 2),
        matrix("fc1_bias", true, 1, N, 2).optional(),
        matrix("fc2_weight", true, K, N, 2),
        matrix("fc2_bias", true, 1, K, 2).optional(),
        matrix("y", false, TOKENS, K, 4),
    ];
    let outs = vec![
        matrix("dy", true, TOKENS, K, 4),
        matrix("x", true, TOKENS, K, 4),
        matrix("fc1_weight", true, N, K, 2),
        matrix("fc2_weight", true, K, N, 2),
        matrix("dx", false, TOKENS, K, 4),
        matrix("dfc1_weight", false, N, K, 4).optional(),
        matrix("dfc1_bias", false, 1, N, 2).optional(),
        matrix("dfc2_weight", false, K, N, 4).optional(),
        matrix("dfc2_bias", false, 1, K, 2).optional(),
    ];
    vec![pass("nvte_layernorm_mlp_fwd", Kind::Mlp, true, forward, ins), pass("nvte_layernorm_mlp_bwd", Kind::Mlp, false, backward, outs)]
}

pub fn functions() -> Vec<Function> {
    [linear(), norm_linear(), mlp()].into_iter().flatten().collect()
}

/// Descriptions, sizes and the end of a handle.
pub fn the_rest() {
    let ctx = create();
    let mut layer = ptr::null_mut();
    let refused = |status: i32, wanted: i32, text: &str| {
        assert_eq!(status, wanted, "{text}: {}", message());
        assert!(message().contains(text), "{text}: {}", message());
    };
    type Change = fn(&mut nvte_layer_config_t);
    let all: [(i32, &str, Change); 18] = [
        (NVTE_ERROR_INVALID_STRUCT_SIZE, "config.struct_size", |c| c.struct_size -= 4),
        (NVTE_ERROR_INVALID_STRUCT_SIZE, "config.struct_size", |c| c.struct_size = u32::MAX),
        (NVTE_ERROR_INVALID_ENUM, "dtype", |c| c.dtype = 5),
        (NVTE_ERROR_INVALID_DTYPE, "dtype", |c| c.dtype = NVTE_E4M3),
        (NVTE_ERROR_INVALID_DTYPE, "param_dtype", |c| c.param_dtype = NVTE_E5M2),
        (NVTE_ERROR_INVALID_DTYPE, "param_dtype", |c| c.recipe = NVTE_RECIPE_NONE),
        (NVTE_ERROR_INVALID_ENUM, "recipe", |c| c.recipe = 3),
        (NVTE_ERROR_INVALID_ENUM, "format", |c| c.format = 2),
        (NVTE_ERROR_INVALID_VALUE, "margin", |c| c.margin = 1000),
        (NVTE_ERROR_INVALID_VALUE, "epsilon", |c| c.epsilon = f32::NAN),
        (NVTE_ERROR_INVALID_ENUM, "power_of_two", |c| c.power_of_two = 2),
        (NVTE_ERROR_INVALID_ENUM, "accumulate_fprop", |c| c.accumulate_fprop = 3),
        (NVTE_ERROR_INVALID_ENUM, "accumulate_dgrad", |c| c.accumulate_dgrad = -1),
        (NVTE_ERROR_INVALID_ENUM, "accumulate_wgrad", |c| c.accumulate_wgrad = 9),
        (NVTE_ERROR_UNSUPPORTED, "reserved", |c| c.reserved = 1),
        (NVTE_ERROR_INVALID_SHAPE, "in_features", |c| c.in_features = -1),
        (NVTE_ERROR_SIZE_OVERFLOW, "in_features", |c| c.in_features = i64::MAX),
        (NVTE_ERROR_SIZE_OVERFLOW, "out_features", |c| (c.in_features, c.out_features) = (1 << 30, (1 << 30) + 1)),
    ];
    for kind in [Kind::Linear, Kind::NormLinear, Kind::Mlp] {
        for (status, text, change) in all {
            let mut c = config(kind);
            change(&mut c);
            refused(make(ctx, kind, &c, &mut layer), status, text);
        }
        let c = config(kind);
        refused(make(ctx, kind, ptr::null(), &mut layer), NVTE_ERROR_NULL_POINTER, "config");
        refused(make(ctx, kind, ptr::from_ref(&c).wrapping_byte_add(4), &mut layer), NVTE_ERROR_MISALIGNED, "config");
        refused(make(ctx, kind, &c, ptr::null_mut()), NVTE_ERROR_NULL_POINTER, "layer");
        refused(make(ptr::null_mut(), kind, &c, &mut layer), NVTE_ERROR_INVALID_HANDLE, "context");
        assert!(layer.is_null(), "a refused call wrote the handle");
    }
    for (kind, status, text, change) in [
        (Kind::Linear, NVTE_ERROR_UNSUPPORTED, "rmsnorm", (|c| c.rmsnorm = 1) as Change),
        (Kind::Linear, NVTE_ERROR_UNSUPPORTED, "zero_centered_gamma", |c| c.zero_centered_gamma = 1),
        (Kind::Linear, NVTE_ERROR_UNSUPPORTED, "eps = 0.5:", |c| c.eps = 0.5),
        (Kind::Linear, NVTE_ERROR_INVALID_VALUE, "ffn_features", |c| c.ffn_features = 1),
        (Kind::NormLinear, NVTE_ERROR_INVALID_ENUM, "rmsnorm", |c| c.rmsnorm = 2),
        (Kind::NormLinear, NVTE_ERROR_INVALID_ENUM, "zero_centered_gamma", |c| c.zero_centered_gamma = -1),
        (Kind::NormLinear, NVTE_ERROR_INVALID_VALUE, "eps", |c| c.eps = f32::INFINITY),
        (Kind::NormLinear, NVTE_ERROR_INVALID_VALUE, "ffn_features", |c| c.ffn_features = 8),
        (Kind::Mlp, NVTE_ERROR_INVALID_ENUM, "activation", |c| c.activation = 6),
        (Kind::Mlp, NVTE_ERROR_INVALID_SHAPE, "out_features", |c| c.out_features = 13),
        (Kind::Mlp, NVTE_ERROR_INVALID_SHAPE, "ffn_features", |c| c.ffn_features = -8),
    ] {
        let mut c = config(kind);
        change(&mut c);
        refused(make(ctx, kind, &c, &mut layer), status, text);
    }
    let mut c = config(Kind::Mlp);
    c.out_features = K;
    assert_eq!(make(ctx, Kind::Mlp, &c, &mut layer), NVTE_OK);
    // SAFETY: null, live or sized structs, here and below.
    unsafe {
        let mut s: nvte_layer_sizes_t = std::mem::zeroed();
        refused(nvte_layer_sizes(layer, 0, &mut s), NVTE_ERROR_INVALID_STRUCT_SIZE, "sizes.struct_size");
        s.struct_size = size_of::<nvte_layer_sizes_t>() as u32;
        refused(nvte_layer_sizes(layer, 512, &mut s), NVTE_ERROR_INVALID_ENUM, "flags");
        refused(nvte_layer_sizes(layer, 0, ptr::null_mut()), NVTE_ERROR_NULL_POINTER, "sizes");
        refused(nvte_layer_sizes(ptr::null_mut(), 0, &mut s), NVTE_ERROR_INVALID_HANDLE, "layer");
        assert_eq!(s.slots, 0, "written on an error");
        assert_eq!(nvte_layer_sizes(layer, 0, &mut s), NVTE_OK);
        assert_eq!((s.slots, s.saved_per_token, s.saved_fixed), (6, 0, 0));
        refused(nvte_linear_fwd(layer, ptr::null(), ptr::null_mut()), NVTE_ERROR_INVALID_HANDLE, "LayerNormMLP");
        refused(nvte_layernorm_linear_bwd(layer, ptr::null(), ptr::null_mut()), NVTE_ERROR_INVALID_HANDLE, "LayerNormLinear");
        // Handles of two kinds are told apart.
        refused(nvte_layer_sizes(ctx.cast(), 0, &mut s), NVTE_ERROR_INVALID_HANDLE, "layer");
        refused(nvte_context_trim(layer.cast()), NVTE_ERROR_INVALID_HANDLE, "context");
        // A layer outlives the context it was made with.
        assert_eq!(nvte_context_destroy(ctx), NVTE_OK);
        assert_eq!(nvte_layer_sizes(layer, 0, &mut s), NVTE_OK);
        assert_eq!(nvte_layer_destroy(layer), NVTE_OK);
        assert_eq!(nvte_layer_destroy(ptr::null_mut()), NVTE_OK);
        for bad in [layer, ptr::without_provenance_mut(7)] {
            refused(nvte_layer_destroy(bad), NVTE_ERROR_INVALID_HANDLE, "layer");
            refused(nvte_layer_sizes(bad, 0, &mut s), NVTE_ERROR_INVALID_HANDLE, "layer");
            refused(nvte_layernorm_mlp_fwd(bad, ptr::null(), ptr::null_mut()), NVTE_ERROR_INVALID_HANDLE, "layer");
        }
    }
}
