// A row of the norms' forward pass in the registers of one warp or more. OCTETS * 8 columns a thread; FP8 says whether y is, and a.y_dt
// which type. Up to 40 columns are kept as f32 from the first sum to the output, so that x is unpacked once. With 64, of 16 bits each,
// x stays packed and is unpacked for each pass: twice as much is under way for one instruction more an element and pass.
//
// The vectors of a row are shared out evenly, a warp's next to each other (a.slots a thread, 32 apart), so that one address and constants
// beside it lead to all of a thread's. Columns beyond the row are zeros, so that arithmetic knows no branches: only loads and stores ask.
#pragma once
#include "common/norm_output.cuh"

#define SLOTS (OCTETS * 8 / N)
#define KEEP (OCTETS < 8)
// As many threads as leave each 64 registers, or 72. (64 columns take a few more on some architectures.)
#define ROW_THREADS (OCTETS == 4 ? 1024 : OCTETS == 5 ? 896 : 512)
#define ROW_BLOCKS (OCTETS == 8 && (FP8 ? __CUDA_ARCH__ >= 900 : __CUDA_ARCH__ == 900) ? 2 : 1)

// A thread's vectors of a row: at, at + 32, ... below end.
struct Share { u32 at, end; };
// Of warp `warp` of the row.
DEVICE Share share_of(const Args &a, u32 warp) {
  const u32 vectors = (u32)a.hidden / N, first = warp * a.slots * 32, last = first + a.slots * 32;
  return {first + (threadIdx.x & 31), last < vectors ? last : vectors};
}

// What is normalised: x, or the sum of x and the residual, rounded to X and written. FEW vectors of the residual are under way at a time; 0: there
// is none.
template <int FEW> DEVICE void load_row(const Args &a, i64 row, Share own, Vec16 (&raw)[SLOTS]) {
  const TX *x = a.x + row * a.ldx + own.at * N;
#pragma unroll
  for (int i = 0; i < SLOTS; ++i) {
    raw[i] = {{0, 0, 0, 0}};
    if (own.at + i * 32 < own.end) raw[i] = ld16_stream(x + i * 32 * N);
  }
  if constexpr (FEW > 0) {
    if (!a.residual) return;
    const TX *residual = a.residual + row * a.ld_residual + own.at * N;
    TX *sum = a.sum + row * a.ld_sum + own.at * N;
#pragma unroll
    for (int j = 0; j < SLOTS; j += FEW) {
      Vec16 more[FEW];
#pragma unroll
      for (int i = 0; i < FEW; ++i)
        if (own.at + (j + i) * 32 < own.end) more[i] = ld16_stream(residual + (j + i) * 32 * N);
#pragma unroll
      for (int i = 0; i < FEW; ++i)
        if (own.at + (j + i) * 32 < own.end) {
          raw[j + i] = add<X>(raw[j + i], more[i]);
          st16(sum + (j + i) * 32 * N, raw[j + i]);
        }
    }
  }
}

// What unpack finds, by other instructions where X is bf16: the compiler then does not keep in registers what was unpacked before.
template <int PASS> DEVICE void unpack_again(const Vec16 &raw, float (&f)[N]) {
  if constexpr (X == DT_BF16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      f[2 * i] = float_of(PASS == 1 ? __byte_perm(raw.w[i], 0, 0x1044) : __byte_perm(0, raw.w[i], 0x5400));
      f[2 * i + 1] = float_of(PASS == 1 ? __byte_perm(raw.w[i], 0, 0x3244) : __byte_perm(0, raw.w[i], 0x7600));
    }
  } else {
    unpack<X>(raw, f);
  }
}

// Statistics of the row; v becomes the row less `centre` (KEEP). `place`: the warp's part in parts[0] and, LayerNorm, that of this half of the
// warp in parts[1] and parts[2]. Parts, barriers: as for group_sum; LayerNorm meets two barriers, which keep the parts apart from row to row.
template <class Sync>
DEVICE Stats row_stats(const Args &a, Share own, const Vec16 (&raw)[SLOTS], float (&v)[KEEP ? SLOTS : 1][N], float *place, float *half_place,
                       const float *part, const float *part_a, const float *part_b, Sync barrier) {
  // Two sums each, of even and odd columns, so that additions need not wait for each other.
  float sum[2] = {0.0f, 0.0f}, squares[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < SLOTS; ++i) {
    float (&w)[N] = v[KEEP ? i : 0];
    unpack<X>(raw[i], w);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (RMS) squares[k & 1] += w[k] * w[k];
      else sum[k & 1] += w[k];
    }
  }
  if (RMS) return finish(0.0f, 0.0f, group_sum(squares[0] + squares[1], place, part, a.warps, barrier), a.inv_n, a.eps);
  const float all = group_sum(sum[0] + sum[1], place, part, a.warps, barrier), centre = centre_of(all, a.inv_n);
  sum[0] = sum[1] = 0.0f;
#pragma unroll
  for (int i = 0; i < SLOTS; ++i) {
    const float c = own.at + i * 32 < own.end ? centre : 0.0f;
    float (&w)[N] = v[KEEP ? i : 0];
    if (!KEEP) unpack_again<1>(raw[i], w);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      w[k] -= c;
      if (X == DT_F32) sum[k & 1] += w[k];
      squares[k & 1] += w[k] * w[k];
    }
  }
  squares[0] += squares[1];
  if (X != DT_F32) return finish_16_bit(centre, all, group_sum(squares[0], half_place, part_a, a.warps, barrier), a);
  sum[0] += sum[1];
  group_sum2(sum[0], squares[0], half_place, part_a, part_b, a.warps, barrier);
  return finish(centre, sum[0], squares[0], a.inv_n, a.eps);
}

// The row's output, vector after vector, from what row_stats was given and left: put(i, values) for each as soon as it is there.
template <class Put>
DEVICE void finish_row(const Args &a, Share own, const Stats &s, const Vec16 (&raw)[SLOTS], float (&v)[KEEP ? SLOTS : 1][N], Put put) {
  const float shift = RMS ? 0.0f : -s.rest * s.rsigma;
  const auto centred = [&](int i, float (&w)[N]) {
    if (KEEP) return;
    unpack_again<2>(raw[i], w);
    if (RMS) return;
#pragma unroll
    for (int k = 0; k < N; ++k) w[k] -= s.centre;
  };
  // Parameters of x's type, all of them there: no branches within a vector.
  const auto plain = [&](auto zero_centered) {
    const TX *gamma = (const TX *)a.gamma + own.at * N, *beta = (const TX *)a.beta + own.at * N;
#pragma unroll
    for (int i = 0; i < SLOTS; ++i)
      if (own.at + i * 32 < own.end) {
        float g[N], b[N], (&w)[N] = v[KEEP ? i : 0];
        const Vec16 raw_g = ld16(gamma + i * 32 * N), raw_b = RMS ? raw_g : ld16(beta + i * 32 * N);
        centred(i, w);
        unpack<X>(raw_g, g);
        if (!RMS) unpack<X>(raw_b, b);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float weight = decltype(zero_centered)::value ? g[k] + 1.0f : g[k];
          w[k] = RMS ? w[k] * s.rsigma * weight : (w[k] * s.rsigma + shift) * weight + b[k];
        }
        put(i, w);
      }
  };
  if (a.gamma && a.gamma_dt == X && (RMS || (a.beta && a.beta_dt == X))) {
    if (a.zero_centered) plain(Type<1>());
    else plain(Type<0>());
    return;
  }
#pragma unroll
  for (int i = 0; i < SLOTS; ++i)
    if (own.at + i * 32 < own.end) {
      float (&w)[N] = v[KEEP ? i : 0];
      centred(i, w);
#pragma unroll
      for (int k = 0; k < N; ++k) w[k] = RMS ? w[k] * s.rsigma : w[k] * s.rsigma + shift;
      // One after the other: registers for both at once would be more than there are.
      Parameters<N> stored;
      float p[N];
      if (a.gamma) {
        stored.fetch(a.gamma, a.gamma_dt, (own.at + i * 32) * N);
        stored.widen(a.gamma_dt, p);
#pragma unroll
        for (int k = 0; k < N; ++k) w[k] *= a.zero_centered ? 1.0f + p[k] : p[k];
      }
      if (!RMS && a.beta) {
        stored.fetch(a.beta, a.beta_dt, (own.at + i * 32) * N);
        stored.widen(a.beta_dt, p);
#pragma unroll
        for (int k = 0; k < N; ++k) w[k] += p[k];
      }
      put(i, w);
    }
}

// All of a row that has the block, or (a.warps is 1) the calling warp, to itself. policy(): that of y's stores, asked when it is needed, since
// registers are short before.
template <class Policy> DEVICE void forward_row(const Args &a, i64 row, Policy policy) {
  alignas(16) __shared__ float parts[3][32];
  const bool alone = a.warps == 1;  // no barrier is met
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const Share own = share_of(a, alone ? 0 : warp);
  Vec16 raw[SLOTS];
  load_row<X == DT_F32 || !KEEP && FP8 ? 2 : KEEP ? SLOTS : 4>(a, row, own, raw);
  // With x, so that nobody waits for them at the end; where registers are short, then.
  constexpr bool EARLY = KEEP && X != DT_F32;
  const float early_scale = FP8 && EARLY && a.scale ? *a.scale : 1.0f;
  const u32 early = EARLY ? read_amax(a) : 0;
  // Parts of warps that are not there; the first barrier of a sum stands between this and whoever reads them.
  if (threadIdx.x >= a.warps && threadIdx.x < 32) {
#pragma unroll
    for (int k = 0; k < 3; ++k) parts[k][threadIdx.x] = 0.0f;
  }
  float v[KEEP ? SLOTS : 1][N];
  const Stats s = row_stats(a, own, raw, v, &parts[0][warp], &parts[1 + ((lane & 16) >> 4)][warp], parts[0], parts[1], parts[2],
                            [] { __syncthreads(); });
  if (lane == 0 && (alone || warp == 0)) put_stats(a, row, s);
  u8 *y = a.y + (row * a.ldy + own.at * N) * (FP8 ? 1 : element_size(a.y_dt));
  const u64 past = policy();
  const float scale = FP8 && !EARLY && a.scale ? *(const volatile float *)a.scale : early_scale;
  float amax = 0.0f;
  if constexpr (FP8) {
    // Which format is asked once a row.
    with_output(a.y_dt, [&](auto type) {
      finish_row(a, own, s, raw, v, [&](int i, const float (&w)[N]) {
#pragma unroll
        for (int k = 0; k < N; ++k) amax = max_nan(amax, w[k]);
        store_vector<decltype(type)::value>(y, i * 32 * N, w, scale, past);
      });
    });
  } else {
    finish_row(a, own, s, raw, v, [&](int i, const float (&w)[N]) {
      with_output(a.y_dt, [&](auto type) { store_vector<decltype(type)::value>(y, i * 32 * N, w, scale, past); });
    });
  }
  put_warp_amax(a, amax, EARLY ? early : read_amax(a));
}
