// LayerNorm (RMS = 0) and RMSNorm (RMS = 1) forward where everything is aligned for vectors and a row fits the registers of a block:
// y = (x - mean) * rsigma * weight + beta. Tensors and statistics: common/norm_fwd.cuh. FP8 says whether y is; which type, a.y_dt.
//
// One warp per row and four rows per block, or one block of `warps` warps per row. A thread holds OCTETS * 8 columns, as f32 from the first
// sum to the output: x is unpacked once. What is under way comes from many blocks a multiprocessor, whose barriers hide behind the loads
// of others; a block has no second row, whose loop would cost registers and so blocks.
// At the rate of memory, a warp has about 900 instructions' time for 32 columns a lane, bf16 to bf16; LayerNorm takes about 600.
//
// Bytes moved per element: sizeof(X) + sizeof(y).
#include "common/norm_fwd.cuh"

#define SLOTS (OCTETS * 8 / N)
// As many threads as leave each 64 registers, or 72.
#define ROW_THREADS (OCTETS == 4 ? 1024 : 896)

// f(Type<dt>()) for a type of y.
template <class F> DEVICE void with_output(int dt, F f) {
  if constexpr (FP8) {
    if (dt == DT_E4M3) f(Type<DT_E4M3>());
    else f(Type<DT_E5M2>());
  } else {
    if (dt == X) f(Type<X>());
    else if (dt == DT_F32) f(Type<DT_F32>());
    else if (dt == DT_BF16) f(Type<DT_BF16>());
    else f(Type<DT_F16>());
  }
}

// A thread has one row: four rows a block where `warps` is 1, one where it is more. hidden is a multiple of N, at most SLOTS * N * 32 * warps;
// everything is aligned for vectors.
//
// The vectors of a row are shared out evenly, a warp's next to each other, so that one address and constants beside it lead to all of a
// thread's. Columns beyond the row are zeros, so that arithmetic knows no branches: only loads and stores ask.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 1) norm_fwd_row(const Args a) {
  alignas(16) __shared__ float parts[3][32];
  const auto barrier = [] { __syncthreads(); };
  const bool alone = a.warps == 1;  // no barrier is met
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u32 vectors = (u32)a.hidden / N, share = a.slots * 32, first = alone ? 0 : warp * share;
  const u32 end = first + share < vectors ? first + share : vectors, at = first + lane;
  const i64 row = alone ? (i64)blockIdx.x * (blockDim.x >> 5) + warp : blockIdx.x;
  if (FP8 && blockIdx.x == 0 && threadIdx.x == 0 && a.scale_inv) *a.scale_inv = reciprocal(a.scale ? *a.scale : 1.0f);
  if (row >= a.rows) return;
  const TX *x = a.x + row * a.ldx + at * N;
  Vec16 raw[SLOTS];
#pragma unroll
  for (int i = 0; i < SLOTS; ++i) {
    raw[i] = {{0, 0, 0, 0}};
    if (at + i * 32 < end) raw[i] = ld16_stream(x + i * 32 * N);
  }
  // Parts of warps that are not there; the first barrier of a sum stands between this and whoever reads them.
  if (threadIdx.x >= a.warps && threadIdx.x < 32) {
#pragma unroll
    for (int k = 0; k < 3; ++k) parts[k][threadIdx.x] = 0.0f;
  }
  // Two sums each, of even and odd columns, so that additions need not wait for each other.
  float v[SLOTS][N], sum[2] = {0.0f, 0.0f}, squares[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < SLOTS; ++i) {
    unpack<X>(raw[i], v[i]);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (RMS) squares[k & 1] += v[i][k] * v[i][k];
      else sum[k & 1] += v[i][k];
    }
  }
  Stats s;
  if (RMS) {
    s = finish(0.0f, 0.0f, group_sum(squares[0] + squares[1], &parts[0][warp], parts[0], a.warps, barrier), a.inv_n, a.eps);
  } else {
    const float centre = centre_of(group_sum(sum[0] + sum[1], &parts[0][warp], parts[0], a.warps, barrier), a.inv_n);
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
      const float c = at + i * 32 < end ? centre : 0.0f;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        v[i][k] -= c;
        sum[k & 1] += v[i][k];
        squares[k & 1] += v[i][k] * v[i][k];
      }
    }
    sum[0] += sum[1];
    squares[0] += squares[1];
    group_sum2(sum[0], squares[0], &parts[1 + ((lane & 16) >> 4)][warp], parts[1], parts[2], a.warps, barrier);
    s = finish(centre, sum[0], squares[0], a.inv_n, a.eps);
  }
  if (threadIdx.x == 0 || (alone && lane == 0)) put_stats(a, row, s);
  const float shift = RMS ? 0.0f : -s.rest * s.rsigma;
  u8 *y = a.y + (row * a.ldy + at * N) * element_size(a.y_dt);
  const float scale = FP8 && a.scale ? *a.scale : 1.0f;
  const u32 recorded = FP8 && a.amax ? *(volatile const u32 *)a.amax : 0;
  float amax = 0.0f;
  const auto put = [&](int i) {
    if (FP8) {
#pragma unroll
      for (int k = 0; k < N; ++k) amax = max_nan(amax, v[i][k]);
    }
    with_output(a.y_dt, [&](auto type) { store_vector<decltype(type)::value>(y, i * 32 * N, v[i], scale); });
  };
  // Parameters of x's type, all of them there: no branches within a vector.
  const auto plain = [&](auto zero_centered) {
    const TX *gamma = (const TX *)a.gamma + at * N, *beta = (const TX *)a.beta + at * N;
#pragma unroll
    for (int i = 0; i < SLOTS; ++i)
      if (at + i * 32 < end) {
        float g[N], b[N];
        const Vec16 raw_g = ld16(gamma + i * 32 * N), raw_b = RMS ? raw_g : ld16(beta + i * 32 * N);
        unpack<X>(raw_g, g);
        if (!RMS) unpack<X>(raw_b, b);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float w = decltype(zero_centered)::value ? g[k] + 1.0f : g[k];
          v[i][k] = RMS ? v[i][k] * s.rsigma * w : (v[i][k] * s.rsigma + shift) * w + b[k];
        }
        put(i);
      }
  };
  if (a.gamma && a.gamma_dt == X && (RMS || (a.beta && a.beta_dt == X))) {
    if (a.zero_centered) plain(Type<1>());
    else plain(Type<0>());
  } else {
#pragma unroll
    for (int i = 0; i < SLOTS; ++i)
      if (at + i * 32 < end) {
#pragma unroll
        for (int k = 0; k < N; ++k) v[i][k] = RMS ? v[i][k] * s.rsigma : v[i][k] * s.rsigma + shift;
        // One after the other: registers for both at once would be more than there are.
        Parameters<N> raw;
        float p[N];
        if (a.gamma) {
          raw.fetch(a.gamma, a.gamma_dt, (at + i * 32) * N);
          raw.widen(a.gamma_dt, p);
#pragma unroll
          for (int k = 0; k < N; ++k) v[i][k] *= a.zero_centered ? 1.0f + p[k] : p[k];
        }
        if (!RMS && a.beta) {
          raw.fetch(a.beta, a.beta_dt, (at + i * 32) * N);
          raw.widen(a.beta_dt, p);
#pragma unroll
          for (int k = 0; k < N; ++k) v[i][k] += p[k];
        }
        put(i);
      }
  }
  if (FP8 && a.amax) {
    // What was read may only have grown since: most rows need no atomic.
    const u32 most = warp_max(bits_of(amax));
    if (lane == 0 && most > recorded) record_amax(a.amax, most);
  }
}
