// nvte for C++17: move-only handles and exceptions over nvte.h; header-only. Link with -lnvte.
// SPDX-License-Identifier: Apache-2.0
//
//   nvte::context ctx = nvte::context::cpu();
//   nvte::cast_to_fp8(ctx, nvte::tensor(x, rows, cols), nvte::tensor(nvte::dtype::e4m3, q, rows, cols).scale(&s).scale_inv(&si));
//
// Names and arguments are those of nvte.h, where every function is described; a status other than 0 is thrown as nvte::error.
// All calls go through nvte_api(): other libraries may export some of the same names.
#ifndef NVTE_HPP
#define NVTE_HPP

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "nvte.h"

namespace nvte {

// What a call answered other than NVTE_OK.
class error : public std::runtime_error {
 public:
  error(nvte_status_t status, std::int32_t code, const std::string &message) : std::runtime_error(message), status_(status), code_(code) {}
  // An NVTE_ERROR_* number.
  nvte_status_t status() const noexcept { return status_; }
  // Code of the CUDA driver, NVRTC or cuBLASLt, 0 where none was involved.
  std::int32_t code() const noexcept { return code_; }

 private:
  nvte_status_t status_;
  std::int32_t code_;
};

// The library's functions. Throws where the library in this process is older than the header.
inline const nvte_api_t &api() {
  static const nvte_api_t *const table = [] {
    const nvte_api_t *t = ::nvte_api(NVTE_ABI_VERSION);
    if (t == nullptr || t->struct_size < sizeof(nvte_api_t)) {
      throw error(NVTE_ERROR_UNSUPPORTED, 0, "libnvte.so is older than the nvte.h this program was compiled with");
    }
    return t;
  }();
  return *table;
}

// Throws unless `status` is NVTE_OK.
inline void check(nvte_status_t status) {
  if (status != NVTE_OK) {
    const std::int32_t code = api().last_error_code();
    throw error(status, code, std::string(api().status_name(status)) + ": " + api().last_error());
  }
}

inline std::string version() { return api().version(); }
inline std::uint32_t abi_version() { return api().abi_version(); }
inline void set_log(nvte_log_fn log, void *user = nullptr) { check(api().set_log(log, user)); }

// A struct of nvte.h with its size set and everything else 0: nvte::sized<nvte_context_options_t>().
template <class T>
T sized() {
  T t{};
  t.struct_size = static_cast<std::uint32_t>(sizeof(T));
  return t;
}

namespace detail {
// Text that `write(buffer, size, needed)` hands out.
template <class F>
std::string text(const F &write) {
  std::string text;
  // Twice as a rule: once for the size. What it reports may have grown in between.
  for (std::size_t needed = 1; text.size() < needed;) {
    text.resize(needed);
    check(write(&text[0], text.size(), &needed));
    if (needed < text.size()) text.resize(needed);
  }
  text.pop_back();
  return text;
}
inline std::string info(nvte_context_t ctx) {
  return text([&](char *buffer, std::size_t size, std::size_t *needed) { return api().info(ctx, buffer, size, needed); });
}
}  // namespace detail

// The report about this process, as JSON.
inline std::string info() { return detail::info(nullptr); }

// One device and its caches; shared by threads and streams.
class context {
 public:
  context(std::int32_t device_type, std::int32_t ordinal, const nvte_context_options_t *options = nullptr) {
    check(api().context_create(device_type, ordinal, options, &handle_));
  }
  static context cpu(const nvte_context_options_t *options = nullptr) { return context(NVTE_DEVICE_CPU, 0, options); }
  static context cuda(std::int32_t ordinal, const nvte_context_options_t *options = nullptr) {
    return context(NVTE_DEVICE_CUDA, ordinal, options);
  }
  context(context &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  context &operator=(context &&other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  context(const context &) = delete;
  context &operator=(const context &) = delete;
  ~context() {
    if (handle_ != nullptr) api().context_destroy(handle_);
  }

  nvte_context_t get() const noexcept { return handle_; }
  void trim() const { check(api().context_trim(handle_)); }
  void synchronize(nvte_stream_t stream = nullptr) const { check(api().context_synchronize(handle_, stream)); }
  nvte_capability_t capability() const {
    nvte_capability_t c = sized<nvte_capability_t>();
    check(api().capability(handle_, &c));
    return c;
  }
  std::string info() const { return detail::info(handle_); }

 private:
  nvte_context_t handle_ = nullptr;
};

enum class dtype : std::int32_t { f32 = NVTE_F32, f16 = NVTE_F16, bf16 = NVTE_BF16, e4m3 = NVTE_E4M3, e5m2 = NVTE_E5M2 };

// An nvte_tensor_t, built up: tensor(dtype::bf16, p, rows, cols).stride(ld). It points to memory and owns none; const data is taken as
// input only. Where a function takes an optional tensor, nullptr serves.
class tensor {
 public:
  tensor(dtype type, const void *data, std::int64_t rows, std::int64_t cols) {
    t_.dtype = static_cast<std::int32_t>(type);
    t_.scaling = type == dtype::e4m3 || type == dtype::e5m2 ? NVTE_SCALING_PER_TENSOR : NVTE_SCALING_NONE;
    t_.data = const_cast<void *>(data);
    t_.rows = rows;
    t_.cols = cols;
    t_.ld = cols;
  }
  tensor(const float *data, std::int64_t rows, std::int64_t cols) : tensor(dtype::f32, data, rows, cols) {}

  // Row stride, in elements.
  tensor &stride(std::int64_t ld) { return t_.ld = ld, *this; }
  // The transposed copy [cols, rows]; a stride of 0 means dense.
  tensor &transposed(const void *data, std::int64_t ld = 0) {
    t_.data_t = const_cast<void *>(data);
    t_.ld_t = ld == 0 ? t_.rows : ld;
    return *this;
  }
  tensor &scale(const float *p) { return t_.scale = p, *this; }
  tensor &scale_inv(const float *p) { return t_.scale_inv = const_cast<float *>(p), *this; }
  tensor &amax(float *p) { return t_.amax = p, *this; }

  const nvte_tensor_t *get() const noexcept { return &t_; }
  operator const nvte_tensor_t *() const noexcept { return &t_; }

 private:
  nvte_tensor_t t_ = sized<nvte_tensor_t>();
};

inline void cast_to_fp8(const context &ctx, const nvte_tensor_t *input, const nvte_tensor_t *output, nvte_stream_t stream = nullptr) {
  check(api().cast_to_fp8(ctx.get(), input, output, stream));
}

// Argument structs come from sized<>(); the tensors they point to must live until the call returns.

inline std::uint64_t cast_to_fp8_current_workspace(const context &ctx) {
  std::uint64_t bytes = 0;
  check(api().cast_to_fp8_current_workspace(ctx.get(), &bytes));
  return bytes;
}
inline void cast_to_fp8_current(const context &ctx, const nvte_cast_current_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().cast_to_fp8_current(ctx.get(), &args, stream));
}
inline std::uint64_t cast_dbias_workspace(const context &ctx, std::int64_t rows, std::int64_t cols) {
  std::uint64_t bytes = 0;
  check(api().cast_dbias_workspace(ctx.get(), rows, cols, &bytes));
  return bytes;
}
inline void cast_dbias(const context &ctx, const nvte_cast_dbias_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().cast_dbias(ctx.get(), &args, stream));
}
inline void amax(const context &ctx, const nvte_tensor_t *input, float *result, nvte_stream_t stream = nullptr) {
  check(api().amax(ctx.get(), input, result, stream));
}
inline void dequantize(const context &ctx, const nvte_tensor_t *input, const nvte_tensor_t *output, nvte_stream_t stream = nullptr) {
  check(api().dequantize(ctx.get(), input, output, stream));
}
inline void fp8_transpose(const context &ctx, const nvte_tensor_t *input, const nvte_tensor_t *output, nvte_stream_t stream = nullptr) {
  check(api().fp8_transpose(ctx.get(), input, output, stream));
}
inline void scaling_update(const context &ctx, const nvte_scaling_update_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().scaling_update(ctx.get(), &args, stream));
}

// How FP8 products are accumulated; there is no default.
enum class accumulate : std::int32_t { fast = NVTE_ACCUMULATE_FAST, precise = NVTE_ACCUMULATE_PRECISE };

// The arguments of d = a * b^T; change the fields of the result for more. The tensors must outlive it.
inline nvte_gemm_args_t gemm_args(const nvte_tensor_t *a, const nvte_tensor_t *b, const nvte_tensor_t *d, accumulate mode) {
  nvte_gemm_args_t args = sized<nvte_gemm_args_t>();
  args.accumulate = static_cast<std::int32_t>(mode);
  args.alpha = 1.0f;
  args.a = a;
  args.b = b;
  args.d = d;
  return args;
}

inline std::uint64_t gemm_workspace(const context &ctx, const nvte_gemm_args_t &args) {
  std::uint64_t bytes = 0;
  check(api().gemm_workspace(ctx.get(), &args, &bytes));
  return bytes;
}
inline void fp8_gemm(const context &ctx, const nvte_gemm_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().fp8_gemm(ctx.get(), &args, stream));
}
inline void gemm(const context &ctx, const nvte_gemm_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().gemm(ctx.get(), &args, stream));
}
inline void gemm_prepare(const context &ctx, const nvte_gemm_args_t &args, std::uint32_t candidates, nvte_stream_t stream = nullptr) {
  check(api().gemm_prepare(ctx.get(), &args, candidates, stream));
}
inline std::string gemm_plans_export(const context &ctx) {
  return detail::text([&](char *buffer, std::size_t size, std::size_t *needed) { return api().gemm_plans_export(ctx.get(), buffer, size, needed); });
}
inline void gemm_plans_import(const context &ctx, const std::string &text) { check(api().gemm_plans_import(ctx.get(), text.c_str())); }

// The arguments of a norm's forward pass; change the fields of the result for more, residual and sum among them. gamma, beta: nullptr for none (RMSNorm has no beta).
// The tensors must outlive it.
inline nvte_norm_fwd_args_t norm_fwd_args(const nvte_tensor_t *x, const nvte_tensor_t *gamma, const nvte_tensor_t *beta, const nvte_tensor_t *y,
                                          float eps) {
  nvte_norm_fwd_args_t args = sized<nvte_norm_fwd_args_t>();
  args.x = x;
  args.gamma = gamma;
  args.beta = beta;
  args.y = y;
  args.eps = eps;
  return args;
}
inline void layernorm_fwd(const context &ctx, const nvte_norm_fwd_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().layernorm_fwd(ctx.get(), &args, stream));
}
inline void rmsnorm_fwd(const context &ctx, const nvte_norm_fwd_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().rmsnorm_fwd(ctx.get(), &args, stream));
}

// Bytes of workspace of a norm's backward pass with weight gradients.
inline std::uint64_t norm_bwd_workspace(const context &ctx, std::int64_t hidden) {
  std::uint64_t bytes = 0;
  check(api().norm_bwd_workspace(ctx.get(), hidden, &bytes));
  return bytes;
}
// The arguments of a norm's backward pass without weight gradients; for those fill dgamma, dbeta and the workspace; for a residual's
// gradient dsum. mu: nullptr for RMSNorm.
inline nvte_norm_bwd_args_t norm_bwd_args(const nvte_tensor_t *dy, const nvte_tensor_t *x, const nvte_tensor_t *gamma, const float *mu,
                                          const float *rsigma, const nvte_tensor_t *dx) {
  nvte_norm_bwd_args_t args = sized<nvte_norm_bwd_args_t>();
  args.dy = dy;
  args.x = x;
  args.gamma = gamma;
  args.mu = mu;
  args.rsigma = rsigma;
  args.dx = dx;
  return args;
}
inline void layernorm_bwd(const context &ctx, const nvte_norm_bwd_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().layernorm_bwd(ctx.get(), &args, stream));
}
inline void rmsnorm_bwd(const context &ctx, const nvte_norm_bwd_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().rmsnorm_bwd(ctx.get(), &args, stream));
}

// Cosines and sines of a rotary position embedding, on the host: [rows, rotary_dim / 2] each, for positions from `start` on.
inline void rope_table(std::int64_t start, std::int64_t rows, std::int64_t rotary_dim, double base, float *cos, float *sin) {
  check(api().rope_table(start, rows, rotary_dim, base, cos, sin));
}
// The angles of a dense table [rows, rotary_dim / 2]; change the fields of the result for more. args of the four below: sized<>(), then
// filled; they hold a pointer to the angles.
inline nvte_rope_angles_t rope_angles(const float *cos, const float *sin, std::int64_t rows, std::int64_t rotary_dim) {
  nvte_rope_angles_t angles = sized<nvte_rope_angles_t>();
  angles.cos = cos;
  angles.sin = sin;
  angles.table_rows = rows;
  angles.table_ld = rotary_dim / 2;
  angles.rotary_dim = rotary_dim;
  return angles;
}
inline void rope_fwd(const context &ctx, const nvte_rope_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().rope_fwd(ctx.get(), &args, stream));
}
inline void rope_bwd(const context &ctx, const nvte_rope_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().rope_bwd(ctx.get(), &args, stream));
}
inline void rope_qkv_fwd(const context &ctx, const nvte_rope_qkv_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().rope_qkv_fwd(ctx.get(), &args, stream));
}
inline void rope_qkv_bwd(const context &ctx, const nvte_rope_qkv_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().rope_qkv_bwd(ctx.get(), &args, stream));
}

// args: sized<nvte_dropout_fwd_args_t>(), then filled; likewise below.
inline void dropout_fwd(const context &ctx, const nvte_dropout_fwd_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().dropout_fwd(ctx.get(), &args, stream));
}
inline std::uint64_t dropout_bwd_workspace(const context &ctx, std::int64_t rows, std::int64_t cols) {
  std::uint64_t bytes = 0;
  check(api().dropout_bwd_workspace(ctx.get(), rows, cols, &bytes));
  return bytes;
}
inline void dropout_bwd(const context &ctx, const nvte_dropout_bwd_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().dropout_bwd(ctx.get(), &args, stream));
}

inline void activation_fwd(const context &ctx, std::int32_t kind, const nvte_tensor_t *input, const nvte_tensor_t *output,
                           nvte_stream_t stream = nullptr) {
  check(api().activation_fwd(ctx.get(), kind, input, output, stream));
}
inline std::uint64_t activation_bwd_workspace(const context &ctx, std::int32_t kind, std::int64_t rows, std::int64_t hidden) {
  std::uint64_t bytes = 0;
  check(api().activation_bwd_workspace(ctx.get(), kind, rows, hidden, &bytes));
  return bytes;
}
// args: sized<nvte_activation_bwd_args_t>(), then filled.
inline void activation_bwd(const context &ctx, const nvte_activation_bwd_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().activation_bwd(ctx.get(), &args, stream));
}

// The arguments of a softmax over rows; change the fields of the result for a mask or causality. y: may be x.
inline nvte_softmax_fwd_args_t softmax_fwd_args(const nvte_tensor_t *x, const nvte_tensor_t *y, float scale = 1.0f) {
  nvte_softmax_fwd_args_t args = sized<nvte_softmax_fwd_args_t>();
  args.x = x;
  args.y = y;
  args.scale = scale;
  return args;
}
inline void softmax_fwd(const context &ctx, const nvte_softmax_fwd_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().softmax_fwd(ctx.get(), &args, stream));
}
// The arguments of its gradient. dx: may be dy.
inline nvte_softmax_bwd_args_t softmax_bwd_args(const nvte_tensor_t *dy, const nvte_tensor_t *y, const nvte_tensor_t *dx, float scale = 1.0f) {
  nvte_softmax_bwd_args_t args = sized<nvte_softmax_bwd_args_t>();
  args.dy = dy;
  args.y = y;
  args.dx = dx;
  args.scale = scale;
  return args;
}
inline void softmax_bwd(const context &ctx, const nvte_softmax_bwd_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().softmax_bwd(ctx.get(), &args, stream));
}

// A list of tensors for an operation that takes any number of them: its host part, with room for the table in device memory.
inline nvte_list_t list(void *data, std::uint64_t bytes) {
  nvte_list_t made = sized<nvte_list_t>();
  made.data = data;
  made.bytes = bytes;
  return made;
}
// Other gradients in place of those a list was made with.
inline void list_gradients(const context &ctx, const nvte_list_t &list, const void *const *gradients, std::int64_t count,
                           nvte_stream_t stream = nullptr) {
  check(api().list_gradients(ctx.get(), &list, gradients, count, stream));
}

// args: sized<nvte_adamw_list_args_t>(), then filled.
inline std::uint64_t adamw_list_workspace(const context &ctx, const nvte_adamw_list_args_t &args) {
  std::uint64_t bytes = 0;
  check(api().adamw_list_workspace(ctx.get(), &args, &bytes));
  return bytes;
}
inline void adamw_list(const context &ctx, const nvte_adamw_list_args_t &args, nvte_list_t &list, nvte_stream_t stream = nullptr) {
  check(api().adamw_list(ctx.get(), &args, &list, stream));
}
// The arguments of a step of AdamW with the usual constants; change the fields of the result for more. The list must outlive it.
inline nvte_adamw_args_t adamw_args(const nvte_list_t &list, float *step, double lr) {
  nvte_adamw_args_t args = sized<nvte_adamw_args_t>();
  args.decoupled = 1;
  args.bias_correction = 1;
  args.list = &list;
  args.step = step;
  args.lr = lr;
  args.beta1 = 0.9;
  args.beta2 = 0.999;
  args.eps = 1e-8;
  args.weight_decay = 0.01;
  return args;
}
inline void adamw(const context &ctx, const nvte_adamw_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().adamw(ctx.get(), &args, stream));
}

inline std::uint64_t cast_list_workspace(const context &ctx, const nvte_tensor_t *const *inputs, const nvte_tensor_t *const *outputs,
                                         std::int64_t count) {
  std::uint64_t bytes = 0;
  check(api().cast_list_workspace(ctx.get(), inputs, outputs, count, &bytes));
  return bytes;
}
inline void cast_list(const context &ctx, const nvte_tensor_t *const *inputs, const nvte_tensor_t *const *outputs, std::int64_t count,
                      nvte_list_t &list, nvte_stream_t stream = nullptr) {
  check(api().cast_list(ctx.get(), inputs, outputs, count, &list, stream));
}
// args: sized<nvte_multi_cast_args_t>(), then filled.
inline void multi_cast_to_fp8(const context &ctx, const nvte_multi_cast_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().multi_cast_to_fp8(ctx.get(), &args, stream));
}

inline std::uint64_t grad_list_workspace(const context &ctx, const nvte_tensor_t *const *gradients, std::int64_t count) {
  std::uint64_t bytes = 0;
  check(api().grad_list_workspace(ctx.get(), gradients, count, &bytes));
  return bytes;
}
inline void grad_list(const context &ctx, const nvte_tensor_t *const *gradients, std::int64_t count, nvte_list_t &list,
                      nvte_stream_t stream = nullptr) {
  check(api().grad_list(ctx.get(), gradients, count, &list, stream));
}
// args: sized<nvte_grad_norm_args_t>(), then filled.
inline void grad_norm(const context &ctx, const nvte_grad_norm_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().grad_norm(ctx.get(), &args, stream));
}
inline void grad_scale(const context &ctx, const nvte_list_t &list, const float *factor, nvte_stream_t stream = nullptr) {
  check(api().grad_scale(ctx.get(), &list, factor, stream));
}

// Cross-entropy. Argument structs come from sized<>(); ignore_index and the reduction are to be set.
inline std::uint64_t cross_entropy_workspace(const context &ctx, std::int64_t tokens) {
  std::uint64_t bytes = 0;
  check(api().cross_entropy_workspace(ctx.get(), tokens, &bytes));
  return bytes;
}
inline void cross_entropy(const context &ctx, const nvte_cross_entropy_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().cross_entropy(ctx.get(), &args, stream));
}
inline void cross_entropy_partial(const context &ctx, const nvte_cross_entropy_slice_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().cross_entropy_partial(ctx.get(), &args, stream));
}
inline void cross_entropy_combine(const context &ctx, const nvte_cross_entropy_combine_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().cross_entropy_combine(ctx.get(), &args, stream));
}
inline void cross_entropy_gradient(const context &ctx, const nvte_cross_entropy_slice_args_t &args, nvte_stream_t stream = nullptr) {
  check(api().cross_entropy_gradient(ctx.get(), &args, stream));
}
inline void scale_rows(const context &ctx, const float *scale, std::int64_t stride, const nvte_tensor_t *x, nvte_stream_t stream = nullptr) {
  check(api().scale_rows(ctx.get(), scale, stride, x, stream));
}

// A layer's description with its size set: x, y and their gradients of `type`, parameters of the same; no FP8 until `recipe` is set.
inline nvte_layer_config_t layer_config(dtype type, std::int64_t in_features, std::int64_t out_features) {
  nvte_layer_config_t config = sized<nvte_layer_config_t>();
  config.dtype = static_cast<std::int32_t>(type);
  config.param_dtype = static_cast<std::int32_t>(type);
  config.in_features = in_features;
  config.out_features = out_features;
  return config;
}

// A layer, immutable, shared by threads and streams: everything that changes lies in the caller's memory. Argument structs come from
// sized<>(); the type of the struct must be that of the kind the layer was made as.
class layer {
 public:
  static layer linear(const context &ctx, const nvte_layer_config_t &config) {
    layer made;
    check(api().linear_create(ctx.get(), &config, &made.handle_));
    return made;
  }
  static layer layernorm_linear(const context &ctx, const nvte_layer_config_t &config) {
    layer made;
    check(api().layernorm_linear_create(ctx.get(), &config, &made.handle_));
    return made;
  }
  static layer layernorm_mlp(const context &ctx, const nvte_layer_config_t &config) {
    layer made;
    check(api().layernorm_mlp_create(ctx.get(), &config, &made.handle_));
    return made;
  }
  layer(layer &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  layer &operator=(layer &&other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  layer(const layer &) = delete;
  layer &operator=(const layer &) = delete;
  ~layer() {
    if (handle_ != nullptr) api().layer_destroy(handle_);
  }

  nvte_layer_t get() const noexcept { return handle_; }
  // flags: NVTE_LAYER_*, here and in the argument structs.
  nvte_layer_sizes_t sizes(std::uint32_t flags) const {
    nvte_layer_sizes_t found = sized<nvte_layer_sizes_t>();
    check(api().layer_sizes(handle_, flags, &found));
    return found;
  }

  void forward(const nvte_linear_fwd_args_t &args, nvte_stream_t stream = nullptr) const { check(api().linear_fwd(handle_, &args, stream)); }
  void forward(const nvte_layernorm_linear_fwd_args_t &args, nvte_stream_t stream = nullptr) const {
    check(api().layernorm_linear_fwd(handle_, &args, stream));
  }
  void forward(const nvte_layernorm_mlp_fwd_args_t &args, nvte_stream_t stream = nullptr) const {
    check(api().layernorm_mlp_fwd(handle_, &args, stream));
  }
  void backward(const nvte_linear_bwd_args_t &args, nvte_stream_t stream = nullptr) const { check(api().linear_bwd(handle_, &args, stream)); }
  void backward(const nvte_layernorm_linear_bwd_args_t &args, nvte_stream_t stream = nullptr) const {
    check(api().layernorm_linear_bwd(handle_, &args, stream));
  }
  void backward(const nvte_layernorm_mlp_bwd_args_t &args, nvte_stream_t stream = nullptr) const {
    check(api().layernorm_mlp_bwd(handle_, &args, stream));
  }

 private:
  layer() = default;
  nvte_layer_t handle_ = nullptr;
};

}  // namespace nvte

#endif  // NVTE_HPP
