// The library as a C++17 program uses it, through nvte.hpp.
#include "nvte.h"
#include "nvte.hpp"
#include "nvte.hpp"

#include <cmath>
#include <type_traits>
#include <vector>

#include "check.h"

extern "C" int second_unit_knows_the_abi(void);

static_assert(!std::is_copy_constructible_v<nvte::context> && std::is_nothrow_move_constructible_v<nvte::context>);
static_assert(!std::is_copy_constructible_v<nvte::layer> && std::is_nothrow_move_constructible_v<nvte::layer>);
static_assert(!std::is_default_constructible_v<nvte::layer>);

// `call` throws `status`, and its message holds `text`.
template <class F>
static void throws(nvte_status_t status, const char *text, F call) {
  try {
    call();
  } catch (const nvte::error &e) {
    if (e.status() == status && std::string(e.what()).find(text) != std::string::npos) return;
    std::fprintf(stderr, "status %d, message \"%s\"\n", e.status(), e.what());
  }
  std::exit(1);
}

static void test_base() {
  CHECK(second_unit_knows_the_abi());
  CHECK(nvte::version() == nvte_version() && nvte::abi_version() == NVTE_ABI_VERSION);
  nvte::context first = nvte::context::cpu();
  nvte::context second = std::move(first);
  CHECK(first.get() == nullptr && second.get() != nullptr);
  first = std::move(second);
  CHECK(first.capability().device_type == NVTE_DEVICE_CPU);
  CHECK(first.info().find("\"device\": \"cpu\"") != std::string::npos && nvte::info().back() == '}');
  first.trim();
  first.synchronize();
  throws(NVTE_ERROR_INVALID_ENUM, "device_type", [] { nvte::context(42, 0); });
  throws(NVTE_ERROR_INVALID_HANDLE, "NVTE_ERROR_INVALID_HANDLE: context", [&] { second.trim(); });
}

static void test_cast(const nvte::context &ctx) {
  const std::vector<float> x = {1, 2, 3, 4, 5, 600};
  std::vector<unsigned char> q(8, 0xFF), qt(6, 0xFF);
  const float scale = 2;
  float scale_inv = NAN, amax = 0;
  nvte::cast_to_fp8(ctx, nvte::tensor(x.data(), 2, 3),
                    nvte::tensor(nvte::dtype::e5m2, q.data(), 2, 3).stride(4).transposed(qt.data()).scale(&scale).scale_inv(&scale_inv).amax(&amax));
  CHECK(scale_inv == 0.5f && amax == 600);
  CHECK(q[0] == 0x40 && q[3] == 0xFF && qt[0] == 0x40 && qt[1] == q[4] && qt[5] == q[6]);
  throws(NVTE_ERROR_INVALID_DTYPE, "output.dtype", [&] {
    nvte::cast_to_fp8(ctx, nvte::tensor(x.data(), 2, 3), nvte::tensor(nvte::dtype::bf16, q.data(), 2, 3));
  });
}

static void test_gemm(const nvte::context &ctx) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {1, 0, 1};
  std::vector<float> d(2, NAN);
  const nvte::tensor ta(a.data(), 2, 3), tb(b.data(), 1, 3), td(d.data(), 2, 1);
  nvte_gemm_args_t args = nvte::gemm_args(ta, tb, td, nvte::accumulate::precise);
  std::vector<double> workspace(nvte::gemm_workspace(ctx, args) / 8 + 2);
  args.workspace = workspace.data() + (reinterpret_cast<std::uintptr_t>(workspace.data()) % 16) / 8;
  args.workspace_bytes = workspace.size() * 8 - 8;
  nvte::gemm(ctx, args);
  CHECK(d[0] == 4 && d[1] == 10);
  throws(NVTE_ERROR_INVALID_DTYPE, "a.dtype", [&] { nvte::fp8_gemm(ctx, args); });
  CHECK(nvte::gemm_plans_export(ctx).size() < 1000);
}

static void test_scaling(const nvte::context &ctx) {
  const std::vector<float> x = {1, -2, 3, 4};
  std::vector<unsigned char> q(4), qt(4);
  std::vector<float> y(4, NAN);
  float scale = NAN, scale_inv = NAN, largest = NAN;
  const nvte::tensor in(x.data(), 2, 2), out(y.data(), 2, 2);
  nvte::tensor codes(nvte::dtype::e4m3, q.data(), 2, 2);
  codes.scale(&scale).scale_inv(&scale_inv).amax(&largest);
  std::vector<double> workspace(nvte::cast_to_fp8_current_workspace(ctx) / 8 + 2);
  nvte_cast_current_args_t args = nvte::sized<nvte_cast_current_args_t>();
  args.input = in;
  args.output = codes;
  args.workspace = workspace.data() + (reinterpret_cast<std::uintptr_t>(workspace.data()) % 16) / 8;
  args.workspace_bytes = workspace.size() * 8 - 8;
  nvte::cast_to_fp8_current(ctx, args);
  CHECK(largest == 4 && scale == 112 && scale_inv == 1.0f / 112);
  nvte::dequantize(ctx, codes, out);
  CHECK(y[3] == 4 && std::fabs(y[1] + 2) < 0.1);
  nvte::amax(ctx, out, &largest);
  CHECK(largest == 4);
  nvte::fp8_transpose(ctx, codes, nvte::tensor(nvte::dtype::e4m3, nullptr, 2, 2).transposed(qt.data()));
  CHECK(qt[0] == q[0] && qt[1] == q[2] && qt[2] == q[1] && qt[3] == q[3]);

  float live[1] = {2}, format_max[1] = {448};
  nvte_scaling_update_args_t update = nvte::sized<nvte_scaling_update_args_t>();
  update.slots = 1;
  update.history_len = 1;
  update.live = live;
  update.scale = &scale;
  update.format_max = format_max;
  update.interval = 1;
  nvte::scaling_update(ctx, update);
  CHECK(live[0] == 0 && scale == 224);
}

static void test_rope_and_dropout(const nvte::context &ctx) {
  // Positions 0 and 1 of one pair, a quarter of a turn apart: packed q, k, v of one head each, then put together again.
  const float cosine[] = {1, 0}, sine[] = {0, 1};
  nvte_rope_angles_t angles = nvte::rope_angles(cosine, sine, 2, 2);
  std::vector<float> qkv = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, q(4), k(4), v(4);
  nvte_rope_qkv_args_t packed = nvte::sized<nvte_rope_qkv_args_t>();
  packed.dtype = NVTE_F32;
  packed.order = NVTE_QKV_GROUPED;
  packed.seq = 2;
  packed.batch = packed.q_heads = packed.kv_heads = 1;
  packed.head_dim = 2;
  packed.qkv = qkv.data();
  packed.qkv_seq_stride = 6;
  packed.q = q.data();
  packed.k = k.data();
  packed.v = v.data();
  packed.q_seq_stride = packed.kv_seq_stride = 2;
  packed.angles = &angles;
  nvte::rope_qkv_fwd(ctx, packed);
  CHECK((q == std::vector<float>{1, 2, -8, 7}) && (k == std::vector<float>{3, 4, -10, 9}) && (v == std::vector<float>{5, 6, 11, 12}));
  std::vector<float> back(12);
  packed.qkv = back.data();
  nvte::rope_qkv_bwd(ctx, packed);
  CHECK(back == qkv);
  nvte_rope_args_t plain = nvte::sized<nvte_rope_args_t>();
  plain.dtype = NVTE_F32;
  plain.seq = 2;
  plain.batch = plain.heads = 1;
  plain.head_dim = plain.x_seq_stride = plain.y_seq_stride = 2;
  plain.x = plain.y = q.data();
  plain.angles = &angles;
  nvte::rope_bwd(ctx, plain);
  CHECK((q == std::vector<float>{1, 2, 7, 8}));
  nvte::rope_fwd(ctx, plain);
  CHECK((q == std::vector<float>{1, 2, -8, 7}));
  float c[2], s[2];
  nvte::rope_table(0, 2, 2, 10000.0, c, s);
  CHECK(c[0] == 1 && s[0] == 0 && c[1] > 0.54f && s[1] > 0.84f);

  // What is kept is doubled; the mask says which, and so does the generator.
  const std::uint64_t rng[] = {42, 7};
  const std::vector<float> ones(64, 1.0f), bias(16, 1.0f);
  std::vector<float> y(64), dx(64), again(64), dbias(16);
  const nvte::tensor in(ones.data(), 4, 16), b(bias.data(), 1, 16), out(y.data(), 4, 16), gradient(dx.data(), 4, 16), same(again.data(), 4, 16);
  unsigned char mask[8];
  nvte_dropout_fwd_args_t forward = nvte::sized<nvte_dropout_fwd_args_t>();
  forward.p = 0.5;
  forward.x = forward.residual = in;
  forward.bias = b;
  forward.y = out;
  forward.mask = mask;
  forward.mask_ld = 2;
  forward.rng = rng;
  nvte::dropout_fwd(ctx, forward);
  nvte_dropout_bwd_args_t backward = nvte::sized<nvte_dropout_bwd_args_t>();
  backward.p = 0.5;
  backward.dy = in;
  backward.dx = gradient;
  backward.mask = mask;
  backward.mask_ld = 2;
  backward.dbias = dbias.data();
  CHECK(nvte::dropout_bwd_workspace(ctx, 4, 16) == 0);
  nvte::dropout_bwd(ctx, backward);
  backward.mask = nullptr;
  backward.rng = rng;
  backward.dx = same;
  nvte::dropout_bwd(ctx, backward);
  CHECK(dx == again);
  float sums[16] = {};
  for (int i = 0; i < 64; ++i) {
    const bool kept = mask[i / 8] >> (i % 8) & 1;
    CHECK(y[i] == (kept ? 5.0f : 1.0f) && dx[i] == (kept ? 2.0f : 0.0f));
    sums[i % 16] += dx[i];
  }
  for (int i = 0; i < 16; ++i) CHECK(dbias[i] == sums[i]);
  forward.p = 2;
  throws(NVTE_ERROR_INVALID_VALUE, "p = 2", [&] { nvte::dropout_fwd(ctx, forward); });
}

static void test_lists(const nvte::context &ctx) {
  std::vector<float> w = {1, 2}, g = {3, -4}, m(2), v(2);
  const nvte::tensor tw(w.data(), 1, 2), tg(g.data(), 1, 2), tm(m.data(), 1, 2), tv(v.data(), 1, 2);
  const nvte_tensor_t *weights[] = {tw}, *gradients[] = {tg}, *first[] = {tm}, *second[] = {tv};
  nvte_adamw_list_args_t args = nvte::sized<nvte_adamw_list_args_t>();
  args.count = 1;
  args.weights = weights;
  args.gradients = gradients;
  args.exp_avgs = first;
  args.exp_avg_sqs = second;
  alignas(16) static unsigned char table[3][65536];
  CHECK(nvte::adamw_list_workspace(ctx, args) <= sizeof(table[0]) && nvte::grad_list_workspace(ctx, gradients, 1) <= sizeof(table[0]));
  nvte_list_t list = nvte::list(table[0], sizeof(table[0])), plain = nvte::list(table[1], sizeof(table[1]));
  nvte::adamw_list(ctx, args, list);
  nvte::grad_list(ctx, gradients, 1, plain);

  float norm = 0, clip = 0, step = 0;
  nvte_grad_norm_args_t question = nvte::sized<nvte_grad_norm_args_t>();
  question.list = &plain;
  question.max_norm = 2.5;
  question.norm = &norm;
  question.clip = &clip;
  nvte::grad_norm(ctx, question);
  CHECK(norm == 5 && std::fabs(clip - 0.5) < 1e-6);
  nvte::grad_scale(ctx, plain, &clip);
  CHECK(std::fabs(g[1] + 2) < 1e-5);
  nvte::adamw(ctx, nvte::adamw_args(list, &step, 0.5));
  CHECK(step == 1 && std::fabs(w[0] - (1 - 0.5 - 0.005)) < 1e-5 && std::fabs(w[1] - (2 + 0.5 - 0.01)) < 1e-5);
  unsigned char codes[2] = {0, 0};
  nvte_list_t casts = nvte::list(table[2], sizeof(table[2]));
  const nvte::tensor tq(nvte::dtype::e4m3, codes, 1, 2);
  const nvte_tensor_t *outputs[] = {tq};
  CHECK(nvte::cast_list_workspace(ctx, gradients, outputs, 1) <= casts.bytes);
  nvte::cast_list(ctx, gradients, outputs, 1, casts);
  nvte_multi_cast_args_t cast = nvte::sized<nvte_multi_cast_args_t>();
  cast.list = &casts;
  nvte::multi_cast_to_fp8(ctx, cast);
  CHECK(codes[0] == 0x3C && codes[1] == 0xC0);
  const std::vector<float> other = {0, 0};
  const void *moved[] = {other.data()};
  nvte::list_gradients(ctx, plain, moved, 1);
  nvte::grad_norm(ctx, question);
  CHECK(norm == 0 && clip == 1);
  throws(NVTE_ERROR_INVALID_ENUM, "list.kind", [&] { nvte::adamw(ctx, nvte::adamw_args(plain, &step, 0.5)); });
}

static void test_norm(const nvte::context &ctx) {
  const std::vector<float> x = {3, 4};
  std::vector<float> y(2, NAN);
  const nvte::tensor tx(x.data(), 1, 2), ty(y.data(), 1, 2);
  nvte_norm_fwd_args_t args = nvte::sized<nvte_norm_fwd_args_t>();
  args.x = tx;
  args.y = ty;
  nvte::rmsnorm_fwd(ctx, args);
  CHECK(std::fabs(y[0] - 3 / std::sqrt(12.5)) < 1e-6);
  nvte::layernorm_fwd(ctx, args);
  CHECK(std::fabs(y[0] + 1) < 1e-6 && std::fabs(y[1] - 1) < 1e-6);
}

static void test_activation(const nvte::context &ctx) {
  const std::vector<float> x = {3, 4, -1, 5};
  std::vector<float> y(2, NAN), dx(4, NAN);
  const std::vector<float> dy = {1, 1};
  const nvte::tensor tx(x.data(), 2, 2), tdy(dy.data(), 2, 1), tdx(dx.data(), 2, 2);
  nvte::activation_fwd(ctx, NVTE_ACTIVATION_REGLU, tx, nvte::tensor(y.data(), 2, 1));
  CHECK(y[0] == 12 && y[1] == 0);
  nvte_activation_bwd_args_t args = nvte::sized<nvte_activation_bwd_args_t>();
  args.kind = NVTE_ACTIVATION_REGLU;
  args.dy = tdy;
  args.input = tx;
  args.output = tdx;
  nvte::activation_bwd(ctx, args);
  CHECK(dx[0] == 4 && dx[1] == 3 && dx[2] == 0 && dx[3] == 0);
  CHECK(nvte::activation_bwd_workspace(ctx, NVTE_ACTIVATION_REGLU, 0, 1) == 0);
}

// Memory that starts at a multiple of 16.
struct aligned {
  explicit aligned(std::uint64_t bytes) : memory(bytes / 8 + 2) {}
  void *get() { return memory.data() + (reinterpret_cast<std::uintptr_t>(memory.data()) % 16) / 8; }
  std::vector<double> memory;
};

static void test_layers(const nvte::context &ctx) {
  const std::uint32_t flags = NVTE_LAYER_NEEDS_DX | NVTE_LAYER_NEEDS_DW;
  nvte_layer_config_t config = nvte::layer_config(nvte::dtype::f32, 2, 3);
  config.recipe = NVTE_RECIPE_CURRENT;
  config.power_of_two = 1;
  nvte::layer other = nvte::layer::linear(ctx, config);
  const nvte::layer linear = std::move(other);
  CHECK(other.get() == nullptr && linear.get() != nullptr);
  const nvte_layer_sizes_t sizes = linear.sizes(flags);
  CHECK(sizes.slots == 3 && sizes.saved_per_token == 2 && sizes.weight_cache > 0);

  // With a scale that is a power of two, small integers are exact.
  const std::vector<float> x = {1, 2, -4, 8}, w = {1, 0, 0, 1, 2, -1}, b = {0.5f, 0, 1};
  std::vector<float> y(6, NAN), dx(4, NAN), dw(6, NAN), db(3, NAN);
  aligned saved(sizes.saved_per_token * 2 + sizes.saved_fixed);
  aligned forward_workspace(sizes.forward_workspace_per_token * 2 + sizes.forward_workspace_fixed);
  nvte_linear_fwd_args_t f = nvte::sized<nvte_linear_fwd_args_t>();
  f.flags = flags;
  f.tokens = 2;
  f.saved = saved.get();
  f.saved_bytes = sizes.saved_per_token * 2 + sizes.saved_fixed;
  f.workspace = forward_workspace.get();
  f.workspace_bytes = sizes.forward_workspace_per_token * 2 + sizes.forward_workspace_fixed;
  f.x = x.data();
  f.ldx = 2;
  f.weight = w.data();
  f.ldw = 2;
  f.bias = b.data();
  f.y = y.data();
  f.ldy = 3;
  linear.forward(f);
  CHECK((y == std::vector<float>{1.5f, 2, 1, -3.5f, 8, -15}));

  const std::vector<float> dy = {1, 2, 0, 0, 4, 1};
  aligned backward_workspace(sizes.backward_workspace_per_token * 2 + sizes.backward_workspace_fixed);
  nvte_linear_bwd_args_t g = nvte::sized<nvte_linear_bwd_args_t>();
  g.flags = flags;
  g.tokens = 2;
  g.saved = saved.get();
  g.saved_bytes = f.saved_bytes;
  g.workspace = backward_workspace.get();
  g.workspace_bytes = sizes.backward_workspace_per_token * 2 + sizes.backward_workspace_fixed;
  g.dy = dy.data();
  g.lddy = 3;
  g.weight = w.data();
  g.ldw = 2;
  g.dx = dx.data();
  g.lddx = 2;
  g.dw = dw.data();
  g.lddw = 2;
  g.dw_dtype = NVTE_F32;
  g.db = db.data();
  linear.backward(g);
  CHECK((dx == std::vector<float>{1, 2, 2, 3}));
  CHECK((dw == std::vector<float>{1, 2, -14, 36, -4, 8}) && (db == std::vector<float>{1, 6, 1}));

  config = nvte::layer_config(nvte::dtype::bf16, 4, 4);
  config.eps = 1e-5f;
  config.ffn_features = 8;
  config.activation = NVTE_ACTIVATION_SWIGLU;
  CHECK(nvte::layer::layernorm_mlp(ctx, config).sizes(0).slots == 6);
  config.ffn_features = 0;
  const nvte::layer norm = nvte::layer::layernorm_linear(ctx, config);
  throws(NVTE_ERROR_INVALID_HANDLE, "LayerNormLinear", [&] { linear.forward(nvte::sized<nvte_layernorm_linear_fwd_args_t>()); });
  throws(NVTE_ERROR_INVALID_HANDLE, "Linear", [&] { norm.backward(g); });
  throws(NVTE_ERROR_INVALID_HANDLE, "LayerNormLinear", [&] { linear.backward(nvte::sized<nvte_layernorm_linear_bwd_args_t>()); });
  throws(NVTE_ERROR_INVALID_HANDLE, "LayerNormMLP", [&] { linear.forward(nvte::sized<nvte_layernorm_mlp_fwd_args_t>()); });
  throws(NVTE_ERROR_INVALID_HANDLE, "LayerNormMLP", [&] { linear.backward(nvte::sized<nvte_layernorm_mlp_bwd_args_t>()); });
}

int main() {
  test_base();
  const nvte::context ctx = nvte::context::cpu();
  test_cast(ctx);
  test_gemm(ctx);
  test_norm(ctx);
  test_activation(ctx);
  test_layers(ctx);
  test_scaling(ctx);
  test_lists(ctx);
  test_rope_and_dropout(ctx);
  std::puts("passed");
}
