// What activation.cu computes, for tensors of any stride, alignment and mixture of types: single-element accesses.
//
// Launch: 256 threads per tile of 128 rows x 32 columns of the result (gated backward: of each half), linear grid; thread t takes column
// t % 32 of every eighth row, so that neighbouring lanes stay neighbours in memory. Everything is a uniform branch: one module serves
// all. It is bound by the number of memory instructions, not by bytes.
// The same functions as in activation.cu: equal bits for equal inputs.
#include "common/activation.cuh"

#define ANY_COLS 32

DEVICE float load_any(const void *p, i32 type, i64 i) {
  if (type == DT_F32) return ((const float *)p)[i];
  u16 h = ((const u16 *)p)[i];
  return type == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

DEVICE void store_any(void *p, i32 type, i64 i, float v) {
  if (type == DT_F32) ((float *)p)[i] = v;
  else ((u16 *)p)[i] = type == DT_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
}

template <bool SLOPE> DEVICE void eval_any(const Function &f, i32 kind, float x, float &value, float &slope) {
  if (f.rectified) f.eval<FAMILY_RELU, SLOPE>(x, value, slope);
  else if ((kind & 15) == ACT_GELU_ERF) f.eval<FAMILY_ERF, SLOPE>(x, value, slope);
  else f.eval<FAMILY_SIGMOID, SLOPE>(x, value, slope);
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS) activation_any(const __grid_constant__ ActivationParams p) {
  after_previous();
  __shared__ u8 tile[2][TILE][ANY_COLS + 4];  // pitch of 9 words: reads down a column touch every bank once
  __shared__ float part[2][8][ANY_COLS];
  u32 row_tile = blockIdx.x / p.col_tiles, tx = threadIdx.x & 31, ty = threadIdx.x >> 5;
  i64 row0 = (i64)row_tile * TILE, col0 = (i64)(blockIdx.x - row_tile * p.col_tiles) * ANY_COLS, col = col0 + tx;
  bool fp8 = p.y_type >= DT_E4M3, gated = p.kind >= 16, backward = p.backward;
  u32 halves = gated && backward ? 2 : 1;
  float scale = fp8 ? output_scale(p) : 1.0f, amax = 0.0f, sum[2] = {};
  const Function f(p.kind);
  u32 rows_here = col < p.hidden ? (u32)imin(TILE, p.rows - row0) : 0;
#pragma unroll 1
  for (u32 r = ty; r < rows_here; r += 8) {
    i64 row = row0 + r;
    float a = load_any(p.x, p.x_type, row * p.ldx + col), b = gated ? load_any(p.x, p.x_type, row * p.ldx + p.hidden + col) : 1.0f;
    float v[2] = {}, value, slope;
    if (backward) {
      float g = load_any(p.dy, p.dy_type, row * p.lddy + col);
      eval_any<true>(f, p.kind, a, value, slope);
      v[0] = __fmul_rn(gated ? __fmul_rn(g, b) : g, slope);
      if (gated) v[1] = __fmul_rn(g, value);
    } else {
      eval_any<false>(f, p.kind, a, value, slope);
      v[0] = gated ? __fmul_rn(value, b) : value;
    }
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      if (h >= halves) break;
      amax = max_nan(amax, fabsf(v[h]));
      sum[h] += v[h];
      i64 at = row * p.ldy + h * p.hidden + col;
      if (!fp8) {
        store_any(p.y, p.y_type, at, v[h]);
      } else {
        u8 code = (u8)f32x4_to_fp8x4_any(p.y_type == DT_E5M2, v[h] * scale, 0.0f, 0.0f, 0.0f);
        if (p.y) p.y[at] = (char)code;
        tile[h][r][tx] = code;
      }
    }
  }
  part[0][ty][tx] = sum[0];
  part[1][ty][tx] = sum[1];
  __shared__ u32 maxima[TILE_THREADS / 32];
  leave_amax(maxima, amax);
  __syncthreads();
  if (fp8 && p.yt) {
    u32 r = threadIdx.x & (TILE - 1);
    u32 width = (u32)imin(ANY_COLS, p.hidden - col0);
    if (row0 + r < p.rows) {
      for (u32 h = 0; h < halves; h++)
        for (u32 c = threadIdx.x / TILE; c < width; c += 2) p.yt[(h * p.hidden + col0 + c) * p.ldyt + row0 + r] = tile[h][r][c];
    }
  }
  if (p.sums && ty < halves && col < p.hidden) {
    float s = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; k++) s += part[ty][k][tx];
    p.sums[((i64)row_tile * halves + ty) * p.hidden + col] = s;
  }
  finish_amax(p, maxima);
}
