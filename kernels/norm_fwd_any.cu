// LayerNorm (RMS = 0) and RMSNorm (RMS = 1) forward for rows of any length and alignment: y = (x - mean) * rsigma * weight + beta, of x or,
// with a residual, of x + residual, which is written too. Tensors and statistics: common/norm_fwd.cuh. Rows that are short enough and
// aligned have a kernel of their own, norm_fwd_row.cu.
//
//   norm_fwd_wide   everything is aligned for vectors
//   norm_fwd_any    any alignment
//
// One block of `warps` warps per row, or one warp per row and several rows per block; row after row. A thread takes `slots` slots of a row: 16
// bytes of x each, neighbours where vectors can be read, and else elements 32 apart, so that what a warp touches lies together either way.
// The first `kept` of them wait in shared memory, where nobody else reads them: x is read once, and no barrier guards it. What is
// beyond them (the longest rows have that) each pass reads again. A slot that is done with takes up that of the block's next row.
//
// Bytes moved per element: sizeof(X) + sizeof(y); 2 sizeof(X) more with a residual.
#include "common/norm_fwd.cuh"

// The slot that begins at column `at`; what lies from `end` on is zero. WRITTEN: of memory that this kernel may have written.
template <bool VEC, bool WRITTEN, bool FULL> DEVICE Vec16 load_slot(const TX *p, u32 at, u32 end) {
  Vec16 v = {{0, 0, 0, 0}};
  if constexpr (VEC) {
    v = WRITTEN ? ld16_once(p + at) : ld16_stream(p + at);
  } else {
    u32 e[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      e[k] = 0;
      if (FULL || at + k * 32 < end) {
        if constexpr (X == DT_F32) e[k] = bits_of(p[at + k * 32]);
        else e[k] = p[at + k * 32];
      }
    }
#pragma unroll
    for (u32 w = 0; w < 4; ++w) v.w[w] = X == DT_F32 ? e[w] : e[2 * w] | e[2 * w + 1] << 16;
  }
  return v;
}
template <bool VEC> DEVICE void store_sum(TX *p, u32 at, u32 end, const Vec16 &v) {
  if constexpr (VEC) {
    st16(p + at, v);
  } else {
#pragma unroll
    for (u32 k = 0; k < N; ++k)
      if (at + k * 32 < end) {
        if constexpr (X == DT_F32) p[at + k * 32] = float_of(v.w[k]);
        else p[at + k * 32] = (u16)(v.w[k >> 1] >> (k & 1) * 16);
      }
  }
}

// A slot of a parameter, as it lies in memory, then as floats.
template <bool VEC> struct Parameter {
  Parameters<N> vector;
  template <bool FULL> DEVICE void fetch(const void *p, int dt, u32 at, u32 end) {
    if constexpr (VEC) {
      vector.fetch(p, dt, at);
    } else {
#pragma unroll
      for (u32 k = 0; k < N; ++k) vector.w[k] = 0;
      if (dt == DT_F32) {
#pragma unroll
        for (u32 k = 0; k < N; ++k)
          if (FULL || at + k * 32 < end) vector.w[k] = ((const u32 *)p)[at + k * 32];
      } else {
#pragma unroll
        for (u32 k = 0; k < N; ++k)
          if (FULL || at + k * 32 < end) vector.w[k] = ((const u16 *)p)[at + k * 32];
      }
    }
  }
  DEVICE void widen(int dt, float (&f)[N]) const {
    if constexpr (VEC) {
      vector.widen(dt, f);
    } else if (dt == DT_F16) {
#pragma unroll
      for (int k = 0; k < N; ++k) f[k] = f16_to_f32((u16)vector.w[k]);
    } else {
      const u32 shift = dt == DT_F32 ? 0 : 16;
#pragma unroll
      for (int k = 0; k < N; ++k) f[k] = float_of(vector.w[k] << shift);
    }
  }
};

template <bool VEC, bool FULL> DEVICE void store_slot(u8 *y, int dt, u32 at, u32 end, const float (&v)[N], float scale) {
  with_type(dt, [&](auto type) {
    constexpr int Y = decltype(type)::value;
    if constexpr (VEC) {
      store_vector<Y>(y, at, v, scale);
    } else {
      typename Elem<Y>::T *out = (typename Elem<Y>::T *)y;
      // Two codes in one conversion.
#pragma unroll
      for (int k = 0; k < N; k += 2) {
        u32 lo, hi;
        if constexpr (Y == DT_F32) {
          lo = bits_of(v[k]);
          hi = bits_of(v[k + 1]);
        } else if constexpr (Y >= DT_E4M3) {
          lo = f32x2_to_fp8x2<Y>(v[k] * scale, v[k + 1] * scale);
          hi = lo >> 8;
        } else {
          lo = pack2<Y>(v[k], v[k + 1]);
          hi = lo >> 16;
        }
        if (FULL || at + k * 32 < end) { if constexpr (Y == DT_F32) out[at + k * 32] = float_of(lo); else out[at + k * 32] = (typename Elem<Y>::T)lo; }
        if (FULL || at + k * 32 + 32 < end) { if constexpr (Y == DT_F32) out[at + k * 32 + 32] = float_of(hi); else out[at + k * 32 + 32] = (typename Elem<Y>::T)hi; }
      }
    }
  });
}

// Sums, rounded to the type.
DEVICE Vec16 add(const Vec16 &a, const Vec16 &b) {
  float f[N], more[N];
  unpack<X>(a, f);
  unpack<X>(b, more);
#pragma unroll
  for (int k = 0; k < N; ++k) f[k] += more[k];
  return pack<X>(f);
}

DEVICE void keep16(u32 at, const Vec16 &v) { asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory"); }

// Dynamic shared memory: 16 bytes for each kept slot of the block's threads.
template <bool VEC> DEVICE void rows_of_any_length(const Args &a) {
  extern __shared__ Vec16 room[];
  alignas(16) __shared__ float parts[4][32];
  const bool alone = a.warps == 1;  // no barrier is met
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, pitch = blockDim.x * 16, mine = shared_address(room) + threadIdx.x * 16;
  const i64 share = (i64)a.slots * 32 * N, first = (alone ? 0 : warp) * share, end = imin(first + share, a.hidden);
  // The thread's first column, how many lie between it and the share's end, and how many slots begin there.
  const i64 at0 = first + lane * (VEC ? N : 1);
  const u32 left = at0 < end ? (u32)(end - at0) : 0, slots = (left + 32 * N - 1) / (32 * N), kept = slots < (u32)a.kept ? slots : a.kept;
  // Slots without a column beyond the share, for any lane, and those of them that are kept.
  const u32 full = VEC ? slots : first < end ? (u32)(end - first) / (32 * N) : 0, kept_full = full < kept ? full : kept;
  const bool fp8 = is_fp8(a.y_dt);
  const auto barrier = [] { __syncthreads(); };
  const float scale = read_scale(a), one = a.zero_centered ? 1.0f : -0.0f;
  const u32 recorded = fp8 && a.amax ? *(volatile const u32 *)a.amax : 0;
  float amax = 0.0f;
  if (threadIdx.x < 32) {
#pragma unroll
    for (int k = 0; k < 4; ++k) parts[k][threadIdx.x] = 0.0f;
  }
  if (!alone) __syncthreads();
  const i64 step = alone ? (i64)gridDim.x * (blockDim.x >> 5) : gridDim.x;
  bool fetched = false;
  u32 turn = 0;
#pragma unroll 1
  for (i64 row = alone ? (i64)blockIdx.x * (blockDim.x >> 5) + warp : blockIdx.x; row < a.rows; row += step, turn ^= 1) {
    const TX *x = a.x + row * a.ldx + at0;
    if (a.residual) {
      const TX *residual = a.residual + row * a.ld_residual + at0;
      TX *out = a.sum + row * a.ld_sum + at0;
#pragma unroll VEC ? 2 : 1
      for (u32 i = 0; i < slots; ++i) {
        const Vec16 v = add(load_slot<VEC, false, VEC>(x, i * 32 * N, left), load_slot<VEC, false, VEC>(residual, i * 32 * N, left));
        store_sum<VEC>(out, i * 32 * N, left, v);
        if (i < kept) keep16(mine + i * pitch, v);
      }
      x = out;
    } else if (VEC) {
      if (!fetched) {
#pragma unroll 4
        for (u32 i = 0; i < kept; ++i) copy16(mine + i * pitch, x + i * 32 * N);
        commit();
      }
      wait(1);
    } else {
#pragma unroll 2
      for (u32 i = 0; i < kept_full; ++i) keep16(mine + i * pitch, load_slot<VEC, false, true>(x, i * 32 * N, left));
#pragma unroll 1
      for (u32 i = kept_full; i < kept; ++i) keep16(mine + i * pitch, load_slot<VEC, false, false>(x, i * 32 * N, left));
    }
    // f(values, column from at0 on, whether all are of the row) for every slot.
    const auto each = [&](auto f) {
#pragma unroll 2
      for (u32 i = 0; i < kept_full; ++i) {
        float v[N];
        unpack<X>(read16(mine + i * pitch), v);
        f(v, i * 32 * N, Type<1>());
      }
#pragma unroll 1
      for (u32 i = kept_full; i < slots; ++i) {
        float v[N];
        unpack<X>(i < kept ? read16(mine + i * pitch) : load_slot<VEC, true, VEC>(x, i * 32 * N, left), v);
        f(v, i * 32 * N, Type<VEC>());
      }
    };
    // Each slot's terms are added up by themselves first: with 16-bit elements, of which many are equal, roundings of a long sum do not cancel.
    float sum = 0.0f, squares = 0.0f;
    each([&](const float (&v)[N], u32, auto) {
      float own[2];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float term = RMS ? v[k] * v[k] : v[k];
        own[k & 1] = k < 2 ? term : own[k & 1] + term;
      }
      (RMS ? squares : sum) += own[0] + own[1];
    });
    Stats s;
    if (RMS) {
      s = finish(0.0f, 0.0f, group_sum(squares, &parts[turn][warp], parts[turn], a.warps, barrier), a.inv_n, a.eps);
    } else {
      const float centre = centre_of(group_sum(sum, &parts[0][warp], parts[0], a.warps, barrier), a.inv_n);
      sum = 0.0f;
      each([&](const float (&v)[N], u32 c, auto full) {
        float own[2], own_squares[2];
#pragma unroll
        for (u32 k = 0; k < N; ++k) {
          // What lies beyond the row adds nothing.
          const float d = v[k] - (decltype(full)::value || c + k * 32 < left ? centre : 0.0f);
          own[k & 1] = k < 2 ? d : own[k & 1] + d;
          own_squares[k & 1] = k < 2 ? d * d : own_squares[k & 1] + d * d;
        }
        sum += own[0] + own[1];
        squares += own_squares[0] + own_squares[1];
      });
      group_sum2(sum, squares, &parts[1 + ((lane & 16) >> 4)][warp], parts[1], parts[2], a.warps, barrier);
      s = finish(centre, sum, squares, a.inv_n, a.eps);
    }
    if (lane == 0 && (alone || warp == 0)) put_stats(a, row, s);
    // Hidden from the compiler, which would keep the addresses from row to row.
    i64 column = at0;
    asm volatile("" : "+l"(column));
    u8 *y = a.y + (row * a.ldy + column) * element_size(a.y_dt);
    const u8 *gamma = (const u8 *)a.gamma + column * element_size(a.gamma_dt), *beta = (const u8 *)a.beta + column * element_size(a.beta_dt);
    const float shift = -s.rest * s.rsigma;
    fetched = VEC && !a.residual && row + step < a.rows;
    const TX *next = x + step * a.ldx;
    const auto put = [&](u32 i, auto whole) {
      constexpr bool FULL = decltype(whole)::value;
      const u32 c = i * 32 * N;
      float v[N], p[N];
      Parameter<VEC> weight, bias;
      if (a.gamma) weight.template fetch<FULL>(gamma, a.gamma_dt, c, left);
      // Element by element there are no registers for both at once.
      if (VEC && !RMS && a.beta) bias.template fetch<FULL>(beta, a.beta_dt, c, left);
      unpack<X>(i < kept ? read16(mine + i * pitch) : load_slot<VEC, true, FULL>(x, c, left), v);
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = RMS ? v[k] * s.rsigma : (v[k] - s.centre) * s.rsigma + shift;
      if (a.gamma) {
        weight.widen(a.gamma_dt, p);
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] *= p[k] + one;
      }
      if (!RMS && a.beta) {
        if (!VEC) bias.template fetch<FULL>(beta, a.beta_dt, c, left);
        bias.widen(a.beta_dt, p);
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] += p[k];
      }
      if (fp8) {
#pragma unroll
        for (u32 k = 0; k < N; ++k)
          if (FULL || c + k * 32 < left) amax = max_nan(amax, v[k]);
      }
      store_slot<VEC, FULL>(y, a.y_dt, c, left, v, scale);
      if (fetched && i < kept) copy16(mine + i * pitch, next + c);
    };
#pragma unroll 1
    for (u32 i = 0; i < full; ++i) put(i, Type<1>());
#pragma unroll 1
    for (u32 i = full; i < slots; ++i) put(i, Type<VEC>());
    if (fetched) commit();
  }
  if (!fp8 || !a.amax) return;
  const u32 most = warp_max(bits_of(amax));
  if (lane == 0 && most > recorded) record_amax(a.amax, most);
}

// As many threads as leave each 80 registers; 96 where FP8 codes are formed of integers.
#if __CUDA_ARCH__ >= 890
#define ANY_THREADS 768
#else
#define ANY_THREADS 640
#endif
extern "C" __global__ void __launch_bounds__(1024, 1) norm_fwd_wide(const Args a) { after_previous(); rows_of_any_length<true>(a); }
extern "C" __global__ void __launch_bounds__(ANY_THREADS, 1) norm_fwd_any(const Args a) { after_previous(); rows_of_any_length<false>(a); }
