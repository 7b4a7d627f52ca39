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
  int dy_dt, x_dt, dx_dt, dsum_dt, gamma_dt, zero_centered, rms, warps, slots;
};

DEVICE u32 shift_of(int dt) { return dt == DT_F32 ? 2 : 1; }
DEVICE const void *row_of(const void *p, int dt, i64 row, i64 ld) { return p ? (const u8 *)p + ((row * ld) << shift_of(dt)) : nullptr; }

// Eight elements, 32 apart, as they lie in memory, then as floats; what lies from `end` on is 0.
struct Strided {
  u32 w[8];
  DEVICE void fetch(const void *p, int dt, u32 at, u32 end) {
#pragma unroll
    for (u32 k = 0; k < 8; ++k) w[k] = 0;
    if (dt == DT_F32) {
#pragma unroll
      for (u32 k = 0; k < 8; ++k)
        if (at + k * 32 < end) w[k] = ((const u32 *)p)[at + k * 32];
    } else {
#pragma unroll
      for (u32 k = 0; k < 8; ++k)
        if (at + k * 32 < end) w[k] = ((const u16 *)p)[at + k * 32];
    }
  }
  DEVICE void widen(int dt, float (&f)[8]) const {
    if (dt == DT_F16) {
#pragma unroll
      for (u32 k = 0; k < 8; ++k) f[k] = f16_to_f32((u16)w[k]);
    } else {
      const u32 shift = dt == DT_F32 ? 0 : 16;
#pragma unroll
      for (u32 k = 0; k < 8; ++k) f[k] = float_of(w[k] << shift);
    }
  }
};
DEVICE void store_strided(void *p, int dt, u32 at, u32 end, const float (&f)[8]) {
  if (dt == DT_F32) {
#pragma unroll
    for (u32 k = 0; k < 8; ++k)
      if (at + k * 32 < end) ((float *)p)[at + k * 32] = f[k];
  } else {
#pragma unroll
    for (u32 k = 0; k < 8; k += 2) {
      const u32 w = dt == DT_BF16 ? f32x2_to_bf16x2(f[k], f[k + 1]) : f32x2_to_f16x2(f[k], f[k + 1]);
      if (at + k * 32 < end) ((u16 *)p)[at + k * 32] = (u16)w;
      if (at + k * 32 + 32 < end) ((u16 *)p)[at + k * 32 + 32] = (u16)(w >> 16);
    }
  }
}
DEVICE float widen_as(u32 w, int dt) { return dt == DT_F16 ? f16_to_f32((u16)w) : float_of(w << (dt == DT_F32 ? 0 : 16)); }
// Four columns, 32 apart, of `rows` rows, eight apart.
template <u32 ROWS> DEVICE void fetch_rows(u32 (&w)[ROWS][4], const void *p, int dt, i64 row, u32 rows, i64 ld, i64 col, u32 left) {
#pragma unroll
  for (u32 r = 0; r < ROWS; ++r)
#pragma unroll
    for (u32 k = 0; k < 4; ++k) w[r][k] = 0;
  const u8 *at = (const u8 *)row_of(p, dt, 1, row * ld + col);
  const i64 step = (ld * 8) << shift_of(dt);
  if (dt == DT_F32) {
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r)
#pragma unroll
      for (u32 k = 0; k < 4; ++k)
        if (r < rows && k * 32 < left) w[r][k] = ((const u32 *)(at + r * step))[k * 32];
  } else {
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r)
#pragma unroll
      for (u32 k = 0; k < 4; ++k)
        if (r < rows && k * 32 < left) w[r][k] = ((const u16 *)(at + r * step))[k * 32];
  }
}

// dx, a block of `warps` warps per row, or a warp per row and several rows per block. A thread takes eight columns at a time, 32 apart.
extern "C" __global__ void __launch_bounds__(640, 1) norm_bwd_dx(const Args a) {
  after_previous();
  __shared__ Pair part[2][32];
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const bool alone = a.warps == 1;  // no barrier is met
  const i64 share = (i64)a.slots * 256, at0 = (alone ? 0 : warp) * share + lane, end = imin((alone ? 0 : warp) * share + share, a.hidden);
  const u32 left = at0 < end ? (u32)(end - at0) : 0;
  const i64 step = alone ? (i64)gridDim.x * (blockDim.x >> 5) : gridDim.x;
  const float inv_n = 1.0f / (float)a.hidden, one = a.zero_centered ? 1.0f : -0.0f;
  const void *gamma = row_of(a.gamma, a.gamma_dt, 1, at0);
  u32 turn = 0;
#pragma unroll 1
  for (i64 row = alone ? (i64)blockIdx.x * (blockDim.x >> 5) + warp : blockIdx.x; row < a.rows; row += step, turn ^= 1) {
    const void *dy = row_of(a.dy, a.dy_dt, 1, row * a.lddy + at0), *x = row_of(a.x, a.x_dt, 1, row * a.ldx + at0);
    const float mu = a.rms ? 0.0f : a.mu[row], rsigma = a.rsigma[row];
    // f(g, xhat, column from at0 on) for eight columns at a time; beyond the row both are 0.
    const auto each = [&](auto f) {
#pragma unroll 1
      for (u32 c = 0; c < left; c += 256) {
        Strided d, w, v;
        d.fetch(dy, a.dy_dt, c, left);
        v.fetch(x, a.x_dt, c, left);
        if (a.gamma) w.fetch(gamma, a.gamma_dt, c, left);
        float g[8], xhat[8];
        d.widen(a.dy_dt, g);
        v.widen(a.x_dt, xhat);
        if (a.gamma) {
          float weight[8];
          w.widen(a.gamma_dt, weight);
#pragma unroll
          for (u32 k = 0; k < 8; ++k) g[k] *= weight[k] + one;
        }
#pragma unroll
        for (u32 k = 0; k < 8; ++k) xhat[k] = (xhat[k] - mu) * rsigma;
        f(g, xhat, c);
      }
    };
    // Sums of even and odd columns, so that additions need not wait for each other.
    float all[2] = {}, alone_sum[2] = {};
    each([&](const float (&g)[8], const float (&xhat)[8], u32) {
#pragma unroll
      for (u32 k = 0; k < 8; ++k) {
        // g is 0 where there is no column, and xhat finite unless x or mu are not.
        all[k & 1] += g[k] * xhat[k];
        alone_sum[k & 1] += g[k];
      }
    });
    float products = all[0] + all[1], plain = alone_sum[0] + alone_sum[1];
    // One barrier a row: two buffers take turns.
    row_sum2(products, plain, part[turn], warp, a.warps, [] { __syncthreads(); });
    const float m = products * inv_n, m0 = a.rms ? 0.0f : plain * inv_n;
    void *dx = (void *)row_of(a.dx, a.dx_dt, 1, row * a.lddx + at0);
    const void *dsum = row_of(a.dsum, a.dsum_dt, 1, row * a.ld_dsum + at0);
    each([&](const float (&g)[8], const float (&xhat)[8], u32 c) {
      float d[8];
#pragma unroll
      for (u32 k = 0; k < 8; ++k) d[k] = (g[k] - xhat[k] * m - m0) * rsigma;
      if (a.dsum) {
        Strided more;
        float f[8];
        more.fetch(dsum, a.dsum_dt, c, left);
        more.widen(a.dsum_dt, f);
#pragma unroll
        for (u32 k = 0; k < 8; ++k) d[k] += f[k];
      }
      store_strided(dx, a.dx_dt, c, left, d);
    });
  }
}

// Rows of a warp under way at a time.
#define PROWS 4
// Partial sums of 128 columns and a slab of rows: four columns a lane, 32 apart, and every eighth row a warp.
extern "C" __global__ void __launch_bounds__(256, 2) norm_bwd_params(const Args a) {
  after_previous();
  __shared__ Pair part[8][128];
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 col0 = (i64)blockIdx.x * 128 + lane, slab = (a.rows + gridDim.y - 1) / gridDim.y;
  const i64 first = blockIdx.y * slab, end = imin(first + slab, a.rows);
  const u32 left = col0 < a.hidden ? (u32)imin(a.hidden - col0, 128) : 0;
  float dgamma[4] = {}, dbeta[4] = {};
#pragma unroll 1
  for (i64 row = first + warp; row < end; row += 8 * PROWS) {
    u32 d[PROWS][4], x[PROWS][4];
    float mu[PROWS], rsigma[PROWS];
    const u32 rows = (u32)imin(PROWS, (end - row + 7) / 8);
    fetch_rows<PROWS>(d, a.dy, a.dy_dt, row, rows, a.lddy, col0, left);
    fetch_rows<PROWS>(x, a.x, a.x_dt, row, rows, a.ldx, col0, left);
#pragma unroll
    for (u32 r = 0; r < PROWS; ++r) {
      mu[r] = rsigma[r] = 0.0f;
      if (r < rows) {
        if (!a.rms) mu[r] = a.mu[row + r * 8];
        rsigma[r] = a.rsigma[row + r * 8];
      }
    }
#pragma unroll
    for (u32 r = 0; r < PROWS; ++r) {
      if (r >= rows) break;
#pragma unroll
      for (u32 k = 0; k < 4; ++k) {
        const float g = widen_as(d[r][k], a.dy_dt), v = widen_as(x[r][k], a.x_dt);
        dgamma[k] += g * ((v - mu[r]) * rsigma[r]);
        dbeta[k] += g;
      }
    }
  }
#pragma unroll
  for (u32 k = 0; k < 4; ++k) part[warp][k * 32 + lane] = {dgamma[k], dbeta[k]};
  __syncthreads();
  const i64 col = (i64)blockIdx.x * 128 + threadIdx.x;
  if (threadIdx.x >= 128 || col >= a.hidden) return;
  Pair sum = {0.0f, 0.0f};
#pragma unroll
  for (int w = 0; w < 8; ++w) {
    sum.x += part[w][threadIdx.x].x;
    sum.y += part[w][threadIdx.x].y;
  }
  float *out = a.partial + (i64)blockIdx.y * (a.rms ? 1 : 2) * a.hidden + col;
  out[0] = sum.x;
  if (!a.rms) out[a.hidden] = sum.y;
}

// blockIdx.y: which gradient. `stride`: from one row of partial sums to the next. Blocks so small that they find room beside those of the kernel
// before: they have begun when it ends.
extern "C" __global__ void __launch_bounds__(256, 8) norm_param_sum(const float *partial, i64 count, i64 stride, i64 hidden, void *dgamma, int dgamma_dt,
                                                                    void *dbeta, int dbeta_dt) {
  after_previous();
  __shared__ float part[8][32];
  void *out = blockIdx.y ? dbeta : dgamma;
  if (!out) return;
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 col = (i64)blockIdx.x * 32 + lane;
  const float *p = partial + blockIdx.y * hidden + col;
  // All of a thread's loads at a time where there are no more partial sums than multiprocessors of an H200.
  const int FLIGHT = 17;
  float sum[4] = {};
  if (col < hidden) {
#pragma unroll 1
    for (u32 i = warp; i < count; i += 8 * FLIGHT) {
      float v[FLIGHT];
#pragma unroll
      for (int k = 0; k < FLIGHT; ++k) v[k] = i + 8 * k < count ? p[(i + 8 * k) * stride] : 0.0f;
#pragma unroll
      for (int k = 0; k < FLIGHT; ++k) sum[k & 3] += v[k];
    }
  }
  part[warp][lane] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  __syncthreads();
  if (warp || col >= hidden) return;
  float all = 0.0f;
#pragma unroll
  for (int k = 0; k < 8; ++k) all += part[k][lane];
  store_as(out, blockIdx.y ? dbeta_dt : dgamma_dt, col, all);
}
