// The end of a bias gradient: out[c] (+)= sum over p of partials[p, c], partials f32 [count, cols] dense, out [cols] of f32, f16 or bf16.
//
// One block of 512 threads per 32 columns: sixteen threads share a column, each adds every sixteenth partial row, then they meet in shared
// memory: one fixed order, no atomics. Bytes moved: the partials, which the kernel before left in the cache. What it takes is latency, so
// eight rows a thread are under way together: all there are up to 16,384 rows of the tensor.
#include "common/dbias.cuh"

struct DbiasParams {
  const float *partials;
  void *out;
  i64 count, cols;
  u32 accumulate, dtype;
};

#define SHARE 16  // threads of a column

extern "C" __global__ void __launch_bounds__(32 * SHARE) dbias_finish(const __grid_constant__ DbiasParams p) {
  after_previous();
  __shared__ float part[SHARE][33];
  u32 tx = threadIdx.x & 31, ty = threadIdx.x >> 5;
  i64 col = (i64)blockIdx.x * 32 + tx;
  float sum = 0.0f;
  if (col < p.cols) {
    const float *from = p.partials + ty * p.cols + col;
    for (i64 n = ty; n < p.count; n += 128, from += 128 * p.cols) {
      float v[8];
#pragma unroll
      for (int k = 0; k < 8; k++) v[k] = n + SHARE * k < p.count ? from[SHARE * k * p.cols] : 0.0f;
#pragma unroll
      for (int k = 0; k < 8; k++) sum += v[k];
    }
  }
  part[ty][tx] = sum;
  __syncthreads();
  if (ty == 0 && col < p.cols) {
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < SHARE; w++) total += part[w][tx];
    store_sum(p.out, p.dtype, col, total, p.accumulate != 0);
  }
}
