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

// How many of the four elements from `first` on lie below `count`.
DEVICE u32 quad_size(i64 count, i64 first) { return count <= first ? 0 : (u32)imin(4, count - first); }

// A lane's quad of a row on its way: loads are issued by one call and put in order by another, so that several can be under way.
// `inner`, the same for all lanes of the warp: all 128 elements exist, and neither in the first nor in the last row of the matrix; then
// the aligned quads that hold them lie in the matrix too. All else takes single elements.
template <int W> struct Quad {
  u32 w[4];

  // `at`: the lane's first element; `n`: how many of its four exist.
  DEVICE void load(bool inner, const u8 *at, u32 n) {
    if (W != 4 && inner) {
      if constexpr (W != 4) {
        u32 off = (u32)(u64)at & (4 * W - 1), low[W], high[W] = {};
        quad_load<W>(low, at - off);
        if (off) quad_load<W>(high, at - off + 4 * W);
#pragma unroll
        for (int i = 0; i < W; i++) w[i] = low[i], w[W + i] = high[i];
      }
      return;
    }
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      w[j] = 0;
      if (j < n) w[j] = W == 1 ? *(at + j) : W == 2 ? *(const u16 *)(at + 2 * j) : ld4(at + 4 * j);
    }
  }

  // The quad, with zeros for what does not exist.
  DEVICE void get(u32 (&v)[W], bool inner, const u8 *at) {
    if constexpr (W == 4) {
#pragma unroll
      for (int i = 0; i < 4; i++) v[i] = w[i];
    } else if (inner) {
      u32 x[2 * W];
#pragma unroll
      for (int i = 0; i < 2 * W; i++) x[i] = w[i];
      shift_down<W>(x, (u32)(u64)at & (4 * W - 1));
#pragma unroll
      for (int i = 0; i < W; i++) v[i] = x[i];
    } else if constexpr (W == 2) {
      v[0] = w[0] | w[1] << 16, v[1] = w[2] | w[3] << 16;
    } else {
      v[0] = w[0] | w[1] << 8 | w[2] << 16 | w[3] << 24;
    }
  }
};

// One of a lane's elements.
template <int W> DEVICE void element_put(u8 *to, const u32 (&own)[W], u32 j) {
  if constexpr (W == 1) to[j] = (u8)(own[0] >> 8 * j);
  if constexpr (W == 2) ((u16 *)to)[j] = (u16)(own[j >> 1] >> 16 * (j & 1));
  if constexpr (W == 4) ((u32 *)to)[j] = own[j];
}

// Stores a row of W-byte elements, four to each of `lanes` neighbouring lanes (a power of two; a warp may store several rows at a time):
// `to` is where the lane's first element goes, `n` how many of its four exist, `next` how many of the lane above. All lanes call it.
template <int W> DEVICE void quad_put(u8 *to, const u32 (&own)[W], u32 n, u32 next, u32 lanes) {
  u32 lane = threadIdx.x & (lanes - 1), off = (u32)(u64)to & (4 * W - 1);
  u32 fits = 4 - off / W;  // how many of the lane's elements lie in the aligned quad at to - off
  u32 v[2 * W];
#pragma unroll
  for (int i = 0; i < W; i++) v[i] = __shfl_up_sync(0xFFFFFFFFu, own[i], 1), v[W + i] = own[i];
  shift_down<W>(v, 4 * W - off);
  bool whole = n >= fits && (lane || off == 0), rest = lane < lanes - 1 && next >= fits;
  if (whole) quad_store<W>(to - off, v);
  if (n && !(whole && (off == 0 || rest))) {
#pragma unroll
    for (u32 j = 0; j < 4; j++)
      if (j < n && !(j < fits ? whole : rest)) element_put<W>(to, own, j);
  }
}

// The same for a row of 128 elements that all exist. What lies outside whole aligned quads, four elements in all, goes out by four lanes.
template <int W> DEVICE void quad_put_whole(u8 *to, const u32 (&own)[W]) {
  u32 lane = threadIdx.x & 31, off = (u32)(u64)to & (4 * W - 1);
  bool low = lane < 4 - off / W;
  u32 v[2 * W], end[W];
#pragma unroll
  for (int i = 0; i < W; i++) {
    v[i] = __shfl_up_sync(0xFFFFFFFFu, own[i], 1), v[W + i] = own[i];
    end[i] = __shfl_sync(0xFFFFFFFFu, own[i], low ? 0 : 31);
  }
  shift_down<W>(v, 4 * W - off);
  if (lane || off == 0) quad_store<W>(to - off, v);
  if (off && lane < 4) {
    u8 *at = to - 3 * W * lane + (low ? 0 : 124 * W);
    u32 word = W == 1 ? end[0] : W == 2 ? (lane < 2 ? end[0] : end[W - 1]) : lane < 2 ? (lane ? end[W / 4] : end[0]) : lane == 2 ? end[W / 2] : end[W - 1];
    if (W == 1) *at = (u8)(word >> 8 * lane);
    if (W == 2) *(u16 *)at = (u16)(word >> 16 * (lane & 1));
    if (W == 4) *(u32 *)at = word;
  }
}

// One or the other, for a row of a warp.
template <int W> DEVICE void quad_put(bool inner, u8 *to, const u32 (&own)[W], u32 n) {
  if (inner) {
    quad_put_whole<W>(to, own);
  } else {
#pragma unroll
    for (u32 j = 0; j < 4; j++)
      if (j < n) element_put<W>(to, own, j);
  }
}
