//! Layers: handles, queries, forward and backward.

use std::mem;

use super::{
    context::context,
    guard::guard,
    handle::Table,
    layer_args::*,
    types::{flag, nvte_context_t, nvte_status_t, nvte_stream_t, out, read_struct, reserved, stream},
};
use crate::{
    error::{Error, Result, Status},
    layers::{BackwardArgs, ForwardArgs, Kind, Layer, LayerCall, LayerConfig, LayerFlags, NormConfig, Rows, WeightCache},
    numerics::{DelayedScaling, Float8CurrentScaling, Format, Recipe},
    ops::{activation::Activation, gemm::Accumulate},
    tensor::{DType, Ptr},
};

/// No FP8: products run in the layer's type.
pub const NVTE_RECIPE_NONE: i32 = 0;
/// Delayed scaling: casts read `scale` and record amaxes in `live`; nvte_scaling_update makes new scales.
pub const NVTE_RECIPE_DELAYED: i32 = 1;
/// Current scaling: each cast takes the scale from its own tensor's amax.
pub const NVTE_RECIPE_CURRENT: i32 = 2;

/// E4M3 forward, E5M2 for gradients.
pub const NVTE_FORMAT_HYBRID: i32 = 0;
/// E4M3 everywhere.
pub const NVTE_FORMAT_E4M3: i32 = 1;

/// Backward will be asked for the gradient of x. Of the four NVTE_LAYER_NEEDS_* those that ask for what a kind of layer has not are ignored.
pub const NVTE_LAYER_NEEDS_DX: u32 = 1;
/// Backward will be asked for the gradient of the first weight, or of its bias where another product follows.
pub const NVTE_LAYER_NEEDS_DW: u32 = 2;
/// Backward will be asked for the gradient of the second weight.
pub const NVTE_LAYER_NEEDS_DW2: u32 = 4;
/// Backward will be asked for the gradient of gamma or beta.
pub const NVTE_LAYER_NEEDS_DNORM: u32 = 8;
/// Backward adds to what the weights' gradients hold.
pub const NVTE_LAYER_ACCUMULATE_DW: u32 = 16;
/// Products run without FP8, and the amaxes of their operands are recorded. Needs a recipe.
pub const NVTE_LAYER_CALIBRATE: u32 = 32;
/// Weights were replaced (loaded, made new): their cast takes its scale from their own amax.
pub const NVTE_LAYER_WEIGHT_SCALE_DUE: u32 = 64;
/// With NVTE_LAYER_WEIGHT_SCALE_DUE: that scale is written to the weight's slot, and the amax recorded. Nothing is for a weight that is not
/// cast, as its copies in a cache are filled: set valid to 0 when weights are replaced. (Where skip_refresh keeps the cast away, the scale
/// stays and the amax is recorded all the same.)
pub const NVTE_LAYER_WEIGHT_SCALE_KEEP: u32 = 128;
/// Forward makes both layouts of a weight that the gradient of its product's input will need, in one pass over it, and leaves the transposed
/// one in `saved`: a byte more for each of its elements, and backward does not read the weight, which may then be NULL, and casts nothing of
/// it. Without the flag backward casts it again. With a weight cache, which holds both layouts, the room is asked for and not used: leave the
/// flag out.
pub const NVTE_LAYER_SAVE_WEIGHT: u32 = 256;

/// Opaque: the description of a layer.
#[allow(non_camel_case_types)]
pub struct nvte_layer {
    _private: [u8; 0],
}

/// A layer's description, immutable, shared by all equal layers, threads and streams. Ended by nvte_layer_destroy; lives on its own when
/// the context it was made with is destroyed.
#[allow(non_camel_case_types)]
pub type nvte_layer_t = *mut nvte_layer;

static LAYERS: Table<Layer> = Table::new("layer", 2);

fn flags(v: u32) -> Result<LayerFlags> {
    if v > 511 {
        return Err(Error::argument(Status::InvalidEnum, "flags", v, "must be a sum of NVTE_LAYER_* values"));
    }
    let has = |bit: u32| v & bit != 0;
    Ok(LayerFlags {
        dx: has(NVTE_LAYER_NEEDS_DX),
        dw: [has(NVTE_LAYER_NEEDS_DW), has(NVTE_LAYER_NEEDS_DW2)],
        dnorm: has(NVTE_LAYER_NEEDS_DNORM),
        accumulate_dw: has(NVTE_LAYER_ACCUMULATE_DW),
        calibrate: has(NVTE_LAYER_CALIBRATE),
        weight_scale_due: has(NVTE_LAYER_WEIGHT_SCALE_DUE),
        weight_scale_keep: has(NVTE_LAYER_WEIGHT_SCALE_KEEP),
        save_weight: has(NVTE_LAYER_SAVE_WEIGHT),
    })
}

/// # Safety
/// As [`read_struct`].
unsafe fn config(p: *const nvte_layer_config_t, kind: impl Fn(&nvte_layer_config_t, NormConfig) -> Result<Kind>) -> Result<LayerConfig> {
    // SAFETY: forwarded contract.
    let c = unsafe { read_struct("config", p, mem::size_of::<nvte_layer_config_t>())? };
    reserved("reserved", c.reserved)?;
    let format = match c.format {
        NVTE_FORMAT_HYBRID => Format::Hybrid,
        NVTE_FORMAT_E4M3 => Format::E4m3,
        other => return Err(Error::argument(Status::InvalidEnum, "format", other, "must be 0 (hybrid) or 1 (E4M3)")),
    };
    let (margin, epsilon, power_of_two) = (c.margin, c.epsilon, flag("power_of_two", c.power_of_two)?);
    let recipe = match c.recipe {
        NVTE_RECIPE_NONE => None,
        NVTE_RECIPE_DELAYED => {
            Some(Recipe::Delayed(DelayedScaling { fp8_format: format, margin, epsilon, power_of_two, ..Default::default() }))
        }
        NVTE_RECIPE_CURRENT => Some(Recipe::Current(Float8CurrentScaling { fp8_format: format, margin, epsilon, power_of_two })),
        other => return Err(Error::argument(Status::InvalidEnum, "recipe", other, "must be 0 (none), 1 (delayed) or 2 (current scaling)")),
    };
    let mut accumulate = [Accumulate::Fast, Accumulate::Precise, Accumulate::Precise];
    let given =
        [("accumulate_fprop", c.accumulate_fprop), ("accumulate_dgrad", c.accumulate_dgrad), ("accumulate_wgrad", c.accumulate_wgrad)];
    for (mode, (name, v)) in accumulate.iter_mut().zip(given) {
        if v != 0 {
            let rule = "must be 0 (default), 1 (fast) or 2 (precise)";
            *mode = Accumulate::from_i32(v).map_err(|_| Error::argument(Status::InvalidEnum, name, v, rule))?;
        }
    }
    let norm = NormConfig {
        rms: flag("rmsnorm", c.rmsnorm)?,
        eps: c.eps,
        zero_centered_gamma: flag("zero_centered_gamma", c.zero_centered_gamma)?,
    };
    let kind = kind(&c, norm)?;
    let out_features = if norm_mlp(&kind) && c.out_features == 0 { c.in_features } else { c.out_features };
    Ok(LayerConfig {
        kind,
        in_features: c.in_features,
        out_features,
        ffn_features: c.ffn_features,
        dtype: DType::from_i32("dtype", c.dtype)?,
        param_dtype: DType::from_i32("param_dtype", c.param_dtype)?,
        recipe,
        accumulate,
    })
}

/// # Safety
/// `layer` is null or writable.
unsafe fn create(ctx: nvte_context_t, config: Result<LayerConfig>, layer: *mut nvte_layer_t) -> Result<()> {
    let ctx = context(ctx)?;
    if layer.is_null() {
        return Err(Error::argument(Status::NullPointer, "layer", "NULL", "is required"));
    }
    let made = Layer::new(&ctx, &config?)?;
    // SAFETY: by contract.
    unsafe { out("layer", layer, LAYERS.insert(made) as nvte_layer_t) }
}

/// The layer behind a handle, if it is of this kind.
fn layer(handle: nvte_layer_t, wanted: &str, is: impl Fn(&Kind) -> bool) -> Result<Layer> {
    let layer = LAYERS.get(handle as usize)?;
    if is(&layer.config().kind) {
        return Ok(layer);
    }
    let found = match layer.config().kind {
        Kind::Linear => "Linear",
        Kind::NormLinear(_) => "LayerNormLinear",
        Kind::NormMlp(..) => "LayerNormMLP",
    };
    Err(Error::argument(Status::InvalidHandle, "layer", found, format!("must be a {wanted} layer")))
}

fn linear(kind: &Kind) -> bool {
    matches!(kind, Kind::Linear)
}

fn norm_linear(kind: &Kind) -> bool {
    matches!(kind, Kind::NormLinear(_))
}

fn norm_mlp(kind: &Kind) -> bool {
    matches!(kind, Kind::NormMlp(..))
}

/// Runs a call with the caller's weight cache, and hands back which copies are filled now.
///
/// # Safety
/// `cache` is null or a sized struct that nobody else uses meanwhile.
unsafe fn with_cache(cache: *mut nvte_weight_cache_t, call: impl FnOnce(Option<&mut WeightCache>) -> Result<()>) -> Result<()> {
    if cache.is_null() {
        return call(None);
    }
    // SAFETY: by contract.
    let c = unsafe { read_struct("weight_cache", cache, mem::size_of::<nvte_weight_cache_t>())? };
    let mut ours = WeightCache { valid: c.valid, data: Ptr::from(c.data), bytes: c.bytes };
    call(Some(&mut ours))?;
    if ours.valid != c.valid {
        // SAFETY: by contract.
        unsafe { (*cache).valid = ours.valid };
    }
    Ok(())
}

fn rows<T>(data: *mut T, ld: i64) -> Rows {
    Rows { data: Ptr::from(data), ld }
}

/// The fields that all argument structs share.
macro_rules! call {
    ($a:ident) => {
        LayerCall {
            tokens: $a.tokens,
            flags: flags($a.flags)?,
            saved: Ptr::from($a.saved),
            saved_bytes: $a.saved_bytes,
            workspace: Ptr::from($a.workspace),
            workspace_bytes: $a.workspace_bytes,
            live: Ptr::from($a.live),
            scale: Ptr::from($a.scale),
            skip_refresh: Ptr::from($a.skip_refresh),
        }
    };
}

/// Describes a Linear layer: y = x W^T + b.
///
/// Shapes: see nvte_layer_config_t. Units: features. Pointers: host. Alignment: natural. Aliasing: none. Stream order: none. Determinism: not
/// applicable. Cheap; equal layers may share one handle.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED. On an error *layer is not written.
///
/// # Safety
/// `config` is a sized struct; `layer` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_linear_create(
    ctx: nvte_context_t,
    config: *const nvte_layer_config_t,
    layer: *mut nvte_layer_t,
) -> nvte_status_t {
    guard(|| {
        // SAFETY: by contract.
        let described = unsafe {
            self::config(config, |c, norm| {
                reserved("rmsnorm", norm.rms.into())?;
                reserved("zero_centered_gamma", norm.zero_centered_gamma.into())?;
                if c.eps != 0.0 {
                    return Err(Error::argument(Status::Unsupported, "eps", c.eps, "must be 0: the layer has no norm"));
                }
                Ok(Kind::Linear)
            })
        };
        // SAFETY: by contract.
        unsafe { create(ctx, described, layer) }
    })
}

/// Forward pass of a Linear layer: y = x W^T + b, casts included.
///
/// Shapes: see the struct; any number of tokens and features. Units: sizes and strides in elements. Pointers: structs are on the host, all data
/// on the device. Alignment: that of the element type (16 bytes for bases and row strides are faster); saved, workspace and the cache's data
/// 16 bytes. Aliasing: outputs must not overlap inputs or each other. Stream order: enqueued on `stream`, nothing waits. Determinism: the same
/// bits at each call with the same arguments.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
/// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE,
/// NVTE_ERROR_CUBLASLT.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed; nobody else uses the weight cache's struct meanwhile.
#[no_mangle]
pub unsafe extern "C" fn nvte_linear_fwd(
    layer: nvte_layer_t,
    args: *const nvte_linear_fwd_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let layer = self::layer(layer, "Linear", linear)?;
        // SAFETY: by contract.
        let a = unsafe { read_struct("args", args, mem::size_of::<nvte_linear_fwd_args_t>())? };
        let forward = ForwardArgs {
            call: call!(a),
            x: rows(a.x.cast_mut(), a.ldx),
            gamma: Ptr::NULL,
            beta: Ptr::NULL,
            weights: [rows(a.weight.cast_mut(), a.ldw), Rows::default()],
            biases: [Ptr::from(a.bias), Ptr::NULL],
            y: rows(a.y, a.ldy),
            norm_out: Rows::default(),
        };
        // SAFETY: by contract.
        unsafe { with_cache(a.weight_cache, |cache| layer.forward(&forward, cache, stream(stream_))) }
    })
}

/// Backward pass of a Linear layer: y = x W^T + b. Reads `saved` and never writes it.
///
/// Shapes: see the struct. Units: as nvte_linear_fwd. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
/// Determinism: the same.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
/// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE,
/// NVTE_ERROR_CUBLASLT.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed; nobody else uses the weight cache's struct meanwhile.
#[no_mangle]
pub unsafe extern "C" fn nvte_linear_bwd(
    layer: nvte_layer_t,
    args: *const nvte_linear_bwd_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let layer = self::layer(layer, "Linear", linear)?;
        // SAFETY: by contract.
        let a = unsafe { read_struct("args", args, mem::size_of::<nvte_linear_bwd_args_t>())? };
        reserved("reserved", a.reserved)?;
        let backward = BackwardArgs {
            call: call!(a),
            dy: rows(a.dy.cast_mut(), a.lddy),
            x: rows(a.x.cast_mut(), a.ldx),
            gamma: Ptr::NULL,
            weights: [rows(a.weight.cast_mut(), a.ldw), Rows::default()],
            dnorm_out: Rows::default(),
            dx: rows(a.dx, a.lddx),
            dgamma: Ptr::NULL,
            dbeta: Ptr::NULL,
            dw: [rows(a.dw, a.lddw), Rows::default()],
            dw_dtype: DType::from_i32("dw_dtype", a.dw_dtype)?,
            db: [Ptr::from(a.db), Ptr::NULL],
        };
        // SAFETY: by contract.
        unsafe { with_cache(a.weight_cache, |cache| layer.backward(&backward, cache, stream(stream_))) }
    })
}

/// Describes a norm and a Linear layer: y = norm(x) W^T + b.
///
/// Shapes: see nvte_layer_config_t. Units: features. Pointers: host. Alignment: natural. Aliasing: none. Stream order: none. Determinism: not
/// applicable. Cheap; equal layers may share one handle.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED. On an error *layer is not written.
///
/// # Safety
/// `config` is a sized struct; `layer` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_layernorm_linear_create(
    ctx: nvte_context_t,
    config: *const nvte_layer_config_t,
    layer: *mut nvte_layer_t,
) -> nvte_status_t {
    guard(|| {
        // SAFETY: by contract.
        let described = unsafe { self::config(config, |_, norm| Ok(Kind::NormLinear(norm))) };
        // SAFETY: by contract.
        unsafe { create(ctx, described, layer) }
    })
}

/// Forward pass of a norm and a Linear layer: y = norm(x) W^T + b, casts included.
///
/// Shapes: see the struct. Units: as nvte_linear_fwd. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
/// Determinism: the same.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
/// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE,
/// NVTE_ERROR_CUBLASLT.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed; nobody else uses the weight cache's struct meanwhile.
#[no_mangle]
pub unsafe extern "C" fn nvte_layernorm_linear_fwd(
    layer: nvte_layer_t,
    args: *const nvte_layernorm_linear_fwd_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let layer = self::layer(layer, "LayerNormLinear", norm_linear)?;
        // SAFETY: by contract.
        let a = unsafe { read_struct("args", args, mem::size_of::<nvte_layernorm_linear_fwd_args_t>())? };
        let forward = ForwardArgs {
            call: call!(a),
            x: rows(a.x.cast_mut(), a.ldx),
            gamma: Ptr::from(a.gamma),
            beta: Ptr::from(a.beta),
            weights: [rows(a.weight.cast_mut(), a.ldw), Rows::default()],
            biases: [Ptr::from(a.bias), Ptr::NULL],
            y: rows(a.y, a.ldy),
            norm_out: rows(a.norm_out, a.ld_norm_out),
        };
        // SAFETY: by contract.
        unsafe { with_cache(a.weight_cache, |cache| layer.forward(&forward, cache, stream(stream_))) }
    })
}

/// Backward pass of a norm and a Linear layer: y = norm(x) W^T + b. Reads `saved` and never writes it.
///
/// Shapes: see the struct. Units: as nvte_linear_fwd. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
/// Determinism: the same.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
/// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE,
/// NVTE_ERROR_CUBLASLT.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed; nobody else uses the weight cache's struct meanwhile.
#[no_mangle]
pub unsafe extern "C" fn nvte_layernorm_linear_bwd(
    layer: nvte_layer_t,
    args: *const nvte_layernorm_linear_bwd_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let layer = self::layer(layer, "LayerNormLinear", norm_linear)?;
        // SAFETY: by contract.
        let a = unsafe { read_struct("args", args, mem::size_of::<nvte_layernorm_linear_bwd_args_t>())? };
        reserved("reserved", a.reserved)?;
        let backward = BackwardArgs {
            call: call!(a),
            dy: rows(a.dy.cast_mut(), a.lddy),
            x: rows(a.x.cast_mut(), a.ldx),
            gamma: Ptr::from(a.gamma),
            weights: [rows(a.weight.cast_mut(), a.ldw), Rows::default()],
            dnorm_out: rows(a.dnorm_out.cast_mut(), a.ld_dnorm_out),
            dx: rows(a.dx, a.lddx),
            dgamma: Ptr::from(a.dgamma),
            dbeta: Ptr::from(a.dbeta),
            dw: [rows(a.dw, a.lddw), Rows::default()],
            dw_dtype: DType::from_i32("dw_dtype", a.dw_dtype)?,
            db: [Ptr::from(a.db), Ptr::NULL],
        };
        // SAFETY: by contract.
        unsafe { with_cache(a.weight_cache, |cache| layer.backward(&backward, cache, stream(stream_))) }
    })
}

/// Describes a norm and an MLP: y = act(norm(x) W1^T + b1) W2^T + b2.
///
/// Shapes: see nvte_layer_config_t. Units: features. Pointers: host. Alignment: natural. Aliasing: none. Stream order: none. Determinism: not
/// applicable. Cheap; equal layers may share one handle.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED. On an error *layer is not written.
///
/// # Safety
/// `config` is a sized struct; `layer` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_layernorm_mlp_create(
    ctx: nvte_context_t,
    config: *const nvte_layer_config_t,
    layer: *mut nvte_layer_t,
) -> nvte_status_t {
    guard(|| {
        // SAFETY: by contract.
        let described =
            unsafe { self::config(config, |c, norm| Ok(Kind::NormMlp(norm, Activation::from_i32("activation", c.activation)?))) };
        // SAFETY: by contract.
        unsafe { create(ctx, described, layer) }
    })
}

/// Forward pass of a norm and an MLP: y = act(norm(x) W1^T + b1) W2^T + b2, casts included.
///
/// Shapes: see the struct. Units: as nvte_linear_fwd. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
/// Determinism: the same.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
/// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE,
/// NVTE_ERROR_CUBLASLT.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed; nobody else uses the weight cache's struct meanwhile.
#[no_mangle]
pub unsafe extern "C" fn nvte_layernorm_mlp_fwd(
    layer: nvte_layer_t,
    args: *const nvte_layernorm_mlp_fwd_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let layer = self::layer(layer, "LayerNormMLP", norm_mlp)?;
        // SAFETY: by contract.
        let a = unsafe { read_struct("args", args, mem::size_of::<nvte_layernorm_mlp_fwd_args_t>())? };
        let forward = ForwardArgs {
            call: call!(a),
            x: rows(a.x.cast_mut(), a.ldx),
            gamma: Ptr::from(a.gamma),
            beta: Ptr::from(a.beta),
            weights: [rows(a.fc1_weight.cast_mut(), a.ld_fc1_weight), rows(a.fc2_weight.cast_mut(), a.ld_fc2_weight)],
            biases: [Ptr::from(a.fc1_bias), Ptr::from(a.fc2_bias)],
            y: rows(a.y, a.ldy),
            norm_out: rows(a.norm_out, a.ld_norm_out),
        };
        // SAFETY: by contract.
        unsafe { with_cache(a.weight_cache, |cache| layer.forward(&forward, cache, stream(stream_))) }
    })
}

/// Backward pass of a norm and an MLP: y = act(norm(x) W1^T + b1) W2^T + b2. Reads `saved` and never writes it.
///
/// Shapes: see the struct. Units: as nvte_linear_fwd. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
/// Determinism: the same.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
/// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE,
/// NVTE_ERROR_CUBLASLT.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed; nobody else uses the weight cache's struct meanwhile.
#[no_mangle]
pub unsafe extern "C" fn nvte_layernorm_mlp_bwd(
    layer: nvte_layer_t,
    args: *const nvte_layernorm_mlp_bwd_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let layer = self::layer(layer, "LayerNormMLP", norm_mlp)?;
        // SAFETY: by contract.
        let a = unsafe { read_struct("args", args, mem::size_of::<nvte_layernorm_mlp_bwd_args_t>())? };
        reserved("reserved", a.reserved)?;
        let backward = BackwardArgs {
            call: call!(a),
            dy: rows(a.dy.cast_mut(), a.lddy),
            x: rows(a.x.cast_mut(), a.ldx),
            gamma: Ptr::from(a.gamma),
            weights: [rows(a.fc1_weight.cast_mut(), a.ld_fc1_weight), rows(a.fc2_weight.cast_mut(), a.ld_fc2_weight)],
            dnorm_out: rows(a.dnorm_out.cast_mut(), a.ld_dnorm_out),
            dx: rows(a.dx, a.lddx),
            dgamma: Ptr::from(a.dgamma),
            dbeta: Ptr::from(a.dbeta),
            dw: [rows(a.dfc1_weight, a.ld_dfc1_weight), rows(a.dfc2_weight, a.ld_dfc2_weight)],
            dw_dtype: DType::from_i32("dw_dtype", a.dw_dtype)?,
            db: [Ptr::from(a.dfc1_bias), Ptr::from(a.dfc2_bias)],
        };
        // SAFETY: by contract.
        unsafe { with_cache(a.weight_cache, |cache| layer.backward(&backward, cache, stream(stream_))) }
    })
}

/// Sizes of the memory that calls with these flags need, and the number of scaling slots.
///
/// Shapes: none. Units: bytes, per token and fixed. Pointers: `sizes` is on the host, its struct_size set. Alignment: natural. Aliasing: none.
/// Stream order: none. Determinism: the same for one device and version of the library.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE.
///
/// # Safety
/// `sizes` is NULL or a sized, writable struct.
#[no_mangle]
pub unsafe extern "C" fn nvte_layer_sizes(layer: nvte_layer_t, flags: u32, sizes: *mut nvte_layer_sizes_t) -> nvte_status_t {
    guard(|| {
        let layer = LAYERS.get(layer as usize)?;
        // SAFETY: by contract.
        let given = unsafe { read_struct("sizes", sizes, mem::size_of::<nvte_layer_sizes_t>())? };
        let s = layer.sizes(&self::flags(flags)?);
        let found = nvte_layer_sizes_t {
            struct_size: given.struct_size,
            slots: s.slots,
            saved_per_token: s.saved.per_token,
            saved_fixed: s.saved.fixed,
            forward_workspace_per_token: s.forward_workspace.per_token,
            forward_workspace_fixed: s.forward_workspace.fixed,
            backward_workspace_per_token: s.backward_workspace.per_token,
            backward_workspace_fixed: s.backward_workspace.fixed,
            weight_cache: s.weight_cache,
        };
        // SAFETY: by contract.
        unsafe { out("sizes", sizes, found) }
    })
}

/// Ends a layer's handle. NULL is accepted. Calls of other threads that use it finish.
///
/// Shapes: none. Units: none. Pointers: host handle. Alignment: none. Aliasing: none. Stream order: none. Determinism: not applicable.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE for one already destroyed.
#[no_mangle]
pub extern "C" fn nvte_layer_destroy(layer: nvte_layer_t) -> nvte_status_t {
    guard(|| if layer.is_null() { Ok(()) } else { LAYERS.remove(layer as usize).map(drop) })
}
