// GEMM without products (K = 0):  D[M,N] = bias[column] + beta * C, through the epilogue of all GEMM kernels, so with amax and FP8 output too.
// With M * N = 0 one block runs and only d_scale_inv is written.
//
// Launch: 256 threads; each warp walks over chunks of 16 x 64 in steps of the grid. Bytes moved: D written, C read where beta != 0.
//
// Defines: D_DT.
#include "common/base.cuh"
#include "common/gemm_epilogue.cuh"

extern "C" __global__ void __launch_bounds__(256, 2) gemm_epilogue_only(const GemmOut out, const i64 m, const i64 n) {
  after_previous();
  __shared__ alignas(16) float zeros[STAGE_FLOATS];
  for (u32 i = threadIdx.x; i < STAGE_FLOATS; i += 256) zeros[i] = 0.0f;
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0) write_scale_inv(out);
  OutScale scale = out_scale<D_DT>(out);
  // There is nothing to scale: an inf or NaN among the scales must not turn 0 into NaN.
  scale.s1 = scale.s2 = 1.0f;
  const i64 across = (n + 63) / 64, count = (m + 15) / 16 * across;
  u32 amax = 0;
  for (i64 c = (i64)blockIdx.x * 8 + (threadIdx.x >> 5); c < count; c += (i64)gridDim.x * 8) {
    const i64 r = c / across;
    store_chunk<D_DT>(out, scale, zeros, r * 16, (c - r * across) * 64, m, n, amax);
  }
  if (count > 0) record_out_amax(out, amax);
}
