//! The table of all exported functions.
//!
//! NVIDIA's library exports names of ours (`nvte_layernorm_fwd` and others) and is loaded with RTLD_GLOBAL, so whoever links against
//! this library and is opened later may reach *its* function. `nvte_api` is a name of ours alone, and the table behind it holds
//! addresses fixed inside this library.

use std::{ffi::c_void, mem};

/// Number of the ABI a program is written against: pass it to nvte_api. It changes only if something existing changes.
pub const NVTE_ABI_VERSION: u32 = 1;

/// The table. In the header each entry has its function's type; here only the order counts.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct nvte_api_t {
    /// sizeof(nvte_api_t) of this library.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Addresses, in the order of [`NAMES`].
    pub functions: [*const c_void; NAMES.len()],
}

// SAFETY: addresses of functions.
unsafe impl Sync for nvte_api_t {}

macro_rules! table {
    ($($family:ident :: $name:ident,)*) => {
        /// The functions of the table, in order.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        static TABLE: nvte_api_t = nvte_api_t {
            struct_size: mem::size_of::<nvte_api_t>() as u32,
            reserved: 0,
            functions: [$(super::$family::$name as *const c_void),*],
        };
    };
}

// Append only: one line per exported function.
table! {
    info::nvte_version,
    info::nvte_abi_version,
    info::nvte_status_name,
    context::nvte_last_error,
    context::nvte_last_error_code,
    context::nvte_set_log,
    info::nvte_info,
    context::nvte_context_create,
    context::nvte_context_destroy,
    context::nvte_context_trim,
    context::nvte_context_synchronize,
    info::nvte_capability,
    cast::nvte_cast_to_fp8,
    cast::nvte_cast_to_fp8_current_workspace,
    cast::nvte_cast_to_fp8_current,
    cast::nvte_cast_dbias_workspace,
    cast::nvte_cast_dbias,
    amax::nvte_amax,
    dequantize::nvte_dequantize,
    dequantize::nvte_fp8_transpose,
    scaling::nvte_scaling_update,
    gemm::nvte_gemm_workspace,
    gemm::nvte_fp8_gemm,
    gemm::nvte_gemm,
    gemm::nvte_gemm_prepare,
    gemm::nvte_gemm_plans_export,
    gemm::nvte_gemm_plans_import,
    norm::nvte_layernorm_fwd,
    norm::nvte_layernorm_bwd,
    norm::nvte_rmsnorm_fwd,
    norm::nvte_rmsnorm_bwd,
    norm::nvte_norm_bwd_workspace,
    activation::nvte_activation_fwd,
    activation::nvte_activation_bwd_workspace,
    activation::nvte_activation_bwd,
    layers::nvte_linear_create,
    layers::nvte_linear_fwd,
    layers::nvte_linear_bwd,
    layers::nvte_layernorm_linear_create,
    layers::nvte_layernorm_linear_fwd,
    layers::nvte_layernorm_linear_bwd,
    layers::nvte_layernorm_mlp_create,
    layers::nvte_layernorm_mlp_fwd,
    layers::nvte_layernorm_mlp_bwd,
    layers::nvte_layer_sizes,
    layers::nvte_layer_destroy,
    softmax::nvte_softmax_fwd,
    softmax::nvte_softmax_bwd,
    rope::nvte_rope_table,
    rope::nvte_rope_fwd,
    rope::nvte_rope_bwd,
    rope::nvte_rope_qkv_fwd,
    rope::nvte_rope_qkv_bwd,
    list::nvte_list_gradients,
    adamw::nvte_adamw_list_workspace,
    adamw::nvte_adamw_list,
    adamw::nvte_adamw,
    grad_norm::nvte_grad_list_workspace,
    grad_norm::nvte_grad_list,
    grad_norm::nvte_grad_norm,
    grad_norm::nvte_grad_scale,
    cross_entropy::nvte_cross_entropy_workspace,
    cross_entropy::nvte_cross_entropy,
    cross_entropy::nvte_cross_entropy_partial,
    cross_entropy::nvte_cross_entropy_combine,
    cross_entropy::nvte_cross_entropy_gradient,
    cross_entropy::nvte_scale_rows,
    dropout::nvte_dropout_fwd,
    dropout::nvte_dropout_bwd_workspace,
    dropout::nvte_dropout_bwd,
    multi_cast::nvte_cast_list_workspace,
    multi_cast::nvte_cast_list,
    multi_cast::nvte_multi_cast_to_fp8,
}

/// The table of all functions of this library: the way to call it that no other library's names can divert.
///
/// `abi_version`: NVTE_ABI_VERSION of the header the caller was compiled with. Entries are only ever appended: an entry is there if
/// struct_size reaches past it.
///
/// Shapes: none. Units: none. Pointers: a static host struct; NULL where this library does not provide that version of the ABI.
/// Alignment: none. Aliasing: none. Stream order: none. Determinism: not applicable. Errors: none.
#[no_mangle]
pub extern "C" fn nvte_api(abi_version: u32) -> *const nvte_api_t {
    if abi_version == NVTE_ABI_VERSION {
        &TABLE
    } else {
        std::ptr::null()
    }
}
