// What the norm kernels share: 16-byte vectors of a high-precision type, parameters of a type known at run time, sums over a row.
#pragma once
#include "common/base.cuh"

// Elements of a 16-byte vector.
template <int DT> struct Vector { static const int N = 16 / (int)sizeof(typename Elem<DT>::T); };

template <int DT> DEVICE void unpack(const Vec16 &v, float (&f)[Vector<DT>::N]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (DT == DT_F32) f[i] = float_of(v.w[i]);
    else unpack2<DT>(v.w[i], f[2 * i], f[2 * i + 1]);
  }
}
template <int DT> DEVICE Vec16 pack(const float (&f)[Vector<DT>::N]) {
  Vec16 v;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (DT == DT_F32) v.w[i] = bits_of(f[i]);
    else v.w[i] = pack2<DT>(f[2 * i], f[2 * i + 1]);
  }
  return v;
}

// ---------------------------------------------------------------- types known at run time
// The branches are uniform: the types are kernel arguments.
DEVICE float load_as(const void *p, int dt, i64 i) {
  if (dt == DT_F32) return ((const float *)p)[i];
  u16 b = ((const u16 *)p)[i];
  return dt == DT_BF16 ? bf16_to_f32(b) : f16_to_f32(b);
}
DEVICE void store_as(void *p, int dt, i64 i, float v) {
  if (dt == DT_F32) ((float *)p)[i] = v;
  else ((u16 *)p)[i] = dt == DT_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
}
DEVICE u8 encode_as(int dt, float v) { return dt == DT_E4M3 ? f32_to_fp8<DT_E4M3>(v) : f32_to_fp8<DT_E5M2>(v); }
DEVICE bool is_fp8(int dt) { return dt >= DT_E4M3; }

// W elements from `i` on, as they lie in memory, then as floats: 1 anywhere; or 4 or 8 where `i` is a multiple of W and the base is
// aligned to W elements or 16 bytes, whichever is less.
template <int W> struct Parameters {
  u32 w[W];
  DEVICE void fetch(const void *p, int dt, i64 i) {
    if constexpr (W == 1) {
      w[0] = dt == DT_F32 ? ((const u32 *)p)[i] : ((const u16 *)p)[i];
    } else if (dt == DT_F32) {
#pragma unroll
      for (int k = 0; k < W; k += 4) {
        Vec16 v = *(const Vec16 *)((const float *)p + i + k);
#pragma unroll
        for (int j = 0; j < 4; ++j) w[k + j] = v.w[j];
      }
    } else if constexpr (W == 8) {
      Vec16 v = *(const Vec16 *)((const u16 *)p + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = v.w[j];
    } else {
      Vec8 v = *(const Vec8 *)((const u16 *)p + i);
      w[0] = v.w[0];
      w[1] = v.w[1];
    }
  }
  DEVICE void widen(int dt, float (&f)[W]) const {
    if (dt == DT_F32) {
#pragma unroll
      for (int k = 0; k < W; ++k) f[k] = float_of(w[k]);
    } else if constexpr (W == 1) {
      f[0] = dt == DT_BF16 ? bf16_to_f32((u16)w[0]) : f16_to_f32((u16)w[0]);
    } else if (dt == DT_BF16) {
#pragma unroll
      for (int j = 0; j < W / 2; ++j) unpack2<DT_BF16>(w[j], f[2 * j], f[2 * j + 1]);
    } else {
#pragma unroll
      for (int j = 0; j < W / 2; ++j) unpack2<DT_F16>(w[j], f[2 * j], f[2 * j + 1]);
    }
  }
};

// `past`: a bool or a cache policy, as st16 takes it.
template <int N, class Past> DEVICE void store_words(void *p, const u32 (&w)[N], Past past) {
  if constexpr (N == 4) {
    Vec16 v = {{w[0], w[1], w[2], w[3]}};
    st16(p, v, past);
  } else if constexpr (N == 2) {
    Vec8 v = {{w[0], w[1]}};
    st8(p, v, past);
  } else {
    *(u32 *)p = w[0];
  }
}
template <int DT, int N, class Past> DEVICE void store_codes(void *p, i64 i, const float (&f)[N], float scale, Past past) {
  u32 w[N / 4];
#pragma unroll
  for (int j = 0; j < N / 4; ++j) w[j] = f32x4_to_fp8x4<DT>(f[4 * j] * scale, f[4 * j + 1] * scale, f[4 * j + 2] * scale, f[4 * j + 3] * scale);
  store_words((u8 *)p + i, w, past);
}
template <int DT, int N, class Past> DEVICE void store_halves(void *p, i64 i, const float (&f)[N], Past past) {
  u32 w[N / 2];
#pragma unroll
  for (int j = 0; j < N / 2; ++j) w[j] = pack2<DT>(f[2 * j], f[2 * j + 1]);
  store_words((u16 *)p + i, w, past);
}
template <int N, class Past> DEVICE void store_floats(void *p, i64 i, const float (&f)[N], Past past) {
#pragma unroll
  for (int k = 0; k < N; k += 4) {
    Vec16 v = {{bits_of(f[k]), bits_of(f[k + 1]), bits_of(f[k + 2]), bits_of(f[k + 3])}};
    st16((float *)p + i + k, v, past);
  }
}
// `scale` multiplies FP8 outputs only.
template <int DT, int N, class Past = bool> DEVICE void store_vector(void *p, i64 i, const float (&f)[N], float scale, Past past = false) {
  if constexpr (DT >= DT_E4M3) store_codes<DT>(p, i, f, scale, past);
  else if constexpr (DT == DT_F32) store_floats(p, i, f, past);
  else store_halves<DT>(p, i, f, past);
}
// f(Type<dt>()), for what a type known at run time decides from then on.
template <int DT> struct Type { static const int value = DT; };
template <class F> DEVICE void with_type(int dt, F f) {
  switch (dt) {
    case DT_F32: f(Type<DT_F32>()); break;
    case DT_F16: f(Type<DT_F16>()); break;
    case DT_BF16: f(Type<DT_BF16>()); break;
    case DT_E4M3: f(Type<DT_E4M3>()); break;
    default: f(Type<DT_E5M2>());
  }
}

// The larger of a, which is no less than 0, and |v|; a NaN wins.
DEVICE float max_nan(float a, float v) { float r; asm("{ .reg .f32 m; abs.f32 m, %2; max.NaN.f32 %0, %1, m; }" : "=f"(r) : "f"(a), "f"(v)); return r; }

// ---------------------------------------------------------------- shared memory by address, copies that nobody waits for yet
DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE Vec16 read16(u32 at) { Vec16 v; asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "r"(at) : "memory"); return v; }
DEVICE void write16(u32 at, const float *f) { asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(f[0]), "f"(f[1]), "f"(f[2]), "f"(f[3]) : "memory"); }
DEVICE void copy16(u32 to, const void *from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
DEVICE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `stages` - 1 groups of this thread's copies are under way.
DEVICE void wait(int stages) {
  if (stages >= 4) asm volatile("cp.async.wait_group 3;" ::: "memory");
  else if (stages == 3) asm volatile("cp.async.wait_group 2;" ::: "memory");
  else if (stages == 2) asm volatile("cp.async.wait_group 1;" ::: "memory");
  else asm volatile("cp.async.wait_group 0;" ::: "memory");
}
// The barrier of some of the block's warps. Number 0 is __syncthreads.
DEVICE void sync_some(u32 number, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }

// ---------------------------------------------------------------- sums over a row
struct alignas(8) Pair { float x, y; };

// Sum of v over `warps` warps, in all their threads and in a fixed order. `part` is theirs and not read or written by anyone since
// their last barrier but one; `sync` is their barrier. One warp needs neither.
template <class Sync> DEVICE float row_sum(float v, float *part, u32 warp, u32 warps, Sync sync) {
  v = warp_sum(v);
  if (warps == 1) return v;
  const u32 lane = threadIdx.x & 31;
  if (lane == 0) part[warp] = v;
  sync();
  return warp_sum(lane < warps ? part[lane] : 0.0f);
}
// The same for two sums at once; `part` has room for two per warp.
template <class Sync> DEVICE void row_sum2(float &a, float &b, Pair *part, u32 warp, u32 warps, Sync sync) {
  a = warp_sum(a);
  b = warp_sum(b);
  if (warps == 1) return;
  const u32 lane = threadIdx.x & 31;
  if (lane == 0) part[warp] = {a, b};
  sync();
  Pair v = {0.0f, 0.0f};
  if (lane < warps) v = part[lane];
  a = warp_sum(v.x);
  b = warp_sum(v.y);
}

// Sum of partial sums, one a warp, that lie on 16 bytes and are padded with zeros to a multiple of four.
DEVICE float sum_parts(const float *part, u32 warps) {
  float sum = 0.0f;
#pragma unroll 1
  for (u32 w = 0; w < warps; w += 4) {
    const Vec16 v = *(const Vec16 *)(part + w);
    sum += (float_of(v.w[0]) + float_of(v.w[1])) + (float_of(v.w[2]) + float_of(v.w[3]));
  }
  return sum;
}
// Sum of v over the `warps` warps of a group, in all their threads and in a fixed order; `place`: the warp's own part; use and `sync` as
// for row_sum.
template <class Sync> DEVICE float group_sum(float v, float *place, const float *part, u32 warps, Sync sync) {
  v = warp_sum(v);
  if (warps == 1) return v;
  if ((threadIdx.x & 31) == 0) *place = v;
  sync();
  return sum_parts(part, warps);
}
// Two sums at once at half the shuffles: after one exchange the lower half of a warp sums a, the upper half b. `place` is that of either.
template <class Sync> DEVICE void group_sum2(float &a, float &b, float *place, const float *part_a, const float *part_b, u32 warps, Sync sync) {
  const bool low = (threadIdx.x & 16) == 0;
  float mine = low ? a : b, other = low ? b : a;
  mine += __shfl_xor_sync(0xFFFFFFFFu, other, 16);
#pragma unroll
  for (int o = 8; o; o >>= 1) mine += __shfl_xor_sync(0xFFFFFFFFu, mine, o);
  if (warps == 1) {
    other = __shfl_xor_sync(0xFFFFFFFFu, mine, 16);
    a = low ? mine : other;
    b = low ? other : mine;
    return;
  }
  if ((threadIdx.x & 15) == 0) *place = mine;
  sync();
  a = sum_parts(part_a, warps);
  b = sum_parts(part_b, warps);
}
