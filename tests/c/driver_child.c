/* Meets the CUDA driver of tests/fake_driver.rs. Prints what creating a context says; with the argument "use", goes on from there. */
#define _POSIX_C_SOURCE 200809L
#include "nvte.h"

#include "check.h"

static void use(nvte_context_t ctx) {
  float x[4] = {1, 2, 3, 4}, scale = 1;
  unsigned char q[4] = {9, 9, 9, 9};
  nvte_tensor_t in, out;
  nvte_capability_t capability;

  memset(&capability, 0, sizeof capability);
  capability.struct_size = sizeof capability;
  OK(nvte_capability(ctx, &capability));
  CHECK(capability.device_type == NVTE_DEVICE_CUDA && capability.arch == 90 && capability.multiprocessors == 132);
  CHECK(strlen(capability.name) == 127);

  memset(&in, 0, sizeof in);
  in.struct_size = sizeof in;
  in.dtype = NVTE_F32;
  in.data = x;
  in.rows = 1;
  in.cols = in.ld = 4;
  out = in;
  out.dtype = NVTE_E4M3;
  out.scaling = NVTE_SCALING_PER_TENSOR;
  out.data = q;

  FAILS(NVTE_ERROR_WRONG_DEVICE, "input.data", nvte_cast_to_fp8(ctx, &in, &out, NULL));
  setenv("FAKE_MEMORY", "1", 1);
  FAILS(NVTE_ERROR_WRONG_DEVICE, "cuda:1", nvte_cast_to_fp8(ctx, &in, &out, NULL));
  setenv("FAKE_MEMORY", "0", 1);
  out.scale = &scale;

  /* What is not loaded cannot be loaded while the stream captures; prepared ahead, it can be captured. */
  setenv("FAKE_CAPTURING", "1", 1);
  FAILS(NVTE_ERROR_NOT_CAPTURABLE, "capturing", nvte_cast_to_fp8(ctx, &in, &out, NULL));
  setenv("FAKE_FAILS", "cuModuleLoadData", 1);
  FAILS(NVTE_ERROR_CUDA, "cuModuleLoadData returned 12345", nvte_cast_to_fp8(ctx, &in, &out, NVTE_STREAM_PREPARE));
  setenv("FAKE_FAILS", "cuLaunchKernelEx", 1);
  OK(nvte_cast_to_fp8(ctx, &in, &out, NVTE_STREAM_PREPARE));
  FAILS(NVTE_ERROR_CUDA, "12345", nvte_cast_to_fp8(ctx, &in, &out, NULL));
  CHECK(nvte_last_error_code() == 12345);
  setenv("FAKE_FAILS", "cuCtxPushCurrent", 1);
  FAILS(NVTE_ERROR_CUDA, "cuCtxPushCurrent returned 12345", nvte_cast_to_fp8(ctx, &in, &out, NULL));
  setenv("FAKE_FAILS", "cuStreamSynchronize", 1);
  OK(nvte_cast_to_fp8(ctx, &in, &out, NULL));
  FAILS(NVTE_ERROR_CUDA, "cuStreamSynchronize returned 12345", nvte_context_synchronize(ctx, NULL));
  CHECK(q[0] == 9);
}

int main(int argc, char **argv) {
  static char report[1 << 16];
  nvte_context_t ctx = NULL, cpu = NULL;
  nvte_status_t status = nvte_context_create(NVTE_DEVICE_CUDA, 0, NULL, &ctx);

  printf("%s %d %s\n", nvte_status_name(status), (int)nvte_last_error_code(), nvte_last_error());
  CHECK((status == NVTE_OK) == (ctx != NULL));
  if (argc > 1 && strcmp(argv[1], "use") == 0) use(ctx);
  OK(nvte_info(NULL, report, sizeof report, NULL));
  CHECK(strstr(report, "\"driver\"") != NULL);
  /* The CPU back end does not care. */
  OK(nvte_context_create(NVTE_DEVICE_CPU, 0, NULL, &cpu));
  OK(nvte_context_destroy(cpu));
  OK(nvte_context_destroy(ctx));
  return 0;
}
