/* A CUDA driver that lacks a function (the test leaves it out of the list of the others), and must not be called at all. */
#include <stdlib.h>

int cuInit(unsigned flags);

int cuInit(unsigned flags) {
  (void)flags;
  abort();
}
