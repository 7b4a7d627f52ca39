// Casts to FP8: q = encode(f32(x) * scale), row-wise, transposed, or both, with the amax of x.
//
// x: [rows, cols] of IN with row stride ldx; q: [rows, cols], qt: [cols, rows] of OUT.
// One block of 256 threads per 64 x 64 tile: x is read once, codes go out row-wise from registers and transposed through shared memory.
// Bytes moved per element: sizeof(IN) + 1 per layout.
#include "common/base.cuh"

#define TILE 64

extern "C" __global__ void __launch_bounds__(256) cast_to_fp8(const Elem<IN>::T *x, i64 ldx, u8 *q, i64 ldq, u8 *qt, i64 ldqt, i64 rows, i64 cols,
                                                               const float *scale_slot, float *scale_inv_slot, float *amax_slot) {
  __shared__ u8 tile[TILE][TILE + 4];
  float scale = scale_slot ? *scale_slot : 1.0f;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0 && scale_inv_slot) *scale_inv_slot = reciprocal(scale);
  i64 row0 = (i64)blockIdx.x * TILE, col0 = (i64)blockIdx.y * TILE;
  u32 tx = threadIdx.x & 63, ty = threadIdx.x >> 6, amax = 0;
#pragma unroll 4
  for (u32 r = ty; r < TILE; r += 4) {
    i64 row = row0 + r, col = col0 + tx;
    if (row < rows && col < cols) {
      float v = Elem<IN>::load(x[row * ldx + col]);
      amax = umax(amax, abs_bits(v));
      u8 code = f32_to_fp8<OUT>(v * scale);
      if (q) q[row * ldq + col] = code;
      tile[r][tx] = code;
    }
  }
  if (qt) {
    __syncthreads();
    for (u32 c = ty; c < TILE; c += 4) {
      i64 row = row0 + tx, col = col0 + c;
      if (row < rows && col < cols) qt[col * ldqt + row] = tile[tx][c];
    }
  }
  if (amax_slot) {
    amax = block_max<256>(amax);
    if (threadIdx.x == 0 && amax) record_amax(amax_slot, amax);
  }
}
