// Writes the tables of lists of tensors.
//
//   list_write  up to 3,840 bytes that come as the kernel's argument, so that no host memory is read after the call (a captured graph
//               carries them along). One block.
//   list_map    the tensor of each block: a block of threads per tensor writes the tensor's number as often as the tensor has blocks.
#include "common/base.cuh"

#define WORDS 960

struct ListWrite {
  u32 *to;
  u32 count, pad;
  u32 words[WORDS];
};

extern "C" __global__ void __launch_bounds__(256) list_write(const __grid_constant__ ListWrite p) {
  after_previous();
  for (u32 i = threadIdx.x; i < p.count; i += 256) p.to[i] = p.words[i];
}

struct ListMap {
  const char *entries;  // each begins with its first block and its number of blocks
  u32 *map;
  u64 stride;           // bytes between entries
};

extern "C" __global__ void __launch_bounds__(256) list_map(const __grid_constant__ ListMap p) {
  after_previous();
  const u32 *entry = (const u32 *)(p.entries + blockIdx.x * p.stride);
  u32 first = entry[0], blocks = entry[1];
  for (u32 i = threadIdx.x; i < blocks; i += 256) p.map[(u64)first + i] = blockIdx.x;
}
