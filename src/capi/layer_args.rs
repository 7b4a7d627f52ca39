//! Plain structs of the layers: descriptions, sizes, arguments.

use std::ffi::c_void;

/// What all layers are described by. Zero-initialise it and set struct_size, types and sizes.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_layer_config_t {
    /// sizeof(nvte_layer_config_t).
    pub struct_size: u32,
    /// NVTE_F32, NVTE_F16 or NVTE_BF16: x, y, dy and dx.
    pub dtype: i32,
    /// The same: weights, biases, gamma, beta and the gradients of all but the weights. Where products run without FP8 it must be dtype.
    pub param_dtype: i32,
    /// NVTE_RECIPE_NONE, NVTE_RECIPE_DELAYED or NVTE_RECIPE_CURRENT.
    pub recipe: i32,
    /// NVTE_FORMAT_HYBRID or NVTE_FORMAT_E4M3.
    pub format: i32,
    /// Current scaling, and delayed scaling for replaced weights: scales are divided by 2^margin.
    pub margin: i32,
    /// Likewise: floor of the amax.
    pub epsilon: f32,
    /// Likewise: 1 rounds scales down to powers of two.
    pub power_of_two: i32,
    /// Accumulation of fprop: NVTE_ACCUMULATE_FAST or NVTE_ACCUMULATE_PRECISE; 0: the default, fast.
    pub accumulate_fprop: i32,
    /// Of dgrad; 0: the default, precise.
    pub accumulate_dgrad: i32,
    /// Of wgrad; 0: the default, precise.
    pub accumulate_wgrad: i32,
    /// 1: RMSNorm. 0: LayerNorm. Linear: 0.
    pub rmsnorm: i32,
    /// 1: the norm's weight is 1 + gamma. Linear: 0.
    pub zero_centered_gamma: i32,
    /// NVTE_ACTIVATION_*; looked at only for the MLP.
    pub activation: i32,
    /// Added to the variance. Linear: 0.
    pub eps: f32,
    /// 0.
    pub reserved: u32,
    /// Features of x (hidden size).
    pub in_features: i64,
    /// Features of y. The MLP: in_features, or 0 for it.
    pub out_features: i64,
    /// The MLP: features behind the activation; fc1_weight has twice as many rows where the activation is gated. Others: 0.
    pub ffn_features: i64,
}

/// Sizes that a layer asks for: bytes are per_token * tokens + fixed, an upper bound for every number of tokens.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_layer_sizes_t {
    /// sizeof(nvte_layer_sizes_t), set by the caller.
    pub struct_size: u32,
    /// Consecutive scaling slots: x, w, dy; the MLP: x1, w1, x2, w2, dy2, dy1.
    pub slots: u32,
    /// What forward leaves for backward.
    pub saved_per_token: u64,
    /// What forward leaves for backward, whatever the number of tokens.
    pub saved_fixed: u64,
    /// Forward's workspace.
    pub forward_workspace_per_token: u64,
    /// Forward's workspace.
    pub forward_workspace_fixed: u64,
    /// Backward's workspace.
    pub backward_workspace_per_token: u64,
    /// Backward's workspace.
    pub backward_workspace_fixed: u64,
    /// FP8 copies of the weights, both layouts.
    pub weight_cache: u64,
}

/// FP8 copies of a layer's weights, in memory of the caller's. The struct lies on the host; calls read and write `valid`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_weight_cache_t {
    /// sizeof(nvte_weight_cache_t).
    pub struct_size: u32,
    /// Two bits per weight, row-wise and transposed: which copies are filled. Set it to 0 when a weight has changed.
    pub valid: u32,
    /// Device memory, aligned to 16 bytes.
    pub data: *mut c_void,
    /// Its size, at least what nvte_layer_sizes says.
    pub bytes: u64,
}

/// Arguments of nvte_linear_fwd. Zero-initialise it; every row stride of a present matrix counts elements and is at least its row.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_linear_fwd_args_t {
    /// sizeof(nvte_linear_fwd_args_t).
    pub struct_size: u32,
    /// NVTE_LAYER_*.
    pub flags: u32,
    /// Rows of x.
    pub tokens: i64,
    /// What backward will read: device memory, aligned to 16 bytes; NULL where the flags need nothing.
    pub saved: *mut c_void,
    /// Its size.
    pub saved_bytes: u64,
    /// Device memory for this call alone, aligned to 16 bytes.
    pub workspace: *mut c_void,
    /// Its size.
    pub workspace_bytes: u64,
    /// Device: the layer's slots that record amaxes; NULL: nothing is recorded.
    pub live: *mut f32,
    /// Device: the layer's scales; written only for replaced weights; NULL: 1.
    pub scale: *mut f32,
    /// Host: FP8 copies of the weights; NULL: they are made for this call.
    pub weight_cache: *mut nvte_weight_cache_t,
    /// Device: where it is not 0 a cached weight is not cast again; NULL: as 0. Needs a weight cache.
    pub skip_refresh: *const u32,
    /// Device: [tokens, in_features], row stride ldx in elements.
    pub x: *const c_void,
    /// Its row stride.
    pub ldx: i64,
    /// Device: [out_features, in_features].
    pub weight: *const c_void,
    /// Its row stride in elements.
    pub ldw: i64,
    /// Device: [out_features]; NULL: none.
    pub bias: *const c_void,
    /// Device: [tokens, out_features].
    pub y: *mut c_void,
    /// Its row stride in elements.
    pub ldy: i64,
}

/// Arguments of nvte_linear_bwd. Flags, tokens and weight_cache are those of the forward call; NVTE_LAYER_ACCUMULATE_DW may be added.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_linear_bwd_args_t {
    /// sizeof(nvte_linear_bwd_args_t).
    pub struct_size: u32,
    /// NVTE_LAYER_*.
    pub flags: u32,
    /// Rows of x.
    pub tokens: i64,
    /// What backward will read: device memory, aligned to 16 bytes; NULL where the flags need nothing.
    pub saved: *const c_void,
    /// Its size.
    pub saved_bytes: u64,
    /// Device memory for this call alone, aligned to 16 bytes.
    pub workspace: *mut c_void,
    /// Its size.
    pub workspace_bytes: u64,
    /// Device: the layer's slots that record amaxes; NULL: nothing is recorded.
    pub live: *mut f32,
    /// Device: the layer's scales; written only for replaced weights; NULL: 1.
    pub scale: *mut f32,
    /// Host: FP8 copies of the weights; NULL: found in `saved` (NVTE_LAYER_SAVE_WEIGHT), or made for this call with the scale that forward used.
    pub weight_cache: *mut nvte_weight_cache_t,
    /// Device: where it is not 0 a cached weight is not cast again; NULL: as 0. Needs a weight cache.
    pub skip_refresh: *const u32,
    /// Device: [tokens, out_features].
    pub dy: *const c_void,
    /// Its row stride in elements.
    pub lddy: i64,
    /// Device: as in forward; with FP8 it is not read.
    pub x: *const c_void,
    /// Its row stride in elements.
    pub ldx: i64,
    /// Device: as in forward.
    pub weight: *const c_void,
    /// Its row stride in elements.
    pub ldw: i64,
    /// Device: receives the gradient of x [tokens, in_features]; not NULL where the flags ask for it.
    pub dx: *mut c_void,
    /// Its row stride in elements.
    pub lddx: i64,
    /// Device: receives the gradient of weight, of dw_dtype; NULL: not wanted.
    pub dw: *mut c_void,
    /// Its row stride in elements.
    pub lddw: i64,
    /// Device: receives the gradient of bias; NULL: not wanted.
    pub db: *mut c_void,
    /// NVTE_F32, NVTE_F16 or NVTE_BF16: type of the weights' gradients.
    pub dw_dtype: i32,
    /// 0.
    pub reserved: u32,
}

/// Arguments of nvte_layernorm_linear_fwd. Zero-initialise it; every row stride of a present matrix counts elements and is at least its row.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_layernorm_linear_fwd_args_t {
    /// sizeof(nvte_layernorm_linear_fwd_args_t).
    pub struct_size: u32,
    /// NVTE_LAYER_*.
    pub flags: u32,
    /// Rows of x.
    pub tokens: i64,
    /// What backward will read: device memory, aligned to 16 bytes; NULL where the flags need nothing.
    pub saved: *mut c_void,
    /// Its size.
    pub saved_bytes: u64,
    /// Device memory for this call alone, aligned to 16 bytes.
    pub workspace: *mut c_void,
    /// Its size.
    pub workspace_bytes: u64,
    /// Device: the layer's slots that record amaxes; NULL: nothing is recorded.
    pub live: *mut f32,
    /// Device: the layer's scales; written only for replaced weights; NULL: 1.
    pub scale: *mut f32,
    /// Host: FP8 copies of the weights; NULL: they are made for this call.
    pub weight_cache: *mut nvte_weight_cache_t,
    /// Device: where it is not 0 a cached weight is not cast again; NULL: as 0. Needs a weight cache.
    pub skip_refresh: *const u32,
    /// Device: [tokens, in_features], row stride ldx in elements.
    pub x: *const c_void,
    /// Its row stride.
    pub ldx: i64,
    /// Device: [in_features]; NULL: 1.
    pub gamma: *const c_void,
    /// Device: [in_features]; NULL: 0. RMSNorm: NULL.
    pub beta: *const c_void,
    /// Device: [out_features, in_features].
    pub weight: *const c_void,
    /// Its row stride in elements.
    pub ldw: i64,
    /// Device: [out_features]; NULL: none.
    pub bias: *const c_void,
    /// Device: [tokens, out_features].
    pub y: *mut c_void,
    /// Its row stride in elements.
    pub ldy: i64,
    /// Device: receives the norm's output [tokens, in_features]; NULL: not wanted.
    pub norm_out: *mut c_void,
    /// Its row stride in elements.
    pub ld_norm_out: i64,
}

/// Arguments of nvte_layernorm_linear_bwd. Flags, tokens and weight_cache are those of the forward call; NVTE_LAYER_ACCUMULATE_DW may be added.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_layernorm_linear_bwd_args_t {
    /// sizeof(nvte_layernorm_linear_bwd_args_t).
    pub struct_size: u32,
    /// NVTE_LAYER_*.
    pub flags: u32,
    /// Rows of x.
    pub tokens: i64,
    /// What backward will read: device memory, aligned to 16 bytes; NULL where the flags need nothing.
    pub saved: *const c_void,
    /// Its size.
    pub saved_bytes: u64,
    /// Device memory for this call alone, aligned to 16 bytes.
    pub workspace: *mut c_void,
    /// Its size.
    pub workspace_bytes: u64,
    /// Device: the layer's slots that record amaxes; NULL: nothing is recorded.
    pub live: *mut f32,
    /// Device: the layer's scales; written only for replaced weights; NULL: 1.
    pub scale: *mut f32,
    /// Host: FP8 copies of the weights; NULL: found in `saved` (NVTE_LAYER_SAVE_WEIGHT), or made for this call with the scale that forward used.
    pub weight_cache: *mut nvte_weight_cache_t,
    /// Device: where it is not 0 a cached weight is not cast again; NULL: as 0. Needs a weight cache.
    pub skip_refresh: *const u32,
    /// Device: [tokens, out_features].
    pub dy: *const c_void,
    /// Its row stride in elements.
    pub lddy: i64,
    /// Device: as in forward.
    pub x: *const c_void,
    /// Its row stride in elements.
    pub ldx: i64,
    /// Device: as in forward.
    pub gamma: *const c_void,
    /// Device: as in forward.
    pub weight: *const c_void,
    /// Its row stride in elements.
    pub ldw: i64,
    /// Device: a gradient that reached norm_out by itself, [tokens, in_features]; NULL: none.
    pub dnorm_out: *const c_void,
    /// Its row stride in elements.
    pub ld_dnorm_out: i64,
    /// Device: receives the gradient of x [tokens, in_features]; not NULL where the flags ask for it.
    pub dx: *mut c_void,
    /// Its row stride in elements.
    pub lddx: i64,
    /// Device: receives [in_features]; NULL: not wanted.
    pub dgamma: *mut c_void,
    /// Device: receives [in_features]; NULL: not wanted. RMSNorm: NULL.
    pub dbeta: *mut c_void,
    /// Device: receives the gradient of weight, of dw_dtype; NULL: not wanted.
    pub dw: *mut c_void,
    /// Its row stride in elements.
    pub lddw: i64,
    /// Device: receives the gradient of bias; NULL: not wanted.
    pub db: *mut c_void,
    /// NVTE_F32, NVTE_F16 or NVTE_BF16: type of the weights' gradients.
    pub dw_dtype: i32,
    /// 0.
    pub reserved: u32,
}

/// Arguments of nvte_layernorm_mlp_fwd. Zero-initialise it; every row stride of a present matrix counts elements and is at least its row.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_layernorm_mlp_fwd_args_t {
    /// sizeof(nvte_layernorm_mlp_fwd_args_t).
    pub struct_size: u32,
    /// NVTE_LAYER_*.
    pub flags: u32,
    /// Rows of x.
    pub tokens: i64,
    /// What backward will read: device memory, aligned to 16 bytes; NULL where the flags need nothing.
    pub saved: *mut c_void,
    /// Its size.
    pub saved_bytes: u64,
    /// Device memory for this call alone, aligned to 16 bytes.
    pub workspace: *mut c_void,
    /// Its size.
    pub workspace_bytes: u64,
    /// Device: the layer's slots that record amaxes; NULL: nothing is recorded.
    pub live: *mut f32,
    /// Device: the layer's scales; written only for replaced weights; NULL: 1.
    pub scale: *mut f32,
    /// Host: FP8 copies of the weights; NULL: they are made for this call.
    pub weight_cache: *mut nvte_weight_cache_t,
    /// Device: where it is not 0 a cached weight is not cast again; NULL: as 0. Needs a weight cache.
    pub skip_refresh: *const u32,
    /// Device: [tokens, in_features], row stride ldx in elements.
    pub x: *const c_void,
    /// Its row stride.
    pub ldx: i64,
    /// Device: [in_features]; NULL: 1.
    pub gamma: *const c_void,
    /// Device: [in_features]; NULL: 0. RMSNorm: NULL.
    pub beta: *const c_void,
    /// Device: [ffn_features, in_features], or [2 * ffn_features, in_features] where gated.
    pub fc1_weight: *const c_void,
    /// Its row stride in elements.
    pub ld_fc1_weight: i64,
    /// Device: one element per row of fc1_weight; NULL: none.
    pub fc1_bias: *const c_void,
    /// Device: [in_features, ffn_features].
    pub fc2_weight: *const c_void,
    /// Its row stride in elements.
    pub ld_fc2_weight: i64,
    /// Device: [in_features]; NULL: none.
    pub fc2_bias: *const c_void,
    /// Device: [tokens, out_features].
    pub y: *mut c_void,
    /// Its row stride in elements.
    pub ldy: i64,
    /// Device: receives the norm's output [tokens, in_features]; NULL: not wanted.
    pub norm_out: *mut c_void,
    /// Its row stride in elements.
    pub ld_norm_out: i64,
}

/// Arguments of nvte_layernorm_mlp_bwd. Flags, tokens and weight_cache are those of the forward call; NVTE_LAYER_ACCUMULATE_DW may be added.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_layernorm_mlp_bwd_args_t {
    /// sizeof(nvte_layernorm_mlp_bwd_args_t).
    pub struct_size: u32,
    /// NVTE_LAYER_*.
    pub flags: u32,
    /// Rows of x.
    pub tokens: i64,
    /// What backward will read: device memory, aligned to 16 bytes; NULL where the flags need nothing.
    pub saved: *const c_void,
    /// Its size.
    pub saved_bytes: u64,
    /// Device memory for this call alone, aligned to 16 bytes.
    pub workspace: *mut c_void,
    /// Its size.
    pub workspace_bytes: u64,
    /// Device: the layer's slots that record amaxes; NULL: nothing is recorded.
    pub live: *mut f32,
    /// Device: the layer's scales; written only for replaced weights; NULL: 1.
    pub scale: *mut f32,
    /// Host: FP8 copies of the weights; NULL: found in `saved` (NVTE_LAYER_SAVE_WEIGHT), or made for this call with the scale that forward used.
    pub weight_cache: *mut nvte_weight_cache_t,
    /// Device: where it is not 0 a cached weight is not cast again; NULL: as 0. Needs a weight cache.
    pub skip_refresh: *const u32,
    /// Device: [tokens, out_features].
    pub dy: *const c_void,
    /// Its row stride in elements.
    pub lddy: i64,
    /// Device: as in forward.
    pub x: *const c_void,
    /// Its row stride in elements.
    pub ldx: i64,
    /// Device: as in forward.
    pub gamma: *const c_void,
    /// Device: as in forward.
    pub fc1_weight: *const c_void,
    /// Its row stride in elements.
    pub ld_fc1_weight: i64,
    /// Device: as in forward.
    pub fc2_weight: *const c_void,
    /// Its row stride in elements.
    pub ld_fc2_weight: i64,
    /// Device: a gradient that reached norm_out by itself, [tokens, in_features]; NULL: none.
    pub dnorm_out: *const c_void,
    /// Its row stride in elements.
    pub ld_dnorm_out: i64,
    /// Device: receives the gradient of x [tokens, in_features]; not NULL where the flags ask for it.
    pub dx: *mut c_void,
    /// Its row stride in elements.
    pub lddx: i64,
    /// Device: receives [in_features]; NULL: not wanted.
    pub dgamma: *mut c_void,
    /// Device: receives [in_features]; NULL: not wanted. RMSNorm: NULL.
    pub dbeta: *mut c_void,
    /// Device: receives the gradient of fc1_weight, of dw_dtype; NULL: not wanted.
    pub dfc1_weight: *mut c_void,
    /// Its row stride in elements.
    pub ld_dfc1_weight: i64,
    /// Device: receives the gradient of fc1_bias; NULL: not wanted.
    pub dfc1_bias: *mut c_void,
    /// Device: receives the gradient of fc2_weight, of dw_dtype; NULL: not wanted.
    pub dfc2_weight: *mut c_void,
    /// Its row stride in elements.
    pub ld_dfc2_weight: i64,
    /// Device: receives the gradient of fc2_bias; NULL: not wanted.
    pub dfc2_bias: *mut c_void,
    /// NVTE_F32, NVTE_F16 or NVTE_BF16: type of the weights' gradients.
    pub dw_dtype: i32,
    /// 0.
    pub reserved: u32,
}
