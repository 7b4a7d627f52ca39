// LayerNorm (RMS = 0) and RMSNorm (RMS = 1) forward of rows of whole warps' vectors, where x and the parameters are of one 16-bit type X, all of them
// there, and y is FP8 (FP8 = 1) or of X. Tensors and statistics: common/norm_fwd.cuh.
//
// A block has ROWS rows, mostly four, and a thread VECTORS vectors of each, in the same columns: it asks for their parameters with x, and unpacks
// them once. What is summed over a warp is summed for four rows at once: each exchange halves the rows of a lane, so that four sums take 6 exchanges and not 20,
// and what follows from a sum is worked out for all rows at a time. One vector stays in registers as f32 (HELD). More wait in shared memory, where only
// the thread that asked for them looks, and are unpacked for each pass: what is under way takes no registers.
//
// LayerNorm -> FP8 takes 18 (one vector) or 19 instructions an element so, where norm_fwd_row.cu takes 23.
//
// Bytes moved per element: sizeof(X) + sizeof(y).
#include "common/norm_output.cuh"

// RMSNorm of X to X is bound by what is under way alone.
#define HELD (VECTORS == 1 && (FP8 || !RMS))
// With their parameters more vectors take more registers.
#define ROWS_THREADS (VECTORS > 2 ? 256 : 512)
// Lanes that have the sums of a row.
#define LANES (32 / ROWS)

// Of each row the sum over the warp, in the lanes of that row.
DEVICE float sum_rows(float (&s)[ROWS]) {
  const u32 lane = threadIdx.x & 31;
#pragma unroll
  for (int n = ROWS / 2, o = 16; n; n /= 2, o /= 2) {
    const bool upper = lane & o;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float mine = upper ? s[j + n] : s[j], other = upper ? s[j] : s[j + n];
      s[j] = mine + __shfl_xor_sync(0xFFFFFFFFu, other, o);
    }
  }
#pragma unroll
  for (int o = LANES / 2; o; o /= 2) s[0] += __shfl_xor_sync(0xFFFFFFFFu, s[0], o);
  return s[0];
}
// The same over the block; `part` is not read or written by anyone before.
DEVICE float sum_block(float (&s)[ROWS], float (*part)[16], u32 warps) {
  const u32 lane = threadIdx.x & 31, row = lane / LANES;
  const float sum = sum_rows(s);
  if (lane % LANES == 0) part[row][threadIdx.x >> 5] = sum;
  __syncthreads();
  return sum_parts(part[row], warps);
}
// What the lanes of row r hold.
DEVICE float of_row(float v, int r) { return __shfl_sync(0xFFFFFFFFu, v, r * LANES); }

// hidden is 256 * VECTORS * warps, of at most 16 warps (VECTORS > 2: 8), which are the block's; rows: 1 to 2^31 - 1. Dynamic shared memory where
// x is not held: 16 bytes for each of the block's vectors.
extern "C" __global__ void __launch_bounds__(ROWS_THREADS, 2) norm_fwd_rows(const __grid_constant__ Args a) {
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
        if (row0 + r <= last) store_vector<DT>(y, i * 32 * N, w, scale, policy);
      }
      y += a.ldy * size;
    }
  };
  if constexpr (FP8) with_output(a.y_dt, rows);
  else rows(Type<X>());
  put_warp_amax(a, amax, recorded);
}
