"""The C ABI as data. Generated from include/nvte.h by bindings/python/abi.py; do not edit."""

from ctypes import Structure, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

NVTE_OK = 0
NVTE_ERROR_NULL_POINTER = 100
NVTE_ERROR_INVALID_DTYPE = 101
NVTE_ERROR_INVALID_SHAPE = 102
NVTE_ERROR_INVALID_STRIDE = 103
NVTE_ERROR_INVALID_ENUM = 104
NVTE_ERROR_WORKSPACE_TOO_SMALL = 105
NVTE_ERROR_OVERLAP = 106
NVTE_ERROR_INVALID_HANDLE = 107
NVTE_ERROR_WRONG_DEVICE = 108
NVTE_ERROR_INVALID_VALUE = 109
NVTE_ERROR_INVALID_STRUCT_SIZE = 110
NVTE_ERROR_MISALIGNED = 111
NVTE_ERROR_SIZE_OVERFLOW = 112
NVTE_ERROR_UNSUPPORTED = 200
NVTE_ERROR_NOT_CAPTURABLE = 201
NVTE_ERROR_NO_DRIVER = 300
NVTE_ERROR_DRIVER_TOO_OLD = 301
NVTE_ERROR_NO_DEVICE = 302
NVTE_ERROR_CUDA = 303
NVTE_ERROR_NVRTC_NOT_FOUND = 400
NVTE_ERROR_NVRTC = 401
NVTE_ERROR_CUBLASLT_NOT_FOUND = 500
NVTE_ERROR_CUBLASLT = 501
NVTE_ERROR_INTERNAL = 900
NVTE_ERROR_OUT_OF_MEMORY = 901
NVTE_F32 = 0
NVTE_F16 = 1
NVTE_BF16 = 2
NVTE_E4M3 = 3
NVTE_E5M2 = 4
NVTE_SCALING_NONE = 0
NVTE_SCALING_PER_TENSOR = 1
NVTE_DEVICE_CPU = 0
NVTE_DEVICE_CUDA = 1
NVTE_ABI_VERSION = 1
NVTE_ACTIVATION_GELU = 0
NVTE_ACTIVATION_GELU_ERF = 1
NVTE_ACTIVATION_SILU = 2
NVTE_ACTIVATION_RELU = 3
NVTE_ACTIVATION_QGELU = 4
NVTE_ACTIVATION_SRELU = 5
NVTE_ACTIVATION_GEGLU = 16
NVTE_ACTIVATION_GEGLU_ERF = 17
NVTE_ACTIVATION_SWIGLU = 18
NVTE_ACTIVATION_REGLU = 19
NVTE_ACTIVATION_QGEGLU = 20
NVTE_ACTIVATION_SREGLU = 21
NVTE_REDUCTION_NONE = 0
NVTE_REDUCTION_SUM = 1
NVTE_REDUCTION_MEAN = 2
NVTE_TARGET_I64 = 0
NVTE_TARGET_I32 = 1
NVTE_ACCUMULATE_FAST = 1
NVTE_ACCUMULATE_PRECISE = 2
NVTE_EPILOGUE_NONE = 0
NVTE_RECIPE_NONE = 0
NVTE_RECIPE_DELAYED = 1
NVTE_RECIPE_CURRENT = 2
NVTE_FORMAT_HYBRID = 0
NVTE_FORMAT_E4M3 = 1
NVTE_LAYER_NEEDS_DX = 1
NVTE_LAYER_NEEDS_DW = 2
NVTE_LAYER_NEEDS_DW2 = 4
NVTE_LAYER_NEEDS_DNORM = 8
NVTE_LAYER_ACCUMULATE_DW = 16
NVTE_LAYER_CALIBRATE = 32
NVTE_LAYER_WEIGHT_SCALE_DUE = 64
NVTE_LAYER_WEIGHT_SCALE_KEEP = 128
NVTE_LAYER_SAVE_WEIGHT = 256
NVTE_QKV_CONCATENATED = 0
NVTE_QKV_GROUPED = 1
NVTE_AMAX_MAX = 0
NVTE_AMAX_MOST_RECENT = 1


class nvte_capability_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device_type", c_int32),
        ("ordinal", c_int32),
        ("arch", c_int32),
        ("multiprocessors", c_int32),
        ("fp8_cast_hardware", c_int32),
        ("fp8_gemm_hardware", c_int32),
        ("fp8_gemm_k_major_only", c_int32),
        ("total_memory", c_uint64),
        ("name", c_char * 128),
    ]


class nvte_context_options_t(Structure):
    _fields_ = [("struct_size", c_uint32), ("num_threads", c_uint32), ("cache_dir", c_char_p), ("library_dirs", c_char_p)]


class nvte_tensor_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_int32),
        ("scaling", c_int32),
        ("flags", c_uint32),
        ("data", c_void_p),
        ("rows", c_int64),
        ("cols", c_int64),
        ("ld", c_int64),
        ("data_t", c_void_p),
        ("ld_t", c_int64),
        ("scale", c_void_p),
        ("scale_inv", c_void_p),
        ("scale_inv_ld", c_int64),
        ("scale_inv_t", c_void_p),
        ("scale_inv_t_ld", c_int64),
        ("amax", c_void_p),
    ]


class nvte_activation_bwd_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_int32),
        ("dy", c_void_p),
        ("input", c_void_p),
        ("output", c_void_p),
        ("dbias", c_void_p),
        ("dbias_dtype", c_int32),
        ("accumulate", c_int32),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
    ]


class nvte_adamw_list_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("count", c_int64),
        ("weights", c_void_p),
        ("gradients", c_void_p),
        ("masters", c_void_p),
        ("exp_avgs", c_void_p),
        ("exp_avg_sqs", c_void_p),
        ("fp8s", c_void_p),
    ]


class nvte_list_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_int32),
        ("data", c_void_p),
        ("bytes", c_uint64),
        ("count", c_int64),
        ("blocks", c_uint64),
        ("tiles", c_uint64),
    ]


class nvte_adamw_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("decoupled", c_int32),
        ("bias_correction", c_int32),
        ("reserved", c_uint32),
        ("list", c_void_p),
        ("step", c_void_p),
        ("lr_ptr", c_void_p),
        ("found_inf", c_void_p),
        ("grad_scale", c_void_p),
        ("clip", c_void_p),
        ("lr", c_double),
        ("beta1", c_double),
        ("beta2", c_double),
        ("eps", c_double),
        ("weight_decay", c_double),
    ]


class nvte_cast_current_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("margin", c_int32),
        ("epsilon", c_float),
        ("power_of_two", c_int32),
        ("input", c_void_p),
        ("output", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
    ]


class nvte_cast_dbias_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dbias_dtype", c_int32),
        ("input", c_void_p),
        ("output", c_void_p),
        ("dbias", c_void_p),
        ("accumulate", c_int32),
        ("current", c_int32),
        ("margin", c_int32),
        ("epsilon", c_float),
        ("power_of_two", c_int32),
        ("reserved", c_uint32),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
    ]


class nvte_cross_entropy_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("target_type", c_int32),
        ("logits", c_void_p),
        ("dlogits", c_void_p),
        ("target", c_void_p),
        ("ignore_index", c_int64),
        ("dloss", c_void_p),
        ("dloss_stride", c_int64),
        ("loss", c_void_p),
        ("logsumexp", c_void_p),
        ("total", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("label_smoothing", c_float),
        ("reduction", c_int32),
    ]


class nvte_cross_entropy_slice_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("target_type", c_int32),
        ("logits", c_void_p),
        ("dlogits", c_void_p),
        ("target", c_void_p),
        ("ignore_index", c_int64),
        ("start", c_int64),
        ("vocabulary", c_int64),
        ("partial", c_void_p),
        ("combined", c_void_p),
        ("dloss", c_void_p),
        ("dloss_stride", c_int64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("label_smoothing", c_float),
        ("reduction", c_int32),
    ]


class nvte_cross_entropy_combine_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("target_type", c_int32),
        ("partials", c_void_p),
        ("ranks", c_int64),
        ("rank_stride", c_int64),
        ("tokens", c_int64),
        ("vocabulary", c_int64),
        ("target", c_void_p),
        ("ignore_index", c_int64),
        ("combined", c_void_p),
        ("loss", c_void_p),
        ("logsumexp", c_void_p),
        ("total", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("label_smoothing", c_float),
        ("reduction", c_int32),
    ]


class nvte_dropout_fwd_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("p", c_double),
        ("x", c_void_p),
        ("bias", c_void_p),
        ("residual", c_void_p),
        ("y", c_void_p),
        ("mask", c_void_p),
        ("mask_ld", c_int64),
        ("rng", c_void_p),
        ("rng_stream", c_uint64),
    ]


class nvte_dropout_bwd_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dbias_dtype", c_int32),
        ("p", c_double),
        ("dy", c_void_p),
        ("dx", c_void_p),
        ("mask", c_void_p),
        ("mask_ld", c_int64),
        ("rng", c_void_p),
        ("rng_stream", c_uint64),
        ("dbias", c_void_p),
        ("accumulate", c_int32),
        ("reserved", c_uint32),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
    ]


class nvte_gemm_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("accumulate", c_int32),
        ("transpose_a", c_int32),
        ("transpose_b", c_int32),
        ("epilogue", c_int32),
        ("bias_dtype", c_int32),
        ("alpha", c_float),
        ("beta", c_float),
        ("a", c_void_p),
        ("b", c_void_p),
        ("bias", c_void_p),
        ("c", c_void_p),
        ("d", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
    ]


class nvte_grad_norm_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("list", c_void_p),
        ("grad_scale", c_void_p),
        ("max_norm", c_double),
        ("norm", c_void_p),
        ("clip", c_void_p),
        ("found_inf", c_void_p),
    ]


class nvte_layer_config_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_int32),
        ("param_dtype", c_int32),
        ("recipe", c_int32),
        ("format", c_int32),
        ("margin", c_int32),
        ("epsilon", c_float),
        ("power_of_two", c_int32),
        ("accumulate_fprop", c_int32),
        ("accumulate_dgrad", c_int32),
        ("accumulate_wgrad", c_int32),
        ("rmsnorm", c_int32),
        ("zero_centered_gamma", c_int32),
        ("activation", c_int32),
        ("eps", c_float),
        ("reserved", c_uint32),
        ("in_features", c_int64),
        ("out_features", c_int64),
        ("ffn_features", c_int64),
    ]


class nvte_weight_cache_t(Structure):
    _fields_ = [("struct_size", c_uint32), ("valid", c_uint32), ("data", c_void_p), ("bytes", c_uint64)]


class nvte_linear_fwd_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("tokens", c_int64),
        ("saved", c_void_p),
        ("saved_bytes", c_uint64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("live", c_void_p),
        ("scale", c_void_p),
        ("weight_cache", c_void_p),
        ("skip_refresh", c_void_p),
        ("x", c_void_p),
        ("ldx", c_int64),
        ("weight", c_void_p),
        ("ldw", c_int64),
        ("bias", c_void_p),
        ("y", c_void_p),
        ("ldy", c_int64),
    ]


class nvte_linear_bwd_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("tokens", c_int64),
        ("saved", c_void_p),
        ("saved_bytes", c_uint64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("live", c_void_p),
        ("scale", c_void_p),
        ("weight_cache", c_void_p),
        ("skip_refresh", c_void_p),
        ("dy", c_void_p),
        ("lddy", c_int64),
        ("x", c_void_p),
        ("ldx", c_int64),
        ("weight", c_void_p),
        ("ldw", c_int64),
        ("dx", c_void_p),
        ("lddx", c_int64),
        ("dw", c_void_p),
        ("lddw", c_int64),
        ("db", c_void_p),
        ("dw_dtype", c_int32),
        ("reserved", c_uint32),
    ]


class nvte_layernorm_linear_fwd_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("tokens", c_int64),
        ("saved", c_void_p),
        ("saved_bytes", c_uint64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("live", c_void_p),
        ("scale", c_void_p),
        ("weight_cache", c_void_p),
        ("skip_refresh", c_void_p),
        ("x", c_void_p),
        ("ldx", c_int64),
        ("gamma", c_void_p),
        ("beta", c_void_p),
        ("weight", c_void_p),
        ("ldw", c_int64),
        ("bias", c_void_p),
        ("y", c_void_p),
        ("ldy", c_int64),
        ("norm_out", c_void_p),
        ("ld_norm_out", c_int64),
    ]


class nvte_layernorm_linear_bwd_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("tokens", c_int64),
        ("saved", c_void_p),
        ("saved_bytes", c_uint64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("live", c_void_p),
        ("scale", c_void_p),
        ("weight_cache", c_void_p),
        ("skip_refresh", c_void_p),
        ("dy", c_void_p),
        ("lddy", c_int64),
        ("x", c_void_p),
        ("ldx", c_int64),
        ("gamma", c_void_p),
        ("weight", c_void_p),
        ("ldw", c_int64),
        ("dnorm_out", c_void_p),
        ("ld_dnorm_out", c_int64),
        ("dx", c_void_p),
        ("lddx", c_int64),
        ("dgamma", c_void_p),
        ("dbeta", c_void_p),
        ("dw", c_void_p),
        ("lddw", c_int64),
        ("db", c_void_p),
        ("dw_dtype", c_int32),
        ("reserved", c_uint32),
    ]


class nvte_layernorm_mlp_fwd_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("tokens", c_int64),
        ("saved", c_void_p),
        ("saved_bytes", c_uint64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("live", c_void_p),
        ("scale", c_void_p),
        ("weight_cache", c_void_p),
        ("skip_refresh", c_void_p),
        ("x", c_void_p),
        ("ldx", c_int64),
        ("gamma", c_void_p),
        ("beta", c_void_p),
        ("fc1_weight", c_void_p),
        ("ld_fc1_weight", c_int64),
        ("fc1_bias", c_void_p),
        ("fc2_weight", c_void_p),
        ("ld_fc2_weight", c_int64),
        ("fc2_bias", c_void_p),
        ("y", c_void_p),
        ("ldy", c_int64),
        ("norm_out", c_void_p),
        ("ld_norm_out", c_int64),
    ]


class nvte_layernorm_mlp_bwd_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("tokens", c_int64),
        ("saved", c_void_p),
        ("saved_bytes", c_uint64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("live", c_void_p),
        ("scale", c_void_p),
        ("weight_cache", c_void_p),
        ("skip_refresh", c_void_p),
        ("dy", c_void_p),
        ("lddy", c_int64),
        ("x", c_void_p),
        ("ldx", c_int64),
        ("gamma", c_void_p),
        ("fc1_weight", c_void_p),
        ("ld_fc1_weight", c_int64),
        ("fc2_weight", c_void_p),
        ("ld_fc2_weight", c_int64),
        ("dnorm_out", c_void_p),
        ("ld_dnorm_out", c_int64),
        ("dx", c_void_p),
        ("lddx", c_int64),
        ("dgamma", c_void_p),
        ("dbeta", c_void_p),
        ("dfc1_weight", c_void_p),
        ("ld_dfc1_weight", c_int64),
        ("dfc1_bias", c_void_p),
        ("dfc2_weight", c_void_p),
        ("ld_dfc2_weight", c_int64),
        ("dfc2_bias", c_void_p),
        ("dw_dtype", c_int32),
        ("reserved", c_uint32),
    ]


class nvte_layer_sizes_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("slots", c_uint32),
        ("saved_per_token", c_uint64),
        ("saved_fixed", c_uint64),
        ("forward_workspace_per_token", c_uint64),
        ("forward_workspace_fixed", c_uint64),
        ("backward_workspace_per_token", c_uint64),
        ("backward_workspace_fixed", c_uint64),
        ("weight_cache", c_uint64),
    ]


class nvte_multi_cast_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("current", c_int32),
        ("list", c_void_p),
        ("skip", c_void_p),
        ("margin", c_int32),
        ("epsilon", c_float),
        ("power_of_two", c_int32),
        ("reserved", c_uint32),
    ]


class nvte_norm_fwd_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("zero_centered_gamma", c_int32),
        ("x", c_void_p),
        ("gamma", c_void_p),
        ("beta", c_void_p),
        ("y", c_void_p),
        ("mu", c_void_p),
        ("rsigma", c_void_p),
        ("eps", c_float),
        ("reserved", c_uint32),
        ("residual", c_void_p),
        ("sum", c_void_p),
    ]


class nvte_norm_bwd_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("zero_centered_gamma", c_int32),
        ("dy", c_void_p),
        ("x", c_void_p),
        ("gamma", c_void_p),
        ("mu", c_void_p),
        ("rsigma", c_void_p),
        ("dx", c_void_p),
        ("dgamma", c_void_p),
        ("dbeta", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("dsum", c_void_p),
    ]


class nvte_rope_angles_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("interleaved", c_int32),
        ("rotary_dim", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("table_rows", c_int64),
        ("table_ld", c_int64),
        ("start", c_int64),
        ("positions", c_void_p),
        ("positions_i64", c_int32),
        ("reserved", c_uint32),
        ("positions_seq_stride", c_int64),
        ("positions_batch_stride", c_int64),
        ("start_positions", c_void_p),
        ("cu_seqlens", c_void_p),
        ("sequences", c_int64),
    ]


class nvte_rope_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_int32),
        ("seq", c_int64),
        ("batch", c_int64),
        ("heads", c_int64),
        ("head_dim", c_int64),
        ("x", c_void_p),
        ("x_seq_stride", c_int64),
        ("x_batch_stride", c_int64),
        ("x_head_stride", c_int64),
        ("y", c_void_p),
        ("y_seq_stride", c_int64),
        ("y_batch_stride", c_int64),
        ("y_head_stride", c_int64),
        ("angles", c_void_p),
    ]


class nvte_rope_qkv_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_int32),
        ("order", c_int32),
        ("reserved", c_uint32),
        ("seq", c_int64),
        ("batch", c_int64),
        ("q_heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("qkv", c_void_p),
        ("qkv_seq_stride", c_int64),
        ("qkv_batch_stride", c_int64),
        ("q", c_void_p),
        ("q_seq_stride", c_int64),
        ("q_batch_stride", c_int64),
        ("k", c_void_p),
        ("v", c_void_p),
        ("kv_seq_stride", c_int64),
        ("kv_batch_stride", c_int64),
        ("angles", c_void_p),
    ]


class nvte_scaling_update_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("algo", c_int32),
        ("slots", c_int64),
        ("history_len", c_int64),
        ("live", c_void_p),
        ("scale", c_void_p),
        ("history", c_void_p),
        ("slot_stride", c_int64),
        ("step_stride", c_int64),
        ("format_max", c_void_p),
        ("nonfinite", c_void_p),
        ("scale_inv", c_void_p),
        ("counter", c_void_p),
        ("interval", c_uint32),
        ("margin", c_int32),
        ("epsilon", c_float),
        ("power_of_two", c_int32),
    ]


class nvte_softmax_fwd_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("causal", c_int32),
        ("x", c_void_p),
        ("y", c_void_p),
        ("mask", c_void_p),
        ("mask_batch_stride", c_int64),
        ("mask_head_stride", c_int64),
        ("mask_query_stride", c_int64),
        ("queries", c_int64),
        ("heads", c_int64),
        ("offset", c_int64),
        ("scale", c_float),
        ("reserved", c_uint32),
    ]


class nvte_softmax_bwd_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("causal", c_int32),
        ("dy", c_void_p),
        ("y", c_void_p),
        ("dx", c_void_p),
        ("queries", c_int64),
        ("offset", c_int64),
        ("scale", c_float),
        ("reserved", c_uint32),
    ]


#: Functions in the order of nvte_api_t: (result, arguments).
FUNCTIONS = {
    "nvte_version": (c_char_p, ()),
    "nvte_abi_version": (c_uint32, ()),
    "nvte_status_name": (c_char_p, (c_int32,)),
    "nvte_last_error": (c_char_p, ()),
    "nvte_last_error_code": (c_int32, ()),
    "nvte_set_log": (c_int32, (c_void_p, c_void_p)),
    "nvte_info": (c_int32, (c_void_p, c_void_p, c_size_t, c_void_p)),
    "nvte_context_create": (c_int32, (c_int32, c_int32, c_void_p, c_void_p)),
    "nvte_context_destroy": (c_int32, (c_void_p,)),
    "nvte_context_trim": (c_int32, (c_void_p,)),
    "nvte_context_synchronize": (c_int32, (c_void_p, c_void_p)),
    "nvte_capability": (c_int32, (c_void_p, c_void_p)),
    "nvte_cast_to_fp8": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "nvte_cast_to_fp8_current_workspace": (c_int32, (c_void_p, c_void_p)),
    "nvte_cast_to_fp8_current": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_cast_dbias_workspace": (c_int32, (c_void_p, c_int64, c_int64, c_void_p)),
    "nvte_cast_dbias": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_amax": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "nvte_dequantize": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "nvte_fp8_transpose": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "nvte_scaling_update": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_gemm_workspace": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_fp8_gemm": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_gemm": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_gemm_prepare": (c_int32, (c_void_p, c_void_p, c_uint32, c_void_p)),
    "nvte_gemm_plans_export": (c_int32, (c_void_p, c_void_p, c_size_t, c_void_p)),
    "nvte_gemm_plans_import": (c_int32, (c_void_p, c_char_p)),
    "nvte_layernorm_fwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_layernorm_bwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_rmsnorm_fwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_rmsnorm_bwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_norm_bwd_workspace": (c_int32, (c_void_p, c_int64, c_void_p)),
    "nvte_activation_fwd": (c_int32, (c_void_p, c_int32, c_void_p, c_void_p, c_void_p)),
    "nvte_activation_bwd_workspace": (c_int32, (c_void_p, c_int32, c_int64, c_int64, c_void_p)),
    "nvte_activation_bwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_linear_create": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_linear_fwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_linear_bwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_layernorm_linear_create": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_layernorm_linear_fwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_layernorm_linear_bwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_layernorm_mlp_create": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_layernorm_mlp_fwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_layernorm_mlp_bwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_layer_sizes": (c_int32, (c_void_p, c_uint32, c_void_p)),
    "nvte_layer_destroy": (c_int32, (c_void_p,)),
    "nvte_softmax_fwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_softmax_bwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_rope_table": (c_int32, (c_int64, c_int64, c_int64, c_double, c_void_p, c_void_p)),
    "nvte_rope_fwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_rope_bwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_rope_qkv_fwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_rope_qkv_bwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_list_gradients": (c_int32, (c_void_p, c_void_p, c_void_p, c_int64, c_void_p)),
    "nvte_adamw_list_workspace": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_adamw_list": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "nvte_adamw": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_grad_list_workspace": (c_int32, (c_void_p, c_void_p, c_int64, c_void_p)),
    "nvte_grad_list": (c_int32, (c_void_p, c_void_p, c_int64, c_void_p, c_void_p)),
    "nvte_grad_norm": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_grad_scale": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "nvte_cross_entropy_workspace": (c_int32, (c_void_p, c_int64, c_void_p)),
    "nvte_cross_entropy": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_cross_entropy_partial": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_cross_entropy_combine": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_cross_entropy_gradient": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_scale_rows": (c_int32, (c_void_p, c_void_p, c_int64, c_void_p, c_void_p)),
    "nvte_dropout_fwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_dropout_bwd_workspace": (c_int32, (c_void_p, c_int64, c_int64, c_void_p)),
    "nvte_dropout_bwd": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "nvte_cast_list_workspace": (c_int32, (c_void_p, c_void_p, c_void_p, c_int64, c_void_p)),
    "nvte_cast_list": (c_int32, (c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p)),
    "nvte_multi_cast_to_fp8": (c_int32, (c_void_p, c_void_p, c_void_p)),
}
