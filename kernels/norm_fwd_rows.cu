// LayerNorm (RMS = 0) and RMSNorm (RMS = 1) forward of rows of whole warps' vectors, where x and the parameters are of one 16-bit type X, all of them
// there, and y is FP8 (FP8 = 1) or of X. Tensors and statistics: common/norm_fwd.cuh.
//
// A block has ROWS rows, mostly four, and a thread VECTORS vectors of each, in the same columns: it asks for their parameters with x, and unpacks
// them once. Sums: common/norm_sums.cuh. One vector stays in registers as f32 (HELD; of
// RMSNorm: norm_fwd_sets.cu). More wait in shared memory, where only the thread that asked for them looks, and are unpacked for each pass: what is
// under way takes no registers.
//
// LayerNorm -> FP8 takes 18 (one vector) or 19 instructions an element so, where norm_fwd_row.cu takes 23.
//
// Bytes moved per element: sizeof(X) + sizeof(y).
#include "common/norm_sums.cuh"

#define HELD (VECTORS == 1)
// With their parameters more vectors take more registers.
#define ROWS_THREADS (VECTORS > 2 ? 256 : 512)

// Of each row the sum over the block, in the lanes of that row; `part` is not read or written by anyone before.
DEVICE float sum_block(float (&s)[ROWS], float (*part)[16], u32 warps) {
  const u32 lane = threadIdx.x & 31, row = lane / LANES;
  const float sum = sum_rows(s);
  if (lane % LANES == 0) part[row][threadIdx.x >> 5] = sum;
  __syncthreads();
  return sum_parts(part[row], warps);
}

// Asks L2 for the rows of one of the first blocks, each thread for what it will read: no other addresses. Where a thread has the most vectors, the
// kernel is slower by it.
DEVICE void ask_for_rows(const Args &a) {
#if VECTORS <= 4 && __CUDA_ARCH__ == 900
  if (blockIdx.x >= a.early) return;
  const TX *x = a.x + (i64)(blockIdx.x * ROWS) * a.ldx + ((threadIdx.x >> 5) * (32 * VECTORS) + (threadIdx.x & 31)) * N;
#pragma unroll
  for (int r = 0; r < ROWS; ++r, x += a.ldx)
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) ask_for_line(x + i * 32 * N);
#endif
}

// hidden is 256 * VECTORS * warps, of at most 16 warps (VECTORS > 2: 8), which are the block's; rows: 1 to 2^31 - 1. Dynamic shared memory where
// x is not held: 16 bytes for each of the block's vectors.
extern "C" __global__ void __launch_bounds__(ROWS_THREADS, 2) norm_fwd_rows(const __grid_constant__ Args a) {
  ask_for_rows(a);
  after_previous();
  alignas(128) __shared__ float parts[RMS ? 1 : 2][ROWS][16];
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = a.warps;
  const u32 row0 = blockIdx.x * ROWS, last = (u32)a.rows - 1, column = (warp * (32 * VECTORS) + lane) * N;
  // Rows that are not there are the last one, once more.
#if HELD
  Vec16 raw[ROWS];
#else
  extern __shared__ __align__(128) Vec16 kept[];
  const u32 place = shared_address(kept) + warp * (ROWS * VECTORS * 512) + lane * 16;
#endif
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const u32 row = row0 + r < last ? row0 + r : last;
    const TX *x = a.x + (i64)row * a.ldx + column;
#if HELD
    raw[r] = ld16_stream(x);
#else
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) copy16(place + (r * VECTORS + i) * 512, x + i * 32 * N);
#endif
  }
#if !HELD
  commit();
#endif
  Vec16 gamma[VECTORS], beta[VECTORS];
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    gamma[i] = ld16((const TX *)a.gamma + column + i * 32 * N);
    if (!RMS) beta[i] = ld16((const TX *)a.beta + column + i * 32 * N);
  }
  const float scale = FP8 && a.scale ? *a.scale : 1.0f;
  const u32 recorded = read_amax(a);
  put_scale_inv(a, scale);
  // Parts of warps that are not there; the first barrier stands between this and whoever reads them.
  for (u32 i = threadIdx.x; i < 16 * ROWS; i += blockDim.x)
    if ((i & 15) >= warps) {
#pragma unroll
      for (int k = 0; k < (RMS ? 1 : 2); ++k) parts[k][i >> 4][i & 15] = 0.0f;
    }
#if !HELD
  wait(1);
#endif

  // -0: what is added to it first stays what it is, and costs nothing.
  const float none = -0.0f;
  float v[HELD ? ROWS : 1][N], s[ROWS];
  const auto open = [&](int r, int i) {
#if HELD
    unpack<X>(raw[r], v[r]);
#else
    unpack<X>(read16(place + (r * VECTORS + i) * 512), v[0]);
#endif
  };
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    float sum[2] = {none, none}, (&w)[N] = v[HELD ? r : 0];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      open(r, i);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (RMS) sum[k & 1] += w[k] * w[k];
        else sum[k & 1] += w[k];
      }
    }
    s[r] = sum[0] + sum[1];
  }
  const float all = sum_block(s, parts[0], warps);
  Stats mine;
  if (RMS) {
    mine = finish(0.0f, 0.0f, all, a.inv_n, a.eps);
  } else {
    const float centre = centre_of(all, a.inv_n);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const float c = of_row(centre, r);
      float sum[2] = {none, none}, (&w)[N] = v[HELD ? r : 0];
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) {
        if (!HELD) open(r, i);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          w[k] -= c;
          sum[k & 1] += w[k] * w[k];
        }
      }
      s[r] = sum[0] + sum[1];
    }
    mine = finish_16_bit(centre, all, sum_block(s, parts[RMS ? 0 : 1], warps), a);
  }
  if (warp == 0 && lane % LANES == 0 && row0 + lane / LANES <= last) put_stats(a, row0 + lane / LANES, mine);

  float g[VECTORS][N], b[VECTORS][N];
  const float one = a.zero_centered ? 1.0f : 0.0f;
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    unpack<X>(gamma[i], g[i]);
    if (!RMS) unpack<X>(beta[i], b[i]);
#pragma unroll
    for (int k = 0; k < N; ++k) g[i][k] += one;
  }
  const float my_shift = RMS ? 0.0f : -mine.rest * mine.rsigma;
  const u64 policy = store_policy(FP8 && !a.again && beyond_cache(a.rows, a.hidden, 1));
  float amax = 0.0f;
  const auto rows = [&](auto type) {
    constexpr int DT = decltype(type)::value;
    const u32 size = FP8 ? 1 : sizeof(TX);
    u8 *y = a.y + ((i64)row0 * a.ldy + column) * size;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const float rsigma = of_row(mine.rsigma, r), shift = RMS ? 0.0f : of_row(my_shift, r), c = RMS || HELD ? 0.0f : of_row(mine.centre, r);
      float (&w)[N] = v[HELD ? r : 0];
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) {
        if (!HELD) open(r, i);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          if (!HELD && !RMS) w[k] -= c;
          w[k] = RMS ? w[k] * rsigma * g[i][k] : (w[k] * rsigma + shift) * g[i][k] + b[i][k];
          if (FP8) amax = max_nan(amax, w[k]);
        }
        if constexpr (FP8 && (VECTORS == 1 || VECTORS == 4)) {
          // Made before it is asked whether the row is there: no branches around them. (With two vectors that is slower, with six some
          // devices would spill.)
          Vec8 codes;
#pragma unroll
          for (int j = 0; j < 2; ++j)
            codes.w[j] = f32x4_to_fp8x4<DT>(w[4 * j] * scale, w[4 * j + 1] * scale, w[4 * j + 2] * scale, w[4 * j + 3] * scale);
          if (row0 + r <= last) st8(y + i * 32 * N, codes, policy);
        } else if (row0 + r <= last) {
          store_vector<DT>(y, i * 32 * N, w, scale, policy);
        }
      }
      y += a.ldy * size;
    }
  };
  if constexpr (FP8) with_output(a.y_dt, rows);
  else rows(Type<X>());
  put_warp_amax(a, amax, recorded);
}
