// Rows of any alignment as 16-byte vectors, for the kernels of softmax.
//
// A row is cut at the 16-byte boundaries of memory, not at its own start: vector i holds the elements from i * N - lead on, where `lead` is
// how many elements the row starts behind a boundary. So every vector but the first and the last is one access whatever the stride of
// rows is (a vocabulary of 30522 starts each row at another offset), and no access leaves the row: the ends go element by element.
#pragma once
#include "common/norm.cuh"
#include "common/quads.cuh"

typedef Elem<X>::T TX;
#define N (Vector<X>::N)

// -infinity in every place of a word.
#define WORD_NEG_INF (X == DT_F32 ? 0xFF800000u : X == DT_F16 ? 0xFC00FC00u : 0xFF80FF80u)
#define NEG_INF __uint_as_float(0xFF800000u)
#define LOG2E 1.44269504f
#define LN2 0.69314718f

DEVICE u32 lead_of(const TX *row) { return (u32)((u64)row & 15) / (u32)sizeof(TX); }

// Elements [first, first + N) of a row of n, of which those that are not there read as the halves of `absent`. `whole`: such a
// vector lies on 16 bytes.
template <class I> DEVICE Vec16 load_row(const TX *row, I first, I n, u32 absent, bool whole = true) {
  if (whole && first >= 0 && first + N <= n) return ld16_once(row + first);
  Vec16 v = {{absent, absent, absent, absent}};
#pragma unroll
  for (int k = 0; k < N; k++) {
    const bool there = first + k >= 0 && first + k < n;
    if constexpr (X == DT_F32) {
      if (there) v.w[k] = bits_of(row[first + k]);
    } else {
      if (there) v.w[k / 2] = k & 1 ? (v.w[k / 2] & 0xFFFFu) | (u32)row[first + k] << 16 : (v.w[k / 2] & 0xFFFF0000u) | row[first + k];
    }
  }
  return v;
}

// The same for writing; elements that are not there are left alone.
template <class I> DEVICE void store_row(TX *row, I first, I n, const float (&f)[N], bool whole) {
  if (whole && first >= 0 && first + N <= n) return st16(row + first, pack<X>(f));
#pragma unroll
  for (int k = 0; k < N; k++)
    if (first + k >= 0 && first + k < n) row[first + k] = Elem<X>::store(f[k]);
}

// A thread's S vectors of a row, `step` elements apart from `start` on. What the ends of the row cut (at most two vectors of it) is read
// and written by one stretch of code that few threads enter, element by element.
// True: some of this thread's are cut.
template <int S> DEVICE bool load_slots(const TX *row, i32 start, i32 step, i32 n, u32 absent, Vec16 (&v)[S]) {
  bool cut = false;
#pragma unroll
  for (int i = 0; i < S; i++) {
    const i32 first = start + i * step;
    if (first >= 0 && first + N <= n) v[i] = ld16_once(row + first);
    else cut |= first < n;
  }
  if (!cut) return false;
#pragma unroll 1
  for (int j = 0; j < S; j++) {
    const i32 first = start + j * step;
    if (first >= n || (first >= 0 && first + N <= n)) continue;
    const Vec16 w = load_row(row, first, n, absent, false);
#pragma unroll
    for (int i = 0; i < S; i++)
      if (i == j) v[i] = w;
  }
  return true;
}
// The same where vectors, which are cut at the boundaries of another row, begin anywhere in this one: each is shifted into place from the two
// that hold it.
template <int S> DEVICE void load_shifted(const TX *row, i32 start, i32 step, i32 n, u32 absent, Vec16 (&v)[S]) {
  const u32 bytes = (u32)(u64)(row + start) & 15;
  const i32 before = (i32)(bytes / sizeof(TX));
  bool cut = false;
#pragma unroll
  for (int i = 0; i < S; i++) {
    const i32 first = start + i * step - before;
    Vec16 above;  // if neither is loaded, what they make is replaced below, or lies behind the row
    if (first >= 0 && first + 2 * N <= n) {
      v[i] = ld16(row + first);
      above = ld16(row + first + N);
    } else {
      cut |= first + before < n;
    }
    u32 w[8] = {v[i].w[0], v[i].w[1], v[i].w[2], v[i].w[3], above.w[0], above.w[1], above.w[2], above.w[3]};
    shift_down<4>(w, bytes);
#pragma unroll
    for (int j = 0; j < 4; j++) v[i].w[j] = w[j];
  }
  if (!cut) return;
#pragma unroll 1
  for (int j = 0; j < S; j++) {
    const i32 first = start + j * step;
    if (first >= n || (first >= before && first - before + 2 * N <= n)) continue;
    const Vec16 w = load_row(row, first, n, absent, false);
#pragma unroll
    for (int i = 0; i < S; i++)
      if (i == j) v[i] = w;
  }
}
// Writes slot i where it is not cut.
DEVICE void store_slot(TX *row, i32 first, i32 n, const Vec16 &v, bool whole) {
  if (whole && first >= 0 && first + N <= n) st16(row + first, v);
}
// Writes what store_slot left out; called where vectors are cut, or `whole` is not given.
template <int S> DEVICE void store_cuts(TX *row, i32 start, i32 step, i32 n, const Vec16 (&v)[S], bool whole) {
#pragma unroll 1
  for (int j = 0; j < S; j++) {
    const i32 first = start + j * step;
    if (first >= n) return;
    if (whole && first >= 0 && first + N <= n) continue;
    Vec16 w = v[0];
#pragma unroll
    for (int i = 1; i < S; i++)
      if (i == j) w = v[i];
#pragma unroll
    for (int k = 0; k < N; k++) {
      if (first + k < 0 || first + k >= n) continue;
      if constexpr (X == DT_F32) row[first + k] = float_of(w.w[k]);
      else row[first + k] = (u16)(k & 1 ? w.w[k / 2] >> 16 : w.w[k / 2]);
    }
  }
}

// 2^t for t <= 0 within 2^-22; what it flushes is below anything added to 1. NaN passes.
DEVICE float exp2_fast(float t) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(t)); return r; }

// What exponents are counted from: the maximum, unless there is nothing above -infinity.
DEVICE float base_of(float m) { return m == NEG_INF ? 0.0f : m; }

// ---------------------------------------------------------------- reductions over the threads of a row
// The largest of a warp: floats order like integers once the negative ones are turned over. NaN must not come here (fmaxf drops it).
DEVICE float warp_max_float(float v) {
  i32 b = (i32)bits_of(v);
  b = __reduce_max_sync(0xFFFFFFFFu, b ^ ((b >> 31) & 0x7FFFFFFF));
  return float_of((u32)(b ^ ((b >> 31) & 0x7FFFFFFF)));
}
// `width` lanes, a power of two, that lie side by side. All lanes of the warp call it.
DEVICE float lanes_max(float v, u32 width) {
  if (width == 32) return warp_max_float(v);
#pragma unroll 1
  for (u32 o = width >> 1; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, o));
  return v;
}
DEVICE float lanes_sum(float v, u32 width) {
  if (width == 32) return warp_sum(v);
#pragma unroll 1
  for (u32 o = width >> 1; o; o >>= 1) v += __shfl_xor_sync(0xFFFFFFFFu, v, o);
  return v;
}
// A row of T threads: lanes of a warp, or the whole block where T > 32. `part` has a place per warp, and is used once between two
// barriers of the block.
DEVICE float row_max(float v, u32 T, float *part) {
  if (T <= 32) return lanes_max(v, T);
  v = warp_max_float(v);
  const u32 lane = threadIdx.x & 31;
  if (lane == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  return warp_max_float(lane < T >> 5 ? part[lane] : NEG_INF);
}
DEVICE float row_total(float v, u32 T, float *part) {
  if (T <= 32) return lanes_sum(v, T);
  v = warp_sum(v);
  const u32 lane = threadIdx.x & 31;
  if (lane == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  return warp_sum(lane < T >> 5 ? part[lane] : 0.0f);
}
