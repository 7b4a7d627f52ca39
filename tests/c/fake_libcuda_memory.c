/* Device memory of a fake driver: the host's, but known as belonging to device 0. Kernels do not run.
 * Goes with fake_libcuda_unknown_status.c, compiled with -DFAKE_HAS_MEMORY. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define MOST 65536

static struct {
  char *start;
  size_t bytes;
} blocks[MOST];
static int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int cuMemAlloc_v2(unsigned long long *p, size_t bytes) {
  char *start = aligned_alloc(256, (bytes + 255) / 256 * 256);
  int status = 2;
  pthread_mutex_lock(&lock);
  if (start != NULL && count < MOST) {
    blocks[count].start = start;
    blocks[count++].bytes = bytes;
    *p = (unsigned long long)start;
    status = 0;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

int cuMemFree_v2(unsigned long long p) {
  int i;
  pthread_mutex_lock(&lock);
  for (i = 0; i < count; i++) {
    if ((unsigned long long)blocks[i].start == p) {
      free(blocks[i].start);
      blocks[i] = blocks[--count];
      break;
    }
  }
  pthread_mutex_unlock(&lock);
  return 0;
}

int cuPointerGetAttributes(unsigned n, const int *attributes, void **values, unsigned long long p) {
  int known = 0;
  unsigned i;
  pthread_mutex_lock(&lock);
  for (i = 0; i < (unsigned)count; i++) {
    const unsigned long long start = (unsigned long long)blocks[i].start;
    known |= start <= p && p - start < blocks[i].bytes;
  }
  pthread_mutex_unlock(&lock);
  for (i = 0; i < n; i++) {
    if (attributes[i] == 2) *(unsigned *)values[i] = known ? 2 : 0;
    if (attributes[i] == 9) *(int *)values[i] = known ? 0 : -2;
  }
  return 0;
}

int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes) { return memcpy((void *)to, from, bytes), 0; }
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) { return memcpy(to, (void *)from, bytes), 0; }
int cuMemsetD8Async(unsigned long long to, unsigned char byte, size_t bytes, void *stream) {
  (void)stream;
  return memset((void *)to, byte, bytes), 0;
}
