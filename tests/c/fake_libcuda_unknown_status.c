/* A CUDA driver with one device (compute capability 9.0), of which the function named in FAKE_FAILS returns a number no header knows.
 *
 * FAKE_MEMORY: the ordinal of the device to which all memory belongs; unset: nobody knows any memory.
 * FAKE_CAPTURING: every stream is capturing. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN 12345
#define ANSWER(name) return fails(name) ? UNKNOWN : 0

static int fails(const char *name) {
  const char *wanted = getenv("FAKE_FAILS");
  return wanted != NULL && strcmp(wanted, name) == 0;
}

int cuInit(unsigned flags) {
  (void)flags;
  ANSWER("cuInit");
}

int cuGetErrorName(int code, const char **text) {
  (void)code;
  *text = NULL;
  return 1;
}

int cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }

int cuDriverGetVersion(int *version) {
  *version = 12080;
  ANSWER("cuDriverGetVersion");
}

int cuDeviceGetCount(int *count) {
  *count = 1;
  ANSWER("cuDeviceGetCount");
}

int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  ANSWER("cuDeviceGet");
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == 75 ? 9 : attribute == 16 ? 132 : 0;
  ANSWER("cuDeviceGetAttribute");
}

int cuDeviceGetName(char *name, int size, int device) {
  (void)device;
  memset(name, 'x', (size_t)size); /* not terminated */
  ANSWER("cuDeviceGetName");
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = 1;
  ANSWER("cuDeviceTotalMem");
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  (void)device;
  *context = (void *)1;
  ANSWER("cuDevicePrimaryCtxRetain");
}

int cuCtxGetCurrent(void **context) {
  *context = NULL;
  ANSWER("cuCtxGetCurrent");
}

int cuCtxPushCurrent_v2(void *context) {
  (void)context;
  ANSWER("cuCtxPushCurrent");
}

#ifndef FAKE_HAS_MEMORY
int cuPointerGetAttributes(unsigned n, const int *attributes, void **values, unsigned long long p) {
  const char *ordinal = getenv("FAKE_MEMORY");
  unsigned i;
  (void)p;
  for (i = 0; i < n; i++) {
    if (attributes[i] == 2) *(unsigned *)values[i] = ordinal ? 2 : 0;
    if (attributes[i] == 9) *(int *)values[i] = ordinal ? atoi(ordinal) : -2;
  }
  ANSWER("cuPointerGetAttributes");
}
#endif

int cuStreamIsCapturing(void *stream, int *status) {
  (void)stream;
  *status = getenv("FAKE_CAPTURING") ? 1 : 0;
  ANSWER("cuStreamIsCapturing");
}

int cuStreamSynchronize(void *stream) {
  (void)stream;
  ANSWER("cuStreamSynchronize");
}

int cuModuleLoadData(void **module, const void *image) {
  (void)image;
  *module = (void *)1;
  ANSWER("cuModuleLoadData");
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
  (void)module, (void)name;
  *function = (void *)1;
  ANSWER("cuModuleGetFunction");
}

int cuLaunchKernelEx(void) { ANSWER("cuLaunchKernelEx"); }
