// What the forward kernels of the norms share. RMS is 1 for RMSNorm, 0 for LayerNorm; X is the type of x.
//
// x: [rows, hidden] of X with row stride ldx; gamma, beta: [hidden] of f32, f16 or bf16, or null; y: [rows, hidden] of any type; yt:
// [hidden, rows] of FP8; mu, rsigma: [rows] f32 or null; residual, sum: [rows, hidden] of X or null.
// Statistics: a first mean is rounded to f32 (`centre`), and the pass over x - centre sums both the squares and what the first mean lacks
// (`rest`), so neither the variance nor x - mean suffers where the mean is large beside the deviations.
#pragma once
#include "common/norm.cuh"

typedef Elem<X>::T TX;
#define N (Vector<X>::N)

// warps: of a row; slots: of a thread in it; kept: of those, in shared memory; again: y is read again at once, and so left in the cache;
// early: blocks that ask L2 for x ahead of their wait for the kernel before. Of those of norm_fwd_row, norm_fwd_rows and norm_fwd_sets every row is there.
struct Args {
  const TX *x;
  i64 ldx;
  const TX *residual;
  i64 ld_residual;
  TX *sum;
  i64 ld_sum;
  const void *gamma, *beta;
  u8 *y;
  i64 ldy;
  u8 *yt;
  i64 ldyt;
  float *mu, *rsigma;
  const float *scale;
  float *scale_inv, *amax;
  i64 rows, hidden;
  float eps, inv_n;
  int gamma_dt, beta_dt, y_dt, zero_centered, warps, slots, kept, again;
  u32 early;
};

DEVICE u32 element_size(int dt) { return dt == DT_F32 ? 4 : is_fp8(dt) ? 1 : 2; }

// The point on which LayerNorm centres a row: its mean, to 12 bits where x has 16. Then x - centre is exact (for x within 2^12 of it):
// its rounding errors, which values of one binade share, would add up in the rest of the mean. NaN stays NaN.
DEVICE float centre_of(float sum, float inv_n) {
  float c = sum * inv_n;
  return X == DT_F32 || c != c ? c : float_of((bits_of(c) + 0x800u) & 0xFFFFF000u);
}

// Sums, rounded to the type.
template <int DT> DEVICE Vec16 add(Vec16 a, const Vec16 &b) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (DT == DT_F32) {
      a.w[i] = bits_of(float_of(a.w[i]) + float_of(b.w[i]));
    } else {
      float lo, hi, more_lo, more_hi;
      unpack2<DT>(a.w[i], lo, hi);
      unpack2<DT>(b.w[i], more_lo, more_hi);
      a.w[i] = pack2<DT>(lo + more_lo, hi + more_hi);
    }
  }
  return a;
}

struct Stats { float centre, rest, rsigma; };

// From the sum of squares (RMS), or of x - centre and its square.
DEVICE Stats finish(float centre, float sum, float squares, float inv_n, float eps) {
  if (RMS) return {0.0f, 0.0f, __frsqrt_rn(squares * inv_n + eps)};
  float rest = sum * inv_n, variance = (squares - sum * rest) * inv_n;
  // A NaN passes on.
  if (variance < 0.0f) variance = 0.0f;
  return {centre, rest, __frsqrt_rn(variance + eps)};
}

// LayerNorm's where x has 16 bits, from the sum of the row and that of squares of x - centre. f32 has bits to spare for such a sum (that
// of 2^12 values of one binade is exact), so what `centre` lacks follows from it, and nobody has to sum it up. It is 0 where all values are
// equal and their sum is exact, as it would not be by sum * inv_n - centre: inv_n is rounded.
DEVICE Stats finish_16_bit(float centre, float sum, float squares, const Args &a) {
  const float rest = __fmaf_rn(-(float)(u32)a.hidden, centre, sum) * a.inv_n;
  float variance = __fmaf_rn(-rest, rest, squares * a.inv_n);
  // A NaN passes on.
  if (variance < 0.0f) variance = 0.0f;
  return {centre, rest, __frsqrt_rn(variance + a.eps)};
}

DEVICE void put_stats(const Args &a, i64 row, const Stats &s) {
  // An infinite mean is one, although nothing can be centred on it.
  if (!RMS && a.mu) a.mu[row] = abs_bits(s.centre) == 0x7F800000u ? s.centre : s.centre + s.rest;
  if (a.rsigma) a.rsigma[row] = s.rsigma;
}
DEVICE float read_scale(const Args &a) {
  float scale = a.scale ? *a.scale : 1.0f;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0 && a.scale_inv) *a.scale_inv = reciprocal(scale);
  return scale;
}
// All threads of the block call it; `part` holds 32 words that nobody uses any more.
DEVICE void put_amax(const Args &a, u32 amax, u32 *part) {
  if (!a.amax) return;
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  amax = warp_max(amax);
  __syncthreads();
  if (lane == 0) part[warp] = amax;
  __syncthreads();
  if (warp == 0) {
    amax = warp_max(lane < blockDim.x >> 5 ? part[lane] : 0u);
    if (lane == 0 && amax) record_amax(a.amax, amax);
  }
}
