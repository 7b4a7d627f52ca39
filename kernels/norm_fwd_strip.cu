// LayerNorm (RMS = 0) and RMSNorm (RMS = 1) forward to FP8 in both layouts, or the transposed one alone, where everything is aligned for
// vectors and a row fits registers: formulas and tensors as in norm_fwd_row.cu, each read once and written once.
//
// Blocks stay and walk over strips of 16 or 32 rows. A block's groups of `warps` warps, each with a barrier of its own, have a row at a
// time; its codes go to y and to shared memory. Once a strip is complete, all threads turn it: a thread takes the words of four columns
// from 16 rows, and writes 16 bytes of each column. The next strip's first rows are on their way by then.
// Two lanes that stand next to each other write 32 bytes of a column where a strip has 32 rows; where it has 16, the other half of the
// sector comes from the next strip, which another block turns at about the same time: they meet in L2.
//
// Dynamic shared memory: `strip` rows of hidden bytes, rounded up to 16. Bytes moved per element: sizeof(X) + 2; 2 sizeof(X) more with a residual.
#define FP8 1
#define OCTETS 4
#include "common/norm_row.cuh"
#include "common/tile.cuh"

#define PARTS 64
// As many threads as leave each the registers it needs, 96, 80 or 72; for sm_100 and its like the compiler needs more.
#if __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
#define STRIP_THREADS ((RESIDUAL ? (RMS ? 768 : 640) : RMS ? 896 : 768) - 128)
#else
#define STRIP_THREADS (RESIDUAL ? (RMS ? 768 : 640) : RMS ? 896 : 768)
#endif
// Vectors of the residual under way at a time.
#define FEW (RESIDUAL ? (RMS ? 2 : 4) : 0)

// Writes rows [row0, row0 + a.strip) of the transposed layout from their codes, `pitch` bytes a row.
DEVICE void turn_strip(const Args &a, const u8 *strip, u32 pitch, i64 row0) {
  const u32 split = a.strip >> 5;  // a word's rows are 16 for one thread, or 32 for two
  const u32 units = ((u32)a.hidden >> 2) << split;
#pragma unroll 1
  for (u32 u = threadIdx.x; u < units; u += blockDim.x) {
    const u32 word = u >> split, r = (u & split) * 16;
    const i64 row = row0 + r;
    if (row >= a.rows) continue;
    const u8 *from = strip + r * pitch + word * 4;
    u32 c[16];
#pragma unroll
    for (u32 k = 0; k < 16; ++k) c[k] = *(const u32 *)(from + k * pitch);
#pragma unroll
    for (u32 q = 0; q < 16; q += 4) transpose4(c[q], c[q + 1], c[q + 2], c[q + 3]);
    u8 *to = a.yt + (i64)word * 4 * a.ldyt + row;
    const u32 n = a.rows - row < 16 ? (u32)(a.rows - row) : 16;
#pragma unroll
    for (u32 j = 0; j < 4; ++j, to += a.ldyt) {
      if (n == 16) {
        Vec16 v = {{c[j], c[4 + j], c[8 + j], c[12 + j]}};
        st16(to, v);
      } else {
#pragma unroll
        for (u32 k = 0; k < 16; ++k)
          if (k < n) to[k] = (u8)(c[(k >> 2) * 4 + j] >> (8 * (k & 3)));
      }
    }
  }
}

// hidden is a multiple of N, at most SLOTS * N * 32 * warps; everything is aligned for vectors, yt and its stride to 16 bytes. `strip` is
// 16 or 32; at most PARTS warps and their padding to multiples of four in all groups.
extern "C" __global__ void __launch_bounds__(STRIP_THREADS, 1) norm_fwd_strip(const Args a) {
  extern __shared__ Vec16 strip16[];
  alignas(16) __shared__ float parts[3][PARTS];
  u8 *const strip = (u8 *)strip16;
  const u32 T = a.warps * 32, group = threadIdx.x / T, lane = threadIdx.x & 31;
  const u32 pitch = ((u32)a.hidden + 15) & ~15u;
  put_scale_inv(a);
  for (u32 i = threadIdx.x; i < 3 * PARTS; i += blockDim.x) parts[0][i] = 0.0f;
  __syncthreads();
  float amax = 0.0f;
  Vec16 raw[SLOTS];
  // What derives from the group's number is formed anew for each row: kept, it would take more registers than there are.
  const auto own = [&](u32 group) { return share_of(a, (threadIdx.x - group * T) >> 5); };
  const auto fetch = [&](u32 number, u32 r) {
    const u32 g = anew(group);
    const i64 row = (i64)number * a.strip + r;
    Share mine = own(g);
    if (row >= a.rows) mine.end = 0;
    load_row<FEW>(a, row, mine, raw);
  };
  u32 number = blockIdx.x, r = group, turn = 0;
  fetch(number, r);
#pragma unroll 1
  while ((i64)number * a.strip < a.rows) {
    const i64 row = (i64)number * a.strip + r;
    if (row < a.rows) {
      const u32 g = anew(group), warp = (threadIdx.x - g * T) >> 5;
      const Share mine = own(g);
      // The group's parts, padded with zeros to a multiple of four.
      float *const part = parts[0] + (a.warps == 1 ? 0 : g * ((a.warps + 3) & ~3));
      float v[SLOTS][N];
      // RMSNorm meets one barrier a row: two buffers take turns.
      float *const first = RMS ? part + turn : part;
      const Stats s = row_stats(a, mine, raw, v, first + warp, part + PARTS * (1 + ((lane & 16) >> 4)) + warp, first, part + PARTS,
                                part + 2 * PARTS, [&] { sync_some(g + 1, T); });
      if (lane == 0 && warp == 0) put_stats(a, row, s);
      const float scale = a.scale ? *a.scale : 1.0f;
      u8 *y = a.y + row * a.ldy + mine.at * N, *codes = strip + r * pitch + mine.at * N;
      finish_row(a, mine, s, v, [&](int i) {
        u32 w[N / 4];
#pragma unroll
        for (int k = 0; k < N; ++k) amax = max_nan(amax, v[i][k]);
#pragma unroll
        for (int j = 0; j < N / 4; ++j) {
          const float p = v[i][4 * j] * scale, q = v[i][4 * j + 1] * scale, r = v[i][4 * j + 2] * scale, s = v[i][4 * j + 3] * scale;
          w[j] = a.y_dt == DT_E4M3 ? f32x4_to_fp8x4<DT_E4M3>(p, q, r, s) : f32x4_to_fp8x4<DT_E5M2>(p, q, r, s);
          *(u32 *)(codes + i * 32 * N + 4 * j) = w[j];
        }
        if (a.y) store_words(y + i * 32 * N, w);
      });
      if (RMS) turn ^= PARTS;
    }
    const u32 done = number;
    r += blockDim.x / T;
    if (r >= a.strip) {
      r = group;
      number += gridDim.x;
    }
    fetch(number, r);
    if (number != done) {
      __syncthreads();
      turn_strip(a, strip, pitch, (i64)done * a.strip);
      __syncthreads();
    }
  }
  put_warp_amax(a, amax, read_amax(a));
}
