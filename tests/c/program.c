/* The library as a C11 program uses it, on a CPU context; runs under the address and undefined-behaviour sanitizers. */
#include "nvte.h"
#include "nvte.h"

#include <math.h>

#include "check.h"

int second_unit_knows_the_abi(void);

static nvte_tensor_t tensor(int32_t dtype, void *data, int64_t rows, int64_t cols) {
  nvte_tensor_t t;
  memset(&t, 0, sizeof t);
  t.struct_size = sizeof t;
  t.dtype = dtype;
  t.scaling = dtype == NVTE_E4M3 || dtype == NVTE_E5M2 ? NVTE_SCALING_PER_TENSOR : NVTE_SCALING_NONE;
  t.data = data;
  t.rows = rows;
  t.cols = cols;
  t.ld = cols;
  return t;
}

static void test_base(nvte_context_t ctx) {
  nvte_capability_t capability;
  size_t needed = 0;
  char *text;
  const nvte_api_t *api = nvte_api(NVTE_ABI_VERSION);

  CHECK(second_unit_knows_the_abi());
  CHECK(strcmp(nvte_status_name(NVTE_ERROR_OVERLAP), "NVTE_ERROR_OVERLAP") == 0);
  CHECK(api != NULL && api->struct_size == sizeof(nvte_api_t) && api->version() == nvte_version());
  CHECK(nvte_api(0) == NULL);

  memset(&capability, 0xFF, sizeof capability);
  capability.struct_size = sizeof capability;
  OK(nvte_capability(ctx, &capability));
  CHECK(capability.device_type == NVTE_DEVICE_CPU && capability.arch == 0 && capability.multiprocessors == 2);
  CHECK(strncmp(capability.name, "CPU", 3) == 0);
  capability.struct_size = 4;
  FAILS(NVTE_ERROR_INVALID_STRUCT_SIZE, "capability.struct_size", nvte_capability(ctx, &capability));

  OK(nvte_info(ctx, NULL, 0, &needed));
  CHECK(needed > 100);
  text = malloc(needed);
  CHECK(text != NULL);
  OK(nvte_info(ctx, text, needed, NULL));
  CHECK(strlen(text) == needed - 1 && text[0] == '{' && strstr(text, "\"device\": \"cpu\"") != NULL);
  OK(nvte_info(NULL, text, 2, &needed));
  CHECK(strcmp(text, "{") == 0);
  free(text);
  FAILS(NVTE_ERROR_NULL_POINTER, "buffer", nvte_info(ctx, NULL, 1, &needed));
  OK(nvte_context_trim(ctx));
  OK(nvte_context_synchronize(ctx, NULL));
}

static void test_cast(nvte_context_t ctx) {
  /* Exact, rounded to even both ways, saturated, NaN, negative zero, subnormal. */
  float x[2 * 4] = {1.0f, 1.0625f, 1.1875f, 1000.0f, NAN, -0.0f, 0.001953125f, -INFINITY};
  const uint8_t wanted[8] = {0x38, 0x38, 0x3A, 0x7E, 0x7F, 0x80, 0x01, 0xFE};
  uint8_t q[8], qt[8], before[8];
  float scale = 1.0f, scale_inv = NAN, amax = 3.0f;
  nvte_tensor_t in = tensor(NVTE_F32, x, 2, 4), out = tensor(NVTE_E4M3, q, 2, 4);
  int i;

  out.data_t = qt;
  out.ld_t = 2;
  out.scale = &scale;
  out.scale_inv = &scale_inv;
  out.amax = &amax;
  OK(nvte_cast_to_fp8(ctx, &in, &out, NULL));
  for (i = 0; i < 8; i++) CHECK(q[i] == wanted[i] && qt[(i % 4) * 2 + i / 4] == wanted[i]);
  CHECK(scale_inv == 1.0f && isnan(amax));

  /* Prepared only: nothing is written. Refused: nothing is written. */
  memcpy(before, q, sizeof q);
  x[0] = 7.0f;
  OK(nvte_cast_to_fp8(ctx, &in, &out, NVTE_STREAM_PREPARE));
  CHECK(memcmp(q, before, sizeof q) == 0);
  FAILS(NVTE_ERROR_NULL_POINTER, "input", nvte_cast_to_fp8(ctx, NULL, &out, NULL));
  FAILS(NVTE_ERROR_INVALID_HANDLE, "context", nvte_cast_to_fp8(NULL, &in, &out, NULL));
  in.ld = 3;
  FAILS(NVTE_ERROR_INVALID_STRIDE, "input.ld = 3", nvte_cast_to_fp8(ctx, &in, &out, NULL));
  CHECK(memcmp(q, before, sizeof q) == 0);
}

/* Memory that the library may use; kept until the end of the call it was asked for. */
static void *scratch(uint64_t bytes) {
  /* aligned_alloc takes multiples of the alignment only. */
  void *p = aligned_alloc(64, (size_t)((bytes + 64) / 64 * 64));
  CHECK(p != NULL);
  memset(p, 0xFF, (size_t)bytes);
  return p;
}

static void test_current_scaling(nvte_context_t ctx) {
  /* The largest magnitude, 3.5, lands on 448: scale 128. */
  float x[6] = {0.5f, -3.5f, 1, 2, -0.25f, 0}, scale = NAN, scale_inv = NAN, amax = NAN, dbias[3];
  uint8_t q[6];
  nvte_tensor_t in = tensor(NVTE_F32, x, 2, 3), out = tensor(NVTE_E4M3, q, 2, 3);
  nvte_cast_current_args_t args;
  nvte_cast_dbias_args_t sums;

  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.input = &in;
  args.output = &out;
  out.scale = &scale;
  out.scale_inv = &scale_inv;
  out.amax = &amax;
  OK(nvte_cast_to_fp8_current_workspace(ctx, &args.workspace_bytes));
  args.workspace = scratch(args.workspace_bytes);
  OK(nvte_cast_to_fp8_current(ctx, &args, NULL));
  CHECK(amax == 3.5f && scale == 128 && scale_inv == 0.0078125f);
  CHECK(q[0] == 0x68 && q[1] == 0xFE && q[5] == 0);
  args.margin = 1000;
  FAILS(NVTE_ERROR_INVALID_VALUE, "margin", nvte_cast_to_fp8_current(ctx, &args, NULL));
  free(args.workspace);

  memset(&sums, 0, sizeof sums);
  sums.struct_size = sizeof sums;
  sums.dbias_dtype = NVTE_F32;
  sums.input = &in;
  sums.dbias = dbias;
  OK(nvte_cast_dbias_workspace(ctx, 2, 3, &sums.workspace_bytes));
  sums.workspace = scratch(sums.workspace_bytes);
  OK(nvte_cast_dbias(ctx, &sums, NULL));
  CHECK(dbias[0] == 2.5f && dbias[1] == -3.75f && dbias[2] == 1);
  free(sums.workspace);
}

static void test_dequantize(nvte_context_t ctx) {
  /* 1, 448, the least subnormal, NaN, -2 and -0. */
  uint8_t q[6] = {0x38, 0x7E, 0x01, 0x7F, 0xC0, 0x80}, qt[6] = {0, 0, 0, 0, 0, 0};
  const uint8_t turned[6] = {0x38, 0x7F, 0x7E, 0xC0, 0x01, 0x80};
  float y[6], scale_inv = 0.5f, amax = 0;
  nvte_tensor_t in = tensor(NVTE_E4M3, q, 2, 3), out = tensor(NVTE_F32, y, 2, 3), other = tensor(NVTE_E4M3, NULL, 2, 3);

  in.scale_inv = &scale_inv;
  OK(nvte_dequantize(ctx, &in, &out, NULL));
  CHECK(y[0] == 0.5f && y[1] == 224 && y[2] == 0.0009765625f && isnan(y[3]) && y[4] == -1 && y[5] == 0 && signbit(y[5]));
  OK(nvte_amax(ctx, &out, &amax, NULL));
  CHECK(isnan(amax));
  /* Recorded as a maximum: the slot starts at 0 for each tensor. */
  amax = 0;
  y[3] = -300;
  OK(nvte_amax(ctx, &out, &amax, NULL));
  CHECK(amax == 300);
  other.data_t = qt;
  other.ld_t = 2;
  OK(nvte_fp8_transpose(ctx, &in, &other, NULL));
  CHECK(memcmp(qt, turned, sizeof qt) == 0);
}

static void test_scaling_update(nvte_context_t ctx) {
  /* Four slots: recorded, nothing recorded, NaN recorded, an older amax larger. Two older amaxes each. */
  float live[4] = {2, 0, NAN, 1}, scale[4] = {7, 7, 7, 7}, format_max[4] = {448, 448, 448, 57344};
  float history[4][2] = {{0, 1}, {5, 6}, {5, 6}, {0, 16}};
  uint32_t nonfinite[4] = {0, 0, 41, 0};
  nvte_scaling_update_args_t args;

  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.slots = 4;
  args.history_len = 3;
  args.live = live;
  args.scale = scale;
  args.history = &history[0][0];
  args.slot_stride = 2;
  args.step_stride = 1;
  args.format_max = format_max;
  args.nonfinite = nonfinite;
  args.interval = 1;
  OK(nvte_scaling_update(ctx, &args, NULL));
  CHECK(scale[0] == 224 && scale[1] == 7 && scale[2] == 7 && scale[3] == 3584);
  CHECK(live[0] == 0 && live[1] == 0 && live[2] == 0 && live[3] == 0);
  CHECK(history[0][0] == 1 && history[0][1] == 2 && history[1][0] == 5 && history[2][1] == 6 && history[3][0] == 16 && history[3][1] == 1);
  CHECK(nonfinite[0] == 0 && nonfinite[2] == 42);
  args.live = NULL;
  FAILS(NVTE_ERROR_NULL_POINTER, "live", nvte_scaling_update(ctx, &args, NULL));
}

static void test_gemm(nvte_context_t ctx) {
  /* A [2, 3] E5M2 (1 is 0x3C, 2 is 0x40, 3 is 0x42), B [2, 3] E4M3 (1 is 0x38, 2 is 0x40, 4 is 0x48). */
  uint8_t a[6] = {0x3C, 0x40, 0x42, 0xBC, 0x3C, 0x3C}, b[6] = {0x38, 0x38, 0x40, 0x48, 0x38, 0x38};
  float a_inv = 0.5f, b_inv = 4.0f, bias[2] = {10, 20}, d[4] = {100, 200, 300, 400};
  const double product[4] = {1 + 2 + 6, 4 + 2 + 3, -1 + 1 + 2, -4 + 1 + 1};
  nvte_tensor_t ta = tensor(NVTE_E5M2, a, 2, 3), tb = tensor(NVTE_E4M3, b, 2, 3), td = tensor(NVTE_F32, d, 2, 2);
  nvte_gemm_args_t args;
  uint64_t bytes = 0;
  size_t needed = 0;
  char plans[16];
  int i;

  ta.scale_inv = &a_inv;
  tb.scale_inv = &b_inv;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.accumulate = NVTE_ACCUMULATE_PRECISE;
  args.alpha = 1;
  args.beta = 2;
  args.a = &ta;
  args.b = &tb;
  args.c = &td;
  args.d = &td;
  args.bias = bias;
  args.bias_dtype = NVTE_F32;
  OK(nvte_gemm_workspace(ctx, &args, &bytes));
  args.workspace = scratch(bytes);
  args.workspace_bytes = bytes;
  OK(nvte_fp8_gemm(ctx, &args, NULL));
  for (i = 0; i < 4; i++) CHECK(d[i] == 2 * product[i] + bias[i % 2] + 2 * 100 * (i + 1));

  args.accumulate = 0;
  FAILS(NVTE_ERROR_INVALID_ENUM, "accumulate = 0", nvte_fp8_gemm(ctx, &args, NULL));
  args.accumulate = NVTE_ACCUMULATE_FAST;
  FAILS(NVTE_ERROR_INVALID_DTYPE, "a.dtype", nvte_gemm(ctx, &args, NULL));
  tb.cols = 2;
  FAILS(NVTE_ERROR_INVALID_SHAPE, "b.cols", nvte_fp8_gemm(ctx, &args, NULL));
  OK(nvte_gemm_plans_export(ctx, plans, sizeof plans, &needed));
  CHECK(needed >= 1);
  free(args.workspace);
}

static int near(float a, double b, double tolerance) { return fabs((double)a - b) <= tolerance * (1 + fabs(b)); }

static void test_norm(nvte_context_t ctx) {
  float x[2 * 4] = {1, 2, 3, 4, -1, 0, 0, 5}, gamma[4] = {1, 2, 3, 4}, beta[4] = {0, 1, 0, -1}, y[8], mu[2], rsigma[2];
  float dy[8], dx[8], dgamma[4], dbeta[4];
  nvte_tensor_t tx = tensor(NVTE_F32, x, 2, 4), ty = tensor(NVTE_F32, y, 2, 4);
  nvte_tensor_t tgamma = tensor(NVTE_F32, gamma, 1, 4), tbeta = tensor(NVTE_F32, beta, 1, 4);
  nvte_tensor_t tdy = tensor(NVTE_F32, dy, 2, 4), tdx = tensor(NVTE_F32, dx, 2, 4);
  nvte_tensor_t tdgamma = tensor(NVTE_F32, dgamma, 1, 4), tdbeta = tensor(NVTE_F32, dbeta, 1, 4);
  nvte_norm_fwd_args_t fwd;
  nvte_norm_bwd_args_t bwd;
  uint64_t bytes = 0;
  int r, c;

  memset(&fwd, 0, sizeof fwd);
  fwd.struct_size = sizeof fwd;
  fwd.x = &tx;
  fwd.gamma = &tgamma;
  fwd.beta = &tbeta;
  fwd.y = &ty;
  fwd.mu = mu;
  fwd.rsigma = rsigma;
  fwd.eps = 1e-5f;
  OK(nvte_layernorm_fwd(ctx, &fwd, NULL));
  for (r = 0; r < 2; r++) {
    double mean = 0, variance = 0;
    for (c = 0; c < 4; c++) mean += x[r * 4 + c] / 4.0;
    for (c = 0; c < 4; c++) variance += (x[r * 4 + c] - mean) * (x[r * 4 + c] - mean) / 4;
    CHECK(near(mu[r], mean, 1e-6) && near(rsigma[r], 1 / sqrt(variance + 1e-5), 1e-6));
    for (c = 0; c < 4; c++) CHECK(near(y[r * 4 + c], (x[r * 4 + c] - mean) / sqrt(variance + 1e-5) * gamma[c] + beta[c], 1e-5));
  }

  /* With dy = 1 everywhere, dbeta counts rows and dgamma sums the normalised input. */
  for (c = 0; c < 8; c++) dy[c] = 1;
  memset(&bwd, 0, sizeof bwd);
  bwd.struct_size = sizeof bwd;
  bwd.dy = &tdy;
  bwd.x = &tx;
  bwd.gamma = &tgamma;
  bwd.mu = mu;
  bwd.rsigma = rsigma;
  bwd.dx = &tdx;
  bwd.dgamma = &tdgamma;
  bwd.dbeta = &tdbeta;
  OK(nvte_norm_bwd_workspace(ctx, 4, &bytes));
  if (bytes > 0) FAILS(NVTE_ERROR_WORKSPACE_TOO_SMALL, "workspace_bytes", nvte_layernorm_bwd(ctx, &bwd, NULL));
  bwd.workspace = scratch(bytes);
  bwd.workspace_bytes = bytes;
  OK(nvte_layernorm_bwd(ctx, &bwd, NULL));
  for (c = 0; c < 4; c++) {
    double sum = 0;
    for (r = 0; r < 2; r++) sum += (x[r * 4 + c] - mu[r]) * (double)rsigma[r];
    CHECK(dbeta[c] == 2 && near(dgamma[c], sum, 1e-5));
  }
  /* The gradient of a row is orthogonal to 1. */
  for (r = 0; r < 2; r++) CHECK(fabs(dx[r * 4] + dx[r * 4 + 1] + dx[r * 4 + 2] + dx[r * 4 + 3]) < 1e-5);

  fwd.beta = NULL;
  fwd.mu = NULL;
  OK(nvte_rmsnorm_fwd(ctx, &fwd, NULL));
  CHECK(near(y[0], 1 / sqrt(7.5 + 1e-5), 1e-6));
  bwd.mu = NULL;
  FAILS(NVTE_ERROR_UNSUPPORTED, "dbeta", nvte_rmsnorm_bwd(ctx, &bwd, NULL));
  bwd.dbeta = NULL;
  OK(nvte_rmsnorm_bwd(ctx, &bwd, NULL));
  free(bwd.workspace);
}

static void test_activation(nvte_context_t ctx) {
  float x[2 * 2] = {1, -3, 3, 2}, y[2], dy[2] = {1, 2}, dx[4], dbias[4];
  uint8_t q[2];
  float amax = 0;
  nvte_tensor_t tx = tensor(NVTE_F32, x, 2, 2), ty = tensor(NVTE_F32, y, 2, 1), tq = tensor(NVTE_E4M3, q, 2, 1);
  nvte_tensor_t tdy = tensor(NVTE_F32, dy, 2, 1), tdx = tensor(NVTE_F32, dx, 2, 2);
  nvte_activation_bwd_args_t bwd;
  uint64_t bytes = 0;

  OK(nvte_activation_fwd(ctx, NVTE_ACTIVATION_SWIGLU, &tx, &ty, NULL));
  CHECK(near(y[0], -3 / (1 + exp(-1)), 1e-6) && near(y[1], 6 / (1 + exp(-3)), 1e-6));
  tq.amax = &amax;
  OK(nvte_activation_fwd(ctx, NVTE_ACTIVATION_REGLU, &tx, &tq, NULL));
  CHECK(q[0] == 0xC4 && q[1] == 0x4C && amax == 6);
  FAILS(NVTE_ERROR_INVALID_ENUM, "kind = 99", nvte_activation_fwd(ctx, 99, &tx, &ty, NULL));
  FAILS(NVTE_ERROR_INVALID_SHAPE, "input", nvte_activation_fwd(ctx, NVTE_ACTIVATION_GELU, &tx, &ty, NULL));

  memset(&bwd, 0, sizeof bwd);
  bwd.struct_size = sizeof bwd;
  bwd.kind = NVTE_ACTIVATION_REGLU;
  bwd.dy = &tdy;
  bwd.input = &tx;
  bwd.output = &tdx;
  bwd.dbias = dbias;
  bwd.dbias_dtype = NVTE_F32;
  OK(nvte_activation_bwd_workspace(ctx, bwd.kind, 2, 1, &bytes));
  bwd.workspace = scratch(bytes);
  bwd.workspace_bytes = bytes;
  OK(nvte_activation_bwd(ctx, &bwd, NULL));
  CHECK(dx[0] == -3 && dx[1] == 1 && dx[2] == 4 && dx[3] == 6 && dbias[0] == 1 && dbias[1] == 7);
  free(bwd.workspace);
}

/* y = swiglu(rmsnorm(x) W1^T) W2^T in one call, and its gradients in another. */
static void test_layers(nvte_context_t ctx) {
  float x[2 * 2] = {3, 4, -1, 1}, w1[4 * 2] = {1, 0, 0, 1, 1, 1, 2, -1}, w2[2 * 2] = {1, 2, -1, 1}, y[4], dy[4] = {1, 0, 2, -1}, dx[4], dw2[4];
  const uint32_t flags = NVTE_LAYER_NEEDS_DX | NVTE_LAYER_NEEDS_DW2;
  nvte_layer_config_t config;
  nvte_layer_sizes_t sizes;
  nvte_layer_t layer = NULL, none = NULL;
  nvte_layernorm_mlp_fwd_args_t fwd;
  nvte_layernorm_mlp_bwd_args_t bwd;
  double act[2][2], sum;
  int r, c;

  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  config.rmsnorm = 1;
  config.activation = NVTE_ACTIVATION_SWIGLU;
  config.in_features = 2;
  config.ffn_features = 2;
  OK(nvte_layernorm_mlp_create(ctx, &config, &layer));
  FAILS(NVTE_ERROR_INVALID_VALUE, "ffn_features", nvte_layernorm_linear_create(ctx, &config, &none));
  FAILS(NVTE_ERROR_UNSUPPORTED, "rmsnorm", nvte_linear_create(ctx, &config, &none));
  CHECK(none == NULL);
  memset(&sizes, 0, sizeof sizes);
  FAILS(NVTE_ERROR_INVALID_STRUCT_SIZE, "sizes.struct_size", nvte_layer_sizes(layer, flags, &sizes));
  sizes.struct_size = sizeof sizes;
  OK(nvte_layer_sizes(layer, flags, &sizes));
  CHECK(sizes.slots == 6 && sizes.weight_cache == 0);

  memset(&fwd, 0, sizeof fwd);
  fwd.struct_size = sizeof fwd;
  fwd.flags = flags;
  fwd.tokens = 2;
  fwd.saved_bytes = sizes.saved_per_token * 2 + sizes.saved_fixed;
  fwd.saved = scratch(fwd.saved_bytes);
  fwd.workspace_bytes = sizes.forward_workspace_per_token * 2 + sizes.forward_workspace_fixed;
  fwd.workspace = scratch(fwd.workspace_bytes);
  fwd.x = x;
  fwd.ldx = 2;
  fwd.fc1_weight = w1;
  fwd.ld_fc1_weight = 2;
  fwd.fc2_weight = w2;
  fwd.ld_fc2_weight = 2;
  fwd.y = y;
  fwd.ldy = 2;
  OK(nvte_layernorm_mlp_fwd(layer, &fwd, NULL));
  for (r = 0; r < 2; r++) {
    const double root = sqrt((x[r * 2] * x[r * 2] + x[r * 2 + 1] * x[r * 2 + 1]) / 2), a = x[r * 2] / root, b = x[r * 2 + 1] / root;
    act[r][0] = a / (1 + exp(-a)) * (a + b);
    act[r][1] = b / (1 + exp(-b)) * (2 * a - b);
    CHECK(near(y[r * 2], act[r][0] + 2 * act[r][1], 1e-5) && near(y[r * 2 + 1], act[r][1] - act[r][0], 1e-5));
  }

  memset(&bwd, 0, sizeof bwd);
  bwd.struct_size = sizeof bwd;
  bwd.flags = flags;
  bwd.tokens = 2;
  bwd.saved = fwd.saved;
  bwd.saved_bytes = fwd.saved_bytes;
  bwd.workspace_bytes = sizes.backward_workspace_per_token * 2 + sizes.backward_workspace_fixed;
  bwd.workspace = scratch(bwd.workspace_bytes);
  bwd.dy = dy;
  bwd.lddy = 2;
  bwd.x = x;
  bwd.ldx = 2;
  bwd.fc1_weight = w1;
  bwd.ld_fc1_weight = 2;
  bwd.fc2_weight = w2;
  bwd.ld_fc2_weight = 2;
  bwd.dx = dx;
  bwd.lddx = 2;
  bwd.dfc2_weight = dw2;
  bwd.ld_dfc2_weight = 2;
  OK(nvte_layernorm_mlp_bwd(layer, &bwd, NULL));
  for (r = 0; r < 2; r++) {
    for (c = 0; c < 2; c++) CHECK(near(dw2[r * 2 + c], dy[r] * act[0][c] + dy[2 + r] * act[1][c], 1e-5));
    /* The norm takes away what lies along x. */
    sum = x[r * 2] * dx[r * 2] + x[r * 2 + 1] * dx[r * 2 + 1];
    CHECK(fabs(sum) < 1e-4);
  }

  bwd.dfc1_weight = w1;
  FAILS(NVTE_ERROR_UNSUPPORTED, "dfc1_weight", nvte_layernorm_mlp_bwd(layer, &bwd, NULL));
  FAILS(NVTE_ERROR_INVALID_HANDLE, "LayerNormMLP", nvte_linear_fwd(layer, NULL, NULL));
  fwd.workspace_bytes--;
  FAILS(NVTE_ERROR_WORKSPACE_TOO_SMALL, "workspace_bytes", nvte_layernorm_mlp_fwd(layer, &fwd, NULL));
  free(fwd.saved);
  free(fwd.workspace);
  free(bwd.workspace);
  OK(nvte_layer_destroy(NULL));
  OK(nvte_layer_destroy(layer));
  FAILS(NVTE_ERROR_INVALID_HANDLE, "destroyed", nvte_layer_destroy(layer));
}

int main(void) {
  nvte_context_options_t options;
  nvte_context_t ctx = NULL, none = NULL;

  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.num_threads = 2;
  CHECK(nvte_last_error()[0] == '\0');
  OK(nvte_context_create(NVTE_DEVICE_CPU, 0, &options, &ctx));
  FAILS(NVTE_ERROR_INVALID_ENUM, "device_type", nvte_context_create(7, 0, NULL, &none));
  FAILS(NVTE_ERROR_NULL_POINTER, "context", nvte_context_create(NVTE_DEVICE_CPU, 0, NULL, NULL));
  options.struct_size = 1000;
  FAILS(NVTE_ERROR_INVALID_STRUCT_SIZE, "options.struct_size", nvte_context_create(NVTE_DEVICE_CPU, 0, &options, &none));
  CHECK(none == NULL);

  test_base(ctx);
  test_cast(ctx);
  test_gemm(ctx);
  test_norm(ctx);
  test_activation(ctx);
  test_layers(ctx);
  test_current_scaling(ctx);
  test_dequantize(ctx);
  test_scaling_update(ctx);

  OK(nvte_context_destroy(NULL));
  OK(nvte_context_destroy(ctx));
  FAILS(NVTE_ERROR_INVALID_HANDLE, "destroyed", nvte_context_destroy(ctx));
  FAILS(NVTE_ERROR_INVALID_HANDLE, "destroyed", nvte_context_trim(ctx));
  puts("passed");
  return 0;
}
