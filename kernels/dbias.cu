// The end of a bias gradient: out[c] (+)= sum over p of partials[p, c], partials f32 [count, cols] dense, out [cols] of f32, f16 or bf16.
//
// One block of 1024 threads per 32 columns: the 32 warps share the rows, lanes lie along the columns; each thread adds every 32nd partial
// row, then a warp adds up each column: one fixed order, no atomics. Bytes moved: the partials, which the kernel before left in the cache.
// What it takes is latency, so four rows a thread are under way together: all there are up to 128, which is 16,384 rows of the tensor.
#include "common/dbias.cuh"

struct DbiasParams {
  const float *partials;
  void *out;
  i64 count, cols;
  u32 accumulate, dtype;
};

extern "C" __global__ void __launch_bounds__(1024) dbias_finish(const __grid_constant__ DbiasParams p) {
  after_previous();
  __shared__ float part[32][33];
  u32 tx = threadIdx.x & 31, ty = threadIdx.x >> 5;
  i64 col = (i64)blockIdx.x * 32 + tx;
  float sum = 0.0f;
  if (col < p.cols) {
    const float *from = p.partials + ty * p.cols + col;
    for (i64 n = ty; n < p.count; n += 128, from += 128 * p.cols) {
      float v[4];
#pragma unroll
      for (int k = 0; k < 4; k++) v[k] = n + 32 * k < p.count ? from[32 * k * p.cols] : 0.0f;
#pragma unroll
      for (int k = 0; k < 4; k++) sum += v[k];
    }
  }
  part[ty][tx] = sum;
  __syncthreads();
  float total = warp_sum(part[tx][ty]);
  col = (i64)blockIdx.x * 32 + ty;
  if (tx == 0 && col < p.cols) store_sum(p.out, p.dtype, col, total, p.accumulate != 0);
}
