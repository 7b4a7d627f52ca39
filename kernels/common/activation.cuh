// What the two activation kernels share: their parameters, and eight (or one) results from the inputs that belong to them.
#pragma once
#include "common/functions.cuh"
#include "common/tile.cuh"

// Mirrored by `Params` in src/backend/cuda/activation.rs.
struct ActivationParams {
  const void *x, *dy;               // dy: backward
  char *y;                          // row-wise output (FP8: or null)
  u8 *yt;                           // FP8: transposed output or null
  const float *scale;
  float *scale_inv, *amax, *sums;   // sums: backward, partial column sums [row tiles, columns of y] or null
  i64 ldx, lddy, ldy, ldyt;
  i64 rows, hidden;
  i32 kind, x_type, dy_type, y_type;
  u32 col_tiles;
  u32 backward;                     // not told by dy: an empty one may be null
};

// The scale of the output, for all threads; block 0 writes its reciprocal.
DEVICE float output_scale(const ActivationParams &p) {
  float scale = p.scale ? *p.scale : 1.0f;
  if (blockIdx.x == 0 && threadIdx.x == 0 && p.scale_inv) *p.scale_inv = reciprocal(scale);
  return scale;
}

// Recording takes one atomic per block: warps leave their maxima before the block's last barrier, the first warp reduces them behind it.
DEVICE void leave_amax(u32 (&part)[TILE_THREADS / 32], float amax) {
  u32 bits = warp_max(abs_bits(amax));
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = bits;
}
DEVICE void finish_amax(const ActivationParams &p, const u32 (&part)[TILE_THREADS / 32]) {
  if (!p.amax || threadIdx.x >= 32) return;
  u32 bits = warp_max(threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0u);
  if (threadIdx.x == 0 && bits) record_amax(p.amax, bits);
}
