/* A CUDA driver on a machine without a device. FAKE_COUNTS_NONE: it starts, and then counts none; otherwise it does not start. */
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);

int cuInit(unsigned flags) {
  (void)flags;
  return getenv("FAKE_COUNTS_NONE") ? 0 : 100;
}

int cuDeviceGetCount(int *count) {
  *count = 0;
  return 0;
}
