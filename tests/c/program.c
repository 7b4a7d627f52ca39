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

  OK(nvte_context_destroy(NULL));
  OK(nvte_context_destroy(ctx));
  FAILS(NVTE_ERROR_INVALID_HANDLE, "destroyed", nvte_context_destroy(ctx));
  FAILS(NVTE_ERROR_INVALID_HANDLE, "destroyed", nvte_context_trim(ctx));
  puts("passed");
  return 0;
}
