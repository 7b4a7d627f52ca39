// LayerNorm and RMSNorm backward for any types, sizes and alignments, and the last step of the weight gradients for all paths.
//
//   norm_bwd_dx      dx, one block per row, element by element; dy and x are read twice, the second time from L1 or L2
//   norm_bwd_params  partial sums over rows of dy * xhat and dy: 32 columns along x, slabs of rows along y; [slabs][2 (RMSNorm: 1)][hidden] f32
//   norm_param_sum   the sum of the partial sums, in a fixed order: 32 columns along x; dgamma and dbeta along y
//
// Formulas: norm_bwd.cu. Types are known at run time; the branches on them are uniform.
// Bytes moved per element: dy, x, dx and dsum, where there is one, once; dy and x once more.
#include "common/norm.cuh"

struct Args {
  const void *dy;
  i64 lddy;
  const void *x;
  i64 ldx;
  const void *gamma;
  const float *mu, *rsigma;
  void *dx;
  i64 lddx;
  const void *dsum;
  i64 ld_dsum;
  float *partial;
  i64 rows, hidden;
  int dy_dt, x_dt, dx_dt, dsum_dt, gamma_dt, zero_centered, rms;
};

DEVICE u32 shift_of(int dt) { return dt == DT_F32 ? 2 : 1; }
DEVICE const void *row_of(const void *p, int dt, i64 row, i64 ld) { return (const u8 *)p + ((row * ld) << shift_of(dt)); }
DEVICE float weight_of(const Args &a, i64 i) { return a.gamma ? load_as(a.gamma, a.gamma_dt, i) + (a.zero_centered ? 1.0f : 0.0f) : 1.0f; }

extern "C" __global__ void __launch_bounds__(512, 1) norm_bwd_dx(const Args a) {
  after_previous();
  __shared__ Pair part[2][32];
  const float inv_n = 1.0f / (float)a.hidden;
  u32 turn = 0;
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
    const void *dy = row_of(a.dy, a.dy_dt, row, a.lddy), *x = row_of(a.x, a.x_dt, row, a.ldx);
    const float mu = a.rms ? 0.0f : a.mu[row], rsigma = a.rsigma[row];
    // Four sums of each, so that additions do not wait for each other and the error of a long row stays that of a shorter one.
    float all[4] = {}, alone[4] = {};
    const i64 T = blockDim.x;
    const auto add = [&](i64 i, int k) {
      const float g = load_as(dy, a.dy_dt, i) * weight_of(a, i), xhat = (load_as(x, a.x_dt, i) - mu) * rsigma;
      all[k] += g * xhat;
      alone[k] += g;
    };
    i64 i = threadIdx.x;
#pragma unroll 1
    for (; i + 3 * T < a.hidden; i += 4 * T) {
#pragma unroll
      for (int k = 0; k < 4; ++k) add(i + k * T, k);
    }
#pragma unroll 1
    for (; i < a.hidden; i += T) add(i, 0);
    float products = (all[0] + all[1]) + (all[2] + all[3]), plain = (alone[0] + alone[1]) + (alone[2] + alone[3]);
    // One barrier a row: two buffers take turns.
    row_sum2(products, plain, part[turn], threadIdx.x >> 5, blockDim.x >> 5, [] { __syncthreads(); });
    const float m = products * inv_n, m0 = a.rms ? 0.0f : plain * inv_n;
    void *dx = (void *)row_of(a.dx, a.dx_dt, row, a.lddx);
    const void *dsum = a.dsum ? row_of(a.dsum, a.dsum_dt, row, a.ld_dsum) : nullptr;
#pragma unroll 4
    for (i = threadIdx.x; i < a.hidden; i += blockDim.x) {
      const float g = load_as(dy, a.dy_dt, i) * weight_of(a, i), xhat = (load_as(x, a.x_dt, i) - mu) * rsigma;
      float d = (g - xhat * m - m0) * rsigma;
      if (dsum) d += load_as(dsum, a.dsum_dt, i);
      store_as(dx, a.dx_dt, i, d);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256, 2) norm_bwd_params(const Args a) {
  after_previous();
  __shared__ Pair part[8][33];
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 col = (i64)blockIdx.x * 32 + lane, slab = (a.rows + gridDim.y - 1) / gridDim.y;
  const i64 first = blockIdx.y * slab, end = imin(first + slab, a.rows);
  float dgamma = 0.0f, dbeta = 0.0f;
  if (col < a.hidden) {
#pragma unroll 4
    for (i64 row = first + warp; row < end; row += 8) {
      const float d = load_as(row_of(a.dy, a.dy_dt, row, a.lddy), a.dy_dt, col);
      const float x = load_as(row_of(a.x, a.x_dt, row, a.ldx), a.x_dt, col);
      dgamma += d * ((x - (a.rms ? 0.0f : a.mu[row])) * a.rsigma[row]);
      dbeta += d;
    }
  }
  part[warp][lane] = {dgamma, dbeta};
  __syncthreads();
  if (warp == 0 && col < a.hidden) {
    dgamma = dbeta = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      dgamma += part[w][lane].x;
      dbeta += part[w][lane].y;
    }
    float *out = a.partial + (i64)blockIdx.y * (a.rms ? 1 : 2) * a.hidden + col;
    out[0] = dgamma;
    if (!a.rms) out[a.hidden] = dbeta;
  }
}

// blockIdx.y: which gradient. `stride`: from one row of partial sums to the next.
extern "C" __global__ void __launch_bounds__(1024) norm_param_sum(const float *partial, i64 count, i64 stride, i64 hidden, void *dgamma, int dgamma_dt,
                                                                  void *dbeta, int dbeta_dt) {
  after_previous();
  __shared__ float part[32][33];
  void *out = blockIdx.y ? dbeta : dgamma;
  if (!out) return;
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 col0 = (i64)blockIdx.x * 32;
  const float *p = partial + blockIdx.y * hidden + col0 + lane;
  float sum = 0.0f;
  if (col0 + lane < hidden) {
#pragma unroll 8
    for (i64 i = warp; i < count; i += 32) sum += p[i * stride];
  }
  part[warp][lane] = sum;
  __syncthreads();
  sum = warp_sum(part[lane][warp]);
  if (lane == 0 && col0 + warp < hidden) store_as(out, blockIdx.y ? dbeta_dt : dgamma_dt, col0 + warp, sum);
}
