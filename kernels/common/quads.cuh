// Rows that begin anywhere: a warp takes 128 neighbouring elements of a row, four (a quad) to a lane, W bytes each, by whole aligned quads.
//
// A lane's quad lies across two aligned ones when the row does not begin at a multiple of a quad. Loading takes both and shifts; the
// second is the first of the lane above, a hit in L1. Storing shifts in what the lane below has, and writes the aligned quad that begins
// at or before the lane's own; elements of aligned quads that this row does not fill go out one by one, at the row's two ends.
// Elements are all this assumes aligned. Between the rows of a matrix with room there it may read, before the first element and behind
// the last it never does; nothing is written but elements.
#pragma once
#include "common/base.cuh"

DEVICE u32 ld4(const void *p) { u32 v; asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p)); return v; }
DEVICE Vec8 ld8(const void *p) { Vec8 v; asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.w[0]), "=r"(v.w[1]) : "l"(p)); return v; }
template <int W> DEVICE void quad_load(u32 (&v)[W], const u8 *p) {
  if constexpr (W == 1) {
    v[0] = ld4(p);
  } else {
    Vec8 both = ld8(p);
    v[0] = both.w[0], v[1] = both.w[1];
  }
}
template <int W> DEVICE void quad_store(u8 *p, const u32 *v) {
  if constexpr (W == 1) *(u32 *)p = v[0];
  if constexpr (W == 2) st8(p, Vec8{{v[0], v[1]}});
  if constexpr (W == 4) st16(p, Vec16{{v[0], v[1], v[2], v[3]}});
}

// Moves the words of `v` down by `bytes` (at most 4 W): the lower W are then what began there.
template <int W> DEVICE void shift_down(u32 (&v)[2 * W], u32 bytes) {
#pragma unroll
  for (int step = W; step; step >>= 1) {
    if (bytes & (4 * step)) {
#pragma unroll
      for (int i = 0; i + step < 2 * W; i++) v[i] = v[i + step];
    }
  }
#pragma unroll
  for (int i = 0; i < W; i++) v[i] = __funnelshift_r(v[i], v[i + 1], 8 * (bytes & 3));
}

// The four elements from `at` on, those outside `begin` .. `end` as zeros.
template <int W> DEVICE void quad_load_within(u32 (&v)[W], const u8 *at, const u8 *begin, const u8 *end) {
  if (at >= begin && at + 4 * W <= end) return quad_load<W>(v, at);
#pragma unroll
  for (int i = 0; i < W; i++) v[i] = 0;
#pragma unroll 1
  for (int e = 3; e >= 0; e--) {
    const u8 *from = at + e * W;
    bool inside = from >= begin && from < end;
    u32 one = !inside ? 0 : W == 1 ? *from : *(const u16 *)from;
    if (W == 2) v[W - 1] = v[W - 1] << 16 | v[0] >> 16;
    v[0] = v[0] << 8 * W | one;
  }
}

// How many of the four elements from `first` on lie below `count`.
DEVICE u32 quad_size(i64 count, i64 first) { return count <= first ? 0 : (u32)imin(4, count - first); }

// A lane's quad of a row on its way: loads are issued by one call and shifted by another, so that several can be under way.
// Elements of four bytes are loaded one by one.
template <int W> struct Quad {
  u32 w[W == 4 ? 4 : 2 * W];

  // `at`: the lane's first element; `n`: how many of its four exist in the row; `begin`, `end`: of the tensor.
  DEVICE void load(const u8 *at, u32 n, const u8 *begin, const u8 *end) {
    if constexpr (W == 4) {
#pragma unroll
      for (u32 i = 0; i < 4; i++) {
        w[i] = 0;
        if (i < n) w[i] = ld4(at + 4 * i);
      }
    } else {
      u32 low[W] = {}, high[W] = {}, off = (u32)(u64)at & (4 * W - 1);
      if (n) quad_load_within<W>(low, at - off, begin, end);
      if (off + n * W > 4 * W) quad_load_within<W>(high, at - off + 4 * W, begin, end);
#pragma unroll
      for (int i = 0; i < W; i++) w[i] = low[i], w[W + i] = high[i];
    }
  }

  // The quad, with zeros for what does not exist.
  DEVICE void get(u32 (&v)[W], const u8 *at, u32 n) {
    if constexpr (W != 4) shift_down<W>(w, (u32)(u64)at & (4 * W - 1));
#pragma unroll
    for (int i = 0; i < W; i++) {
      v[i] = w[i];
      if (W == 1) v[i] &= n >= 4 ? ~0u : ~(~0u << 8 * n);
      if (W == 2) v[i] &= n >= 2 * i + 2 ? ~0u : n > 2 * i ? 0xFFFFu : 0u;
    }
  }
};

// Stores a row's 128 elements of W bytes: `to` is where the lane's first of four goes, `n` how many of them exist, `next` how many of the
// lane above. All lanes of the warp call it.
template <int W> DEVICE void quad_put(u8 *to, const u32 (&own)[W], u32 n, u32 next) {
  u32 lane = threadIdx.x & 31, off = (u32)(u64)to & (4 * W - 1);
  u32 fits = 4 - off / W;  // how many of the lane's elements lie in the aligned quad at to - off
  u32 v[2 * W];
#pragma unroll
  for (int i = 0; i < W; i++) v[i] = __shfl_up_sync(0xFFFFFFFFu, own[i], 1), v[W + i] = own[i];
  shift_down<W>(v, 4 * W - off);
  bool whole = n >= fits && (lane || off == 0), rest = lane < 31 && next >= fits;
  if (whole) quad_store<W>(to - off, v);
  if (n && !(whole && (off == 0 || rest))) {
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      if (j >= n || (j < fits ? whole : rest)) continue;
      if constexpr (W == 1) to[j] = (u8)(own[0] >> 8 * j);
      if constexpr (W == 2) ((u16 *)to)[j] = (u16)(own[j >> 1] >> 16 * (j & 1));
      if constexpr (W == 4) ((u32 *)to)[j] = own[j];
    }
  }
}
