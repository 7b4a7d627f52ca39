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
  u32 early, ahead;                 // as of CastParams (cast.cu), by `activation` to FP8 without a gate
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

// COUNT values, 4 or 8, to an output of high precision.
template <int COUNT> DEVICE void store_high(char *p, i32 type, const float *v) {
  if (type == DT_F32) {
#pragma unroll
    for (int k = 0; k < COUNT; k += 4) st16(p + 4 * k, Vec16{{bits_of(v[k]), bits_of(v[k + 1]), bits_of(v[k + 2]), bits_of(v[k + 3])}});
    return;
  }
  u32 w[COUNT / 2];
#pragma unroll
  for (int k = 0; k < COUNT / 2; k++) w[k] = type == DT_BF16 ? pack2<DT_BF16>(v[2 * k], v[2 * k + 1]) : pack2<DT_F16>(v[2 * k], v[2 * k + 1]);
  if constexpr (COUNT == 8) st16(p, Vec16{{w[0], w[1], w[2], w[3]}});
  else st8(p, Vec8{{w[0], w[1]}});
}

#ifdef GATED
// Results (of each half) from as many of each input: a, b (gated), dy (backward).
template <int F, int COUNT> DEVICE void results(const Function &f, const float (&in)[1 + GATED + BACKWARD][COUNT], float (&v)[1 + (GATED && BACKWARD)][COUNT]) {
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
    float value, slope;
    f.eval<F, BACKWARD>(in[0][j], value, slope);
    if (BACKWARD) {
      float g = in[GATED + BACKWARD][j];
      if (GATED) v[GATED && BACKWARD][j] = __fmul_rn(g, value);
      v[0][j] = __fmul_rn(GATED ? __fmul_rn(g, in[GATED][j]) : g, slope);
    } else {
      v[0][j] = GATED ? __fmul_rn(value, in[GATED][j]) : value;
    }
  }
}
template <int COUNT> DEVICE void apply(const Function &f, const float (&in)[1 + GATED + BACKWARD][COUNT], float (&v)[1 + (GATED && BACKWARD)][COUNT]) {
  if (ERF) results<FAMILY_ERF>(f, in, v);
  else if (f.rectified) results<FAMILY_RELU>(f, in, v);
  else results<FAMILY_SIGMOID>(f, in, v);
}
#endif
