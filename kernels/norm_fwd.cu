// LayerNorm (RMS = 0) and RMSNorm (RMS = 1) forward to FP8 where only the transposed layout is wanted: y = (x - mean) * rsigma * weight + beta.
// Tensors and statistics: common/norm_fwd.cuh. (Both layouts: norm_fwd_tile.cu; else the codes
// of norm_fwd_row.cu or norm_fwd_any.cu are transposed by transpose.cu.)
//
//   norm_fwd_transposed one block per 64 rows of any length and alignment; statistics, then tiles of 64 x 64 through shared memory
//   norm_fwd_add        sum = x + residual, rounded to X: what the other then reads as x where there is a residual
//
// Bytes moved per element: sizeof(X) + 1; x is read twice (three times for LayerNorm), in part from L2.
//
// KERNEL chooses: 0 the first, 1 the second, so that only what is needed is compiled.
#include "common/norm_fwd.cuh"

#define TILE 64

DEVICE float normalised(float x, const Stats &s) { return RMS ? x * s.rsigma : ((x - s.centre) - s.rest) * s.rsigma; }

// The output at column i. Both parameters are on their way before either is waited for.
DEVICE float affine(const Args &a, float v, i64 i) {
  Parameters<1> gamma, beta;
  if (a.gamma) gamma.fetch(a.gamma, a.gamma_dt, i);
  if (!RMS && a.beta) beta.fetch(a.beta, a.beta_dt, i);
  float p[1];
  if (a.gamma) {
    gamma.widen(a.gamma_dt, p);
    v *= a.zero_centered ? 1.0f + p[0] : p[0];
  }
  if (!RMS && a.beta) {
    beta.widen(a.beta_dt, p);
    v += p[0];
  }
  return v;
}

// ---------------------------------------------------------------- statistics of a row by one warp
// f(values) for all of a row, in vectors or LANES elements at a time, the last few one by one. With a sum for each place, additions do not
// wait for each other, and the error of a long row stays that of a shorter one.
#define LANES 8
template <bool VEC, class F> DEVICE void each_to_sum(const TX *x, i64 n, F f) {
  const u32 lane = threadIdx.x & 31;
  if constexpr (VEC) {
#pragma unroll 2
    for (i64 i = lane * N; i < n; i += 32 * N) {
      float v[N];
      unpack<X>(*(const Vec16 *)(x + i), v);
      f(v);
    }
  } else {
    i64 i = lane;
#pragma unroll 1
    for (; i + (LANES - 1) * 32 < n; i += LANES * 32) {
      float v[LANES];
#pragma unroll
      for (int k = 0; k < LANES; ++k) v[k] = Elem<X>::load(x[i + k * 32]);
      f(v);
    }
#pragma unroll 1
    for (; i < n; i += 32) {
      float v[1] = {Elem<X>::load(x[i])};
      f(v);
    }
  }
}
DEVICE float total(const float (&s)[LANES]) { return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])); }

template <bool VEC> DEVICE Stats row_stats(const TX *x, i64 hidden, float inv_n, float eps) {
  float sums[LANES] = {};
  each_to_sum<VEC>(x, hidden, [&](auto &v) {
#pragma unroll
    for (u32 k = 0; k < sizeof(v) / 4; ++k) sums[k] += RMS ? v[k] * v[k] : v[k];
  });
  const float sum = warp_sum(total(sums));
  if (RMS) return finish(0.0f, 0.0f, sum, inv_n, eps);
  const float centre = centre_of(sum, inv_n);
  float rests[LANES] = {}, squares[LANES] = {};
  each_to_sum<VEC>(x, hidden, [&](auto &v) {
#pragma unroll
    for (u32 k = 0; k < sizeof(v) / 4; ++k) {
      float d = v[k] - centre;
      rests[k] += d;
      squares[k] += d * d;
    }
  });
  return finish(centre, warp_sum(total(rests)), warp_sum(total(squares)), inv_n, eps);
}

#if KERNEL == 0
// ---------------------------------------------------------------- transposed only
// Grid: 64 rows along x, shares of the columns along y. a.warps is 1 where rows can be read as vectors.
extern "C" __global__ void __launch_bounds__(256, 4) norm_fwd_transposed(const Args a) {
  after_previous();
  __shared__ Stats stats[TILE];
  __shared__ u8 tile[TILE][TILE + 4];
  __shared__ u32 part[32];
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const float scale = read_scale(a);
  const i64 row0 = (i64)blockIdx.x * TILE;
  for (u32 r = warp; r < TILE && row0 + r < a.rows; r += 8) {
    const TX *x = a.x + (row0 + r) * a.ldx;
    const Stats s = a.warps ? row_stats<true>(x, a.hidden, a.inv_n, a.eps) : row_stats<false>(x, a.hidden, a.inv_n, a.eps);
    if (lane == 0) {
      stats[r] = s;
      if (blockIdx.y == 0) put_stats(a, row0 + r, s);
    }
  }
  __syncthreads();
  const u32 tx = threadIdx.x & 63, ty = threadIdx.x >> 6;
  u32 amax = 0;
  for (i64 col0 = (i64)blockIdx.y * TILE; col0 < a.hidden; col0 += (i64)gridDim.y * TILE) {
    const i64 col = col0 + tx;
    if (col < a.hidden) {
#pragma unroll 4
      for (u32 r = ty; r < TILE; r += 4) {
        const i64 row = row0 + r;
        if (row >= a.rows) break;
        const float v = affine(a, normalised(Elem<X>::load(a.x[row * a.ldx + col]), stats[r]), col);
        amax = umax(amax, abs_bits(v));
        tile[r][tx] = encode_as(a.y_dt, v * scale);
      }
    }
    __syncthreads();
    const i64 row = row0 + tx;
    if (row < a.rows) {
      for (u32 c = ty; c < TILE && col0 + c < a.hidden; c += 4) a.yt[(col0 + c) * a.ldyt + row] = tile[tx][c];
    }
    __syncthreads();
  }
  put_amax(a, amax, part);
}
#else
// ---------------------------------------------------------------- residual
// One block per row, one after the other.
extern "C" __global__ void __launch_bounds__(512) norm_fwd_add(const Args a) {
  after_previous();
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const TX *x = a.x + row * a.ldx, *residual = a.residual + row * a.ld_residual;
    TX *sum = a.sum + row * a.ld_sum;
#pragma unroll 4
    for (i64 i = threadIdx.x; i < a.hidden; i += blockDim.x) sum[i] = Elem<X>::store(Elem<X>::load(x[i]) + Elem<X>::load(residual[i]));
  }
}
#endif
