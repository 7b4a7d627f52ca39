// Repacks one GEMM operand into workspace so that the tensor-core kernels can read it: K-major rows whose pitch is a multiple of 16 bytes.
//
//   out[r, j] = in[r, j] for j < k, 0 from there to the end of the pitch
//
// Input: [rows, k], element (r, j) at r * ld + j (TRANS 0) or at j * ld + r (TRANS 1), ld in elements, element alignment only.
// Output: rows of `pitch` bytes, base and pitch multiples of 16. DECODE 0 copies elements of ES bytes; DECODE DT_E4M3 or DT_E5M2 turns FP8
// codes (ES 1) into OUT_DT (f16 or bf16): both hold every FP8 value exactly, subnormals and NaN included.
//
// No byte outside [row start, row end) (TRANS 1: outside the elements of a line of r) is read: whole vectors where they are aligned, else
// aligned 32-bit words put together by funnel shifts; words that stick out are read by their valid elements.
//
// Launch: 256 threads. TRANS 0: block b takes (4 * 256 >> tx_log) rows x (1 << tx_log) output vectors of 16 bytes; blocks along k first.
// TRANS 1: block b takes a tile of (128 / ES) rows x (128 / ES) of k through shared memory; blocks along k first.
// Bytes moved: rows * k * ES read, rows * pitch written.
//
// Defines: ES (1, 2), TRANS (0, 1), DECODE (0, DT_E4M3, DT_E5M2), OUT_DT (with DECODE).
#include "common/smem.cuh"

// The word at `a` (a multiple of 4), zeros for its bytes outside [lo, hi).
DEVICE u32 word_within(const u8 *a, const u8 *lo, const u8 *hi) {
  if (a >= lo && a + 4 <= hi) return __ldg((const u32 *)a);
  u32 w = 0;
#if ES == 1
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (a + i >= lo && a + i < hi) w |= (u32)a[i] << (8 * i);
#else
#pragma unroll
  for (int i = 0; i < 2; i++)
    if (a + 2 * i >= lo && a + 2 * i < hi) w |= (u32) * (const u16 *)(a + 2 * i) << (16 * i);
#endif
  return w;
}

// N words from any address, zeros outside [lo, hi).
template <int N> DEVICE void words_within(u32 (&w)[N], const u8 *p, const u8 *lo, const u8 *hi) {
  const u32 shift = (u32)(u64)p & 3u;
  const u8 *a = p - shift;
  u32 x[N + 1];
  x[N] = 0;
  if (a >= lo && a + 4 * N + (shift ? 4 : 0) <= hi) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = __ldg((const u32 *)a + i);
    if (shift) x[N] = __ldg((const u32 *)a + N);
  } else {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = word_within(a + 4 * i, lo, hi);
    if (shift) x[N] = word_within(a + 4 * N, lo, hi);
  }
#pragma unroll
  for (int i = 0; i < N; i++) w[i] = __funnelshift_r(x[i], x[i + 1], 8 * shift);
}

#if DECODE
// Two codes (low 16 bits) to two 16-bit floats.
DEVICE u32 decode2(u32 q) {
  u32 h;
#if DECODE == DT_E5M2
  h = __byte_perm(q, 0u, 0x1404);  // E5M2 is the upper half of an f16
#elif __CUDA_ARCH__ >= 890
  h = fp8x2_to_f16x2<DT_E4M3>(q);
#else
  // Exponent and mantissa in their f16 places read as 2^-8 of the value; the product is exact, also for subnormals. NaN needs a hand.
  u32 x = __byte_perm(q, 0u, 0x4140), mag = (x & 0x007F007Fu) << 7;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(h) : "r"(mag), "r"(0x5C005C00u));
  if ((mag & 0xFFFFu) == 0x3F80u) h |= 0x00007FFFu;
  if (mag >> 16 == 0x3F80u) h |= 0x7FFF0000u;
  h |= (x & 0x00800080u) << 8;
#endif
#if OUT_DT == DT_BF16
  float lo, hi;
  unpack2<DT_F16>(h, lo, hi);
  h = f32x2_to_bf16x2(lo, hi);
#endif
  return h;
}
DEVICE Vec16 decode8(u32 q0, u32 q1) { return {{decode2(q0), decode2(q0 >> 16), decode2(q1), decode2(q1 >> 16)}}; }
#endif

// Left to itself, ptxas (13.2) stops at 40 registers on sm_120, where six blocks fit, and spills; four blocks let it take 64.
#if __CUDA_ARCH__ >= 1200
#define BOUNDS __launch_bounds__(256, 4)
#else
#define BOUNDS __launch_bounds__(256)
#endif

#if !TRANS

#if DECODE
#define IN_VEC 8  // input bytes per output vector
#else
#define IN_VEC 16
#endif

extern "C" __global__ void BOUNDS
gemm_pack(const u8 *in, u8 *out, const i64 rows, const i64 k, const i64 ld, const i64 pitch, const u32 tx_log, const u32 blocks_k) {
  after_previous();
  const u32 bk = blockIdx.x % blocks_k, br = blockIdx.x / blocks_k;
  const i64 v = ((i64)bk << tx_log) + (threadIdx.x & ((1u << tx_log) - 1u));
  const u32 ty = 256u >> tx_log;
  if (v * 16 >= pitch) return;
  i64 r = (i64)br * (4 * ty) + (threadIdx.x >> tx_log);
  Vec16 got[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const i64 ri = r + (i64)i * ty;
    if (ri < rows) {
      const u8 *lo = in + ri * ld * ES, *hi = lo + k * ES, *p = lo + v * IN_VEC;
#if DECODE
      u32 w[2];
      if (((u64)p & 7) == 0 && p + 8 <= hi) {
        Vec8 x = *(const Vec8 *)p;
        w[0] = x.w[0], w[1] = x.w[1];
      } else {
        words_within(w, p, lo, hi);
      }
      got[i] = decode8(w[0], w[1]);
#else
      if (((u64)p & 15) == 0 && p + 16 <= hi) got[i] = ld16_stream(p);
      else words_within(got[i].w, p, lo, hi);
#endif
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const i64 ri = r + (i64)i * ty;
    if (ri < rows) st16(out + ri * pitch + v * 16, got[i]);
  }
}

#else  // TRANS

#define E (4 / ES)        // elements per 32-bit word
#define SIDE (32 * E)     // tile: SIDE rows x SIDE of k, 128 bytes each way
#define LANES_R (32 / E)  // lanes of a warp along the rows (the contiguous direction of the input); E along k

extern "C" __global__ void BOUNDS
gemm_pack(const u8 *in, u8 *out, const i64 rows, const i64 k, const i64 ld, const i64 pitch, const u32 tx_log, const u32 blocks_k) {
  after_previous();
  (void)tx_log;
  // Word (row, 32-bit word of k). A pitch of 33 words: writes go to E*lane_r + lane_k, reads to row + 4*vector, all 32 banks both times.
  __shared__ u32 tile[SIDE * 33];
  const i64 k0 = (i64)(blockIdx.x % blocks_k) * SIDE, r0 = (i64)(blockIdx.x / blocks_k) * SIDE;
  const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    const u32 g = warp * 4 + i;
    const u32 rw = g % E * LANES_R + lane % LANES_R, kw = g / E * E + lane / LANES_R;
    u32 w[E];
#pragma unroll
    for (u32 e = 0; e < E; e++) {
      const i64 kk = k0 + kw * E + e;
      w[e] = 0;
      if (kk < k) {
        const u8 *lo = in + kk * ld * ES;
        u32 x[1];
        words_within(x, lo + (r0 + rw * E) * ES, lo, lo + rows * ES);
        w[e] = x[0];
      }
    }
    u32 *to = tile + rw * E * 33 + kw;
#if ES == 1
    // 4 x 4 bytes transposed: pairs of k for rows 0-1 and 2-3, then all four k for each row.
    u32 a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
    u32 c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
    to[0] = __byte_perm(a, b, 0x5410);
    to[33] = __byte_perm(a, b, 0x7632);
    to[66] = __byte_perm(c, d, 0x5410);
    to[99] = __byte_perm(c, d, 0x7632);
#else
    to[0] = __byte_perm(w[0], w[1], 0x5410);
    to[33] = __byte_perm(w[0], w[1], 0x7632);
#endif
  }
  __syncthreads();
#if DECODE
#pragma unroll
  for (u32 i = 0; i < SIDE * 16 / 256; i++) {
    const u32 at = i * 256 + threadIdx.x, row = at >> 4, v = at & 15;
    const i64 r = r0 + row, byte = (k0 + 8 * v) * 2;
    if (r < rows && byte < pitch) st16(out + r * pitch + byte, decode8(tile[row * 33 + 2 * v], tile[row * 33 + 2 * v + 1]));
  }
#else
#pragma unroll
  for (u32 i = 0; i < SIDE * 8 / 256; i++) {
    const u32 at = i * 256 + threadIdx.x, row = at >> 3, v = at & 7;
    const i64 r = r0 + row, byte = k0 * ES + 16 * v;
    const u32 *w = tile + row * 33 + 4 * v;
    if (r < rows && byte < pitch) st16(out + r * pitch + byte, {{w[0], w[1], w[2], w[3]}});
  }
#endif
}
#endif
