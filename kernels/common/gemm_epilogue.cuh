// The epilogue that every GEMM kernel shares (NUMERICS section 6):
//
//   v = alpha * scale_inv_a * scale_inv_b * acc + bias[column] + beta * C        in f32
//   amax = max |v| (recorded only where asked for);  D = v, or encode(v * d_scale) where D is FP8
//
// A warp stages 16 rows x 64 columns of f32 accumulators in shared memory and writes them row by row, so that global stores are
// contiguous whatever the accumulator layout and whatever the alignment of D. All columns of D are written by exactly one lane; that lane
// has read C at the same place before (the store of another lane's column depends on a shuffle of its value), so C may be D.
#pragma once
#include "common/smem.cuh"

// What the host passes by value. NULL pointers mean: bias none, scale_inv 1, amax not recorded, d_scale_inv not written.
struct GemmOut {
  void *d;
  const void *c;
  const void *bias;
  const float *scale_inv_a, *scale_inv_b;
  const float *d_scale;
  float *d_scale_inv;
  float *amax;
  i64 ldd, ldc;          // in elements
  float alpha, beta;     // beta == 0: C is never read
  i32 c_dtype, bias_dtype;
};

// What a thread works out once.
struct OutScale {
  float s1, s2;      // their product is alpha * scale_inv_a * scale_inv_b; s2 is a power of two
  float d_scale;
  bool d_wide, c_wide; // groups of four columns of D, C are aligned to their size
};

DEVICE u32 dtype_size(i32 dt) { return dt == DT_F32 ? 4 : dt == DT_F16 || dt == DT_BF16 ? 2 : 1; }

DEVICE float load_any(const void *p, i64 at, i32 dt) {
  if (dt == DT_F32) return ((const float *)p)[at];
  u16 h = ((const u16 *)p)[at];
  return dt == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}
// Four neighbours; `wide`: their address is a multiple of their size.
DEVICE void load_any4(float (&x)[4], const void *p, i64 at, i32 dt, bool wide) {
  if (!wide) {
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = load_any(p, at + i, dt);
  } else if (dt == DT_F32) {
    F4 v = *(const F4 *)((const float *)p + at);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
  } else {
    Vec8 v = *(const Vec8 *)((const u16 *)p + at);
    if (dt == DT_BF16) { unpack2<DT_BF16>(v.w[0], x[0], x[1]); unpack2<DT_BF16>(v.w[1], x[2], x[3]); }
    else { unpack2<DT_F16>(v.w[0], x[0], x[1]); unpack2<DT_F16>(v.w[1], x[2], x[3]); }
  }
}

template <int DT> DEVICE OutScale out_scale(const GemmOut &o) {
  OutScale s;
  // Two scale_inv may be far apart (a tensor of 1e-38 against one of 1e38): their product is formed in f64, and where f32 cannot hold it
  // as a normal number a power of two is split off.
  double p = (double)o.alpha;
  if (o.scale_inv_a) p *= (double)*o.scale_inv_a;
  if (o.scale_inv_b) p *= (double)*o.scale_inv_b;
  double m = p < 0.0 ? -p : p;
  const float up = float_of((127u + 100u) << 23), down = float_of((127u - 100u) << 23);
  s.s2 = 1.0f;
  if (m < (double)float_of(1u << 23)) { p *= (double)up; s.s2 = down; }
  else if (m >= (double)float_of(254u << 23)) { p *= (double)down; s.s2 = up; }
  s.s1 = (float)p;
  s.d_scale = (DT == DT_E4M3 || DT == DT_E5M2) && o.d_scale ? *o.d_scale : 1.0f;
  const u32 es = sizeof(typename Elem<DT>::T), cs = dtype_size(o.c_dtype);
  s.d_wide = (((u64)o.d | (u64)o.ldd * es) & (4 * es - 1)) == 0;
  s.c_wide = (((u64)o.c | (u64)o.ldc * cs) & (4 * cs - 1)) == 0;
  return s;
}

// One thread of the launch calls it.
DEVICE void write_scale_inv(const GemmOut &o) {
  if (o.d_scale_inv) *o.d_scale_inv = o.d_scale ? reciprocal(*o.d_scale) : 1.0f;
}

// Asked for anew each time: otherwise the compiler computes the epilogue's addresses ahead of the main loop and keeps them in registers
// that the accumulators need.
DEVICE int lane_id() { u32 l; asm volatile("mov.u32 %0, %%laneid;" : "=r"(l)); return (int)l; }

// Where (row, column) of a staged 16 x 64 chunk lies. Blocks of eight columns are exchanged by the row's low bits: both the scattered
// writes of accumulators (8 bytes a lane, eight rows at once) and the row-wise reads are then free of bank conflicts. Moving down four rows
// adds 256 and moving right four blocks adds 32: the code below is written so that the compiler sees those as constant offsets.
DEVICE int stage_at(int r, int c) { return r * 64 + ((((c >> 3) ^ (r & 3)) << 3) | (c & 7)); }
#define STAGE_FLOATS 1024

// The accumulators of eight m16n8 fragments (the layout of mma.sync and of wgmma alike) into the stage.
DEVICE void stage_fragments(float *stage, const float *acc) {
  const int lane = lane_id(), r = lane >> 2, q = (lane & 3) * 2;
#pragma unroll
  for (int b = 0; b < 4; b++) {
    float *to = stage + stage_at(r, 8 * b + q);
#pragma unroll
    for (int j = b; j < 8; j += 4) {
      F2 top = {acc[4 * j], acc[4 * j + 1]}, low = {acc[4 * j + 2], acc[4 * j + 3]};
      *(F2 *)(to + (j - b) * 8) = top;
      *(F2 *)(to + (j - b) * 8 + 8 * 64) = low;
    }
  }
}

// Scaled, plus bias. s2 is a power of two, so the second step rounds once.
DEVICE float finish(float acc, const OutScale &s, float bias) { return __fmaf_rn(__fmul_rn(acc, s.s1), s.s2, bias); }

// A bias of -0 changes no value, not even the sign of a zero.
#define NO_BIAS __uint_as_float(0x80000000u)

// A whole chunk whose rows are aligned, with s2 = 1: half a warp per row, four columns a lane.
template <int DT> DEVICE void store_chunk_wide(const GemmOut &o, const OutScale &s, const float *stage, i64 row0, i64 col0, u32 &amax) {
  const int lane = lane_id(), c = (lane & 15) * 4, half = lane >> 4;
  const u32 es = sizeof(typename Elem<DT>::T);
  float bias[4] = {NO_BIAS, NO_BIAS, NO_BIAS, NO_BIAS};
  if (o.bias) load_any4(bias, o.bias, col0 + c, o.bias_dtype, false);
  u8 *p = (u8 *)o.d + ((row0 + half) * o.ldd + col0 + c) * es;
  const i64 step = 2 * o.ldd * es;
  i64 at_c = (row0 + half) * o.ldc + col0 + c;
  const float *even = stage + stage_at(half, c), *odd = stage + stage_at(2 + half, c);
#pragma unroll 1
  for (int r0 = 0; r0 < 16; r0 += 8, even += 8 * 64, odd += 8 * 64) {
    float v[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      F4 a = *(const F4 *)((i & 1 ? odd : even) + i / 2 * 4 * 64);
      v[i][0] = __fmaf_rn(a.x, s.s1, bias[0]), v[i][1] = __fmaf_rn(a.y, s.s1, bias[1]);
      v[i][2] = __fmaf_rn(a.z, s.s1, bias[2]), v[i][3] = __fmaf_rn(a.w, s.s1, bias[3]);
    }
    if (o.beta != 0.0f) {
      float old[4][4];
#pragma unroll
      for (int i = 0; i < 4; i++) { load_any4(old[i], o.c, at_c, o.c_dtype, s.c_wide); at_c += 2 * o.ldc; }
#pragma unroll
      for (int i = 0; i < 16; i++) v[i / 4][i % 4] = __fmaf_rn(o.beta, old[i / 4][i % 4], v[i / 4][i % 4]);
    }
    if (o.amax) {
#pragma unroll
      for (int i = 0; i < 16; i++) amax = umax(amax, abs_bits(v[i / 4][i % 4]));
    }
#pragma unroll
    for (int i = 0; i < 4; i++, p += step) {
      if (DT == DT_F32) {
        Vec16 w = {{bits_of(v[i][0]), bits_of(v[i][1]), bits_of(v[i][2]), bits_of(v[i][3])}};
        st16(p, w);
      } else if (DT == DT_F16 || DT == DT_BF16) {
        Vec8 w = {{pack2<DT>(v[i][0], v[i][1]), pack2<DT>(v[i][2], v[i][3])}};
        st8(p, w);
      } else {
        const float d = s.d_scale;
        *(u32 *)p = f32x4_to_fp8x4<DT>(__fmul_rn(v[i][0], d), __fmul_rn(v[i][1], d), __fmul_rn(v[i][2], d), __fmul_rn(v[i][3], d));
      }
    }
  }
}

template <int DT> DEVICE void store_pair(u8 *p, u32 w) {
  if (DT == DT_F16 || DT == DT_BF16) *(u32 *)p = w;
  else *(u16 *)p = (u16)w;
}
template <int DT> DEVICE void store_half(u8 *p, u32 w) {
  if (DT == DT_F16 || DT == DT_BF16) *(u16 *)p = (u16)w;
  else *p = (u8)w;
}

// Any chunk: `rows` <= 16 and `cols` <= 64 of it exist (FULL: all of it), D has element alignment only. Two columns a lane.
template <int DT, bool FULL>
DEVICE void store_chunk_any(const GemmOut &o, const OutScale &s, const float *stage, i64 row0, i64 col0, int rows, int cols, u32 &amax) {
  const int lane = lane_id();
  const u32 es = sizeof(typename Elem<DT>::T), half_bits = 8 * es & 31;
  // f32 elements are aligned by themselves: lanes take neighbouring columns. Narrower types take pairs.
  const int c0 = DT == DT_F32 ? lane : 2 * lane, c1 = DT == DT_F32 ? lane + 32 : 2 * lane + 1;
  const bool ok0 = FULL || c0 < cols, ok1 = FULL || c1 < cols;
  float b0 = NO_BIAS, b1 = NO_BIAS;
  if (o.bias) {
    if (ok0) b0 = load_any(o.bias, col0 + c0, o.bias_dtype);
    if (ok1) b1 = load_any(o.bias, col0 + c1, o.bias_dtype);
  }
  u8 *p = (u8 *)o.d + (row0 * o.ldd + col0) * es;
  const i64 step = o.ldd * es;
  i64 at_c = row0 * o.ldc + col0;
#pragma unroll 1
  for (int r0 = 0; r0 < (FULL ? 16 : rows); r0 += 4) {
    float v0[4], v1[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float *from = stage + r0 * 64 + stage_at(i, c0);
      if (DT == DT_F32) {
        v0[i] = from[0], v1[i] = from[32];
      } else {
        F2 a = *(const F2 *)from;
        v0[i] = a.x, v1[i] = a.y;
      }
      v0[i] = finish(v0[i], s, b0), v1[i] = finish(v1[i], s, b1);
    }
    if (o.beta != 0.0f) {
      float old0[4], old1[4];
#pragma unroll
      for (int i = 0; i < 4; i++, at_c += o.ldc) {
        const bool row = FULL || r0 + i < rows;
        old0[i] = row && ok0 ? load_any(o.c, at_c + c0, o.c_dtype) : 0.0f;
        old1[i] = row && ok1 ? load_any(o.c, at_c + c1, o.c_dtype) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 4; i++) v0[i] = __fmaf_rn(o.beta, old0[i], v0[i]), v1[i] = __fmaf_rn(o.beta, old1[i], v1[i]);
    }
    if (o.amax) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const bool row = FULL || r0 + i < rows;
        if (row && ok0) amax = umax(amax, abs_bits(v0[i]));
        if (row && ok1) amax = umax(amax, abs_bits(v1[i]));
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++, p += step) {
      const bool row = FULL || r0 + i < rows;
      if (DT == DT_F32) {
        if (row && ok0) *(float *)(p + c0 * 4) = v0[i];
        if (row && ok1) *(float *)(p + c1 * 4) = v1[i];
      } else {
        const u32 w = DT == DT_F16 || DT == DT_BF16 ? pack2<DT>(v0[i], v1[i]) : f32x2_to_fp8x2<DT>(__fmul_rn(v0[i], s.d_scale), __fmul_rn(v1[i], s.d_scale));
        // A row that starts on an odd element is stored in pairs one column further right, its first and last column alone.
        const u32 next = __shfl_down_sync(0xFFFFFFFFu, w, 1);
        const bool odd = ((u64)p & (2 * es - 1)) != 0;
        const int first = odd ? c1 : c0;
        const u32 pair = odd ? w >> half_bits | next << half_bits : w;
        const bool whole = FULL ? !odd || lane < 31 : first + 1 < cols;
        if (row && whole && first < 63) store_pair<DT>(p + first * es, pair);
        else if (row && (FULL || first < cols)) store_half<DT>(p + first * es, pair);
        if (row && odd && lane == 0) store_half<DT>(p, w);
      }
    }
  }
}

// What is staged, at (row0, col0) of D, of which m x n elements exist. Whole warps call it, between two __syncwarp().
template <int DT> DEVICE void store_chunk(const GemmOut &o, const OutScale &s, const float *stage, i64 row0, i64 col0, i64 m, i64 n, u32 &amax) {
  int rows = (int)imin(m - row0, 16), cols = (int)imin(n - col0, 64);
  if (rows <= 0 || cols <= 0) return;
  if (rows < 16 || cols < 64) store_chunk_any<DT, false>(o, s, stage, row0, col0, rows, cols, amax);
  else if (s.d_wide && s.s2 == 1.0f) store_chunk_wide<DT>(o, s, stage, row0, col0, amax);
  else store_chunk_any<DT, true>(o, s, stage, row0, col0, 16, 64, amax);
}

// At the end of the kernel, by whole warps.
DEVICE void record_out_amax(const GemmOut &o, u32 amax) {
  if (o.amax) {
    amax = warp_max(amax);
    if ((threadIdx.x & 31) == 0) record_amax(o.amax, amax);
  }
}

// Tiles in the order that keeps what runs at the same time within few rows and columns: groups of `group` tile rows, column by column.
DEVICE void tile_at(u32 t, u32 tiles_m, u32 tiles_n, u32 group, u32 &tm, u32 &tn) {
  u32 per = group * tiles_n, g = t / per, in = t - g * per, first = g * group;
  u32 height = tiles_m - first < group ? tiles_m - first : group;
  tn = in / height;
  tm = first + (in - tn * height);
}
