// LayerNorm (RMS = 0) and RMSNorm (RMS = 1) forward for rows of any length and alignment: y = (x - mean) * rsigma * weight + beta, one row
// after the other. Tensors and statistics: common/norm_fwd.cuh. Rows that fit registers have a kernel of their own, norm_fwd_row.cu.
//
//   norm_fwd_loop_vec   one block per row, of any length; x is read again for each pass, from L1 or L2 then
//   norm_fwd_loop       the same element by element, for any length and alignment
//   norm_fwd_transposed FP8, transposed only: one block per 64 rows; statistics, then tiles of 64 x 64 through shared memory. (Both
//                       layouts: the codes of one of the other kernels are transposed by transpose.cu.)
//
// Bytes moved per element: sizeof(X) + sizeof(y); the transposed kernel reads x twice (three times for LayerNorm), in part from L2.
//
//   norm_fwd_add        sum = x + residual, rounded to X: what the others then read as x where there is a residual
//
// KERNEL chooses: 0 the loops, 1 the transposed one, 2 the last, so that only what is needed is compiled.
#include "common/norm_fwd.cuh"

#define TILE 64

DEVICE float normalised(float x, const Stats &s) { return RMS ? x * s.rsigma : ((x - s.centre) - s.rest) * s.rsigma; }

// W elements of the output from column i on: 1, or a vector. Both parameters are on their way before either is waited for.
template <int W> DEVICE void affine(const Args &a, float (&v)[W], i64 i) {
  Parameters<W> gamma, beta;
  if (a.gamma) gamma.fetch(a.gamma, a.gamma_dt, i);
  if (!RMS && a.beta) beta.fetch(a.beta, a.beta_dt, i);
  float p[W];
  if (a.gamma) {
    gamma.widen(a.gamma_dt, p);
#pragma unroll
    for (int k = 0; k < W; ++k) v[k] *= a.zero_centered ? 1.0f + p[k] : p[k];
  }
  if (!RMS && a.beta) {
    beta.widen(a.beta_dt, p);
#pragma unroll
    for (int k = 0; k < W; ++k) v[k] += p[k];
  }
}

// ---------------------------------------------------------------- rows of any length
// f(values, column) for every vector or element that thread t of T owns.
template <bool VEC, int UNROLL = 4, class F> DEVICE void each(const TX *x, i64 n, u32 t, u32 T, F f) {
  if constexpr (VEC) {
#pragma unroll UNROLL
    for (i64 i = (i64)t * N; i < n; i += (i64)T * N) {
      float v[N];
      unpack<X>(*(const Vec16 *)(x + i), v);
      f(v, i);
    }
  } else {
#pragma unroll UNROLL
    for (i64 i = t; i < n; i += T) {
      float v[1] = {Elem<X>::load(x[i])};
      f(v, i);
    }
  }
}
// The same for sums: values come in vectors either way, the last few elements one by one. With a sum for each place in the vector,
// additions do not wait for each other, and the error of a long row stays that of a shorter one.
#define LANES 8
template <bool VEC, class F> DEVICE void each_to_sum(const TX *x, i64 n, u32 t, u32 T, F f) {
  if constexpr (VEC) {
    each<true>(x, n, t, T, [&](auto &v, i64) { f(v); });
  } else {
    i64 i = t;
#pragma unroll 1
    for (; i + (LANES - 1) * (i64)T < n; i += LANES * (i64)T) {
      float v[LANES];
#pragma unroll
      for (int k = 0; k < LANES; ++k) v[k] = Elem<X>::load(x[i + k * (i64)T]);
      f(v);
    }
#pragma unroll 1
    for (; i < n; i += T) {
      float v[1] = {Elem<X>::load(x[i])};
      f(v);
    }
  }
}
DEVICE float total(const float (&s)[LANES]) { return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])); }

// Statistics of a row by T threads; buffers as for row_sum, with `turn` changing from row to row.
template <bool VEC, class Sync>
DEVICE Stats row_stats(const TX *x, i64 hidden, float inv_n, float eps, u32 t, u32 T, float (*part)[32], Pair *part2, u32 turn, Sync barrier) {
  float sums[LANES] = {};
  each_to_sum<VEC>(x, hidden, t, T, [&](auto &v) {
#pragma unroll
    for (u32 k = 0; k < sizeof(v) / 4; ++k) sums[k] += RMS ? v[k] * v[k] : v[k];
  });
  float sum = row_sum(total(sums), part[RMS ? turn : 0], t >> 5, T >> 5, barrier);
  if (RMS) return finish(0.0f, 0.0f, sum, inv_n, eps);
  const float centre = centre_of(sum, inv_n);
  float rests[LANES] = {}, squares[LANES] = {};
  each_to_sum<VEC>(x, hidden, t, T, [&](auto &v) {
#pragma unroll
    for (u32 k = 0; k < sizeof(v) / 4; ++k) {
      float d = v[k] - centre;
      rests[k] += d;
      squares[k] += d * d;
    }
  });
  float rest = total(rests), square = total(squares);
  row_sum2(rest, square, part2, t >> 5, T >> 5, barrier);
  return finish(centre, rest, square, inv_n, eps);
}

#if KERNEL == 0
template <bool VEC> DEVICE void loop(const Args &a) {
  __shared__ float part[2][32];
  __shared__ Pair part2[32];
  const float scale = read_scale(a);
  const bool fp8 = is_fp8(a.y_dt);
  const i64 y_stride = a.ldy * element_size(a.y_dt);
  u32 amax = 0, turn = 0;
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
    const TX *x = a.x + row * a.ldx;
    const Stats s = row_stats<VEC>(x, a.hidden, a.inv_n, a.eps, threadIdx.x, blockDim.x, part, part2, turn, [] { __syncthreads(); });
    if (threadIdx.x == 0) put_stats(a, row, s);
    u8 *y = a.y + row * y_stride;
    each<VEC, VEC ? 1 : 4>(x, a.hidden, threadIdx.x, blockDim.x, [&](auto &v, i64 i) {
      constexpr int W = VEC ? N : 1;
#pragma unroll
      for (int k = 0; k < W; ++k) v[k] = normalised(v[k], s);
      affine<W>(a, v, i);
      if (fp8) {
#pragma unroll
        for (int k = 0; k < W; ++k) amax = umax(amax, abs_bits(v[k]));
      }
      if constexpr (VEC) with_type(a.y_dt, [&](auto type) { store_vector<decltype(type)::value>(y, i, v, scale); });
      else if (fp8) y[i] = encode_as(a.y_dt, v[0] * scale);
      else store_as(y, a.y_dt, i, v[0]);
    });
  }
  put_amax(a, amax, (u32 *)part[0]);
}

// hidden is a multiple of N; everything is aligned for vectors.
extern "C" __global__ void __launch_bounds__(512, 1) norm_fwd_loop_vec(const Args a) { after_previous(); loop<true>(a); }
extern "C" __global__ void __launch_bounds__(512, 1) norm_fwd_loop(const Args a) { after_previous(); loop<false>(a); }

#elif KERNEL == 1
// ---------------------------------------------------------------- transposed only
// Grid: 64 rows along x, shares of the columns along y. a.warps is 1 where rows can be read as vectors.
extern "C" __global__ void __launch_bounds__(256) norm_fwd_transposed(const Args a) {
  after_previous();
  __shared__ Stats stats[TILE];
  __shared__ u8 tile[TILE][TILE + 4];
  __shared__ u32 part[32];
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const float scale = read_scale(a);
  const i64 row0 = (i64)blockIdx.x * TILE;
  for (u32 r = warp; r < TILE && row0 + r < a.rows; r += 8) {
    const TX *x = a.x + (row0 + r) * a.ldx;
    const auto nothing = [] {};
    const Stats s = a.warps ? row_stats<true>(x, a.hidden, a.inv_n, a.eps, lane, 32, nullptr, nullptr, 0, nothing)
                            : row_stats<false>(x, a.hidden, a.inv_n, a.eps, lane, 32, nullptr, nullptr, 0, nothing);
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
        float v[1] = {normalised(Elem<X>::load(a.x[row * a.ldx + col]), stats[r])};
        affine<1>(a, v, col);
        amax = umax(amax, abs_bits(v[0]));
        tile[r][tx] = encode_as(a.y_dt, v[0] * scale);
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
