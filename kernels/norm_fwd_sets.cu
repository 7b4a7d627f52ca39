// RMSNorm forward of rows of up to 1536 columns, whole warps' vectors, where x and the weight are of one 16-bit type X and y is FP8 (FP8 = 1) or of X.
// Tensors and statistics: common/norm_fwd.cuh. LayerNorm, which is bound by its instructions, and longer rows: norm_fwd_rows.cu.
//
// A block has four rows at a time, a set, and a thread a vector of each, in the same columns. As many blocks as find places stay for the whole pass:
// STAGES sets to come wait in shared memory, where cp.async brings them and only the thread that asked for them looks. So memory is read while
// a set is worked on, and what a block begins with (the weight, the scale, addresses) is there once and not for every four rows. The first set of
// each block is in L2, or on its way there, when the kernel before ends.
//
// Bytes moved per element: sizeof(X) + sizeof(y).
#define ROWS 4
#include "common/norm_sums.cuh"

#define STAGES 2

// Asks L2 for the first set of a block.
DEVICE void ask_for_rows(const Args &a) {
#if __CUDA_ARCH__ == 900
  if (blockIdx.x >= a.early) return;
  const TX *x = a.x + (i64)(blockIdx.x * ROWS) * a.ldx + threadIdx.x * N;
#pragma unroll
  for (int r = 0; r < ROWS; ++r, x += a.ldx) ask_for_line(x);
#endif
}

// hidden is 256 * warps, of at most 6 warps, which are the block's; rows: 1 to 2^31 - 1. Dynamic shared memory: 16 * STAGES * ROWS bytes a thread.
extern "C" __global__ void __launch_bounds__(512, 2) norm_fwd_sets(const __grid_constant__ Args a) {
  ask_for_rows(a);
  after_previous();
  alignas(128) __shared__ float parts[2][ROWS][16];
  extern __shared__ __align__(128) Vec16 kept[];
  const u32 lane = threadIdx.x & 31, warps = a.warps, last = (u32)a.rows - 1, sets = last / ROWS + 1, column = threadIdx.x * N;
  const u32 place = shared_address(kept) + (threadIdx.x >> 5) * (ROWS * 512) + lane * 16, pitch = blockDim.x * (ROWS * 16);
  const auto fetch = [&](u32 to, u32 set) {
    const u32 row0 = set * ROWS;
    if (set < sets) {
      if (row0 + ROWS - 1 <= last) {
        const TX *x = a.x + (i64)row0 * a.ldx + column;
#pragma unroll
        for (int r = 0; r < ROWS; ++r, x += a.ldx) copy16(to + r * 512, x);
      } else {
        // Rows that are not there are the last one, once more.
#pragma unroll
        for (int r = 0; r < ROWS; ++r) copy16(to + r * 512, a.x + (i64)(row0 + r < last ? row0 + r : last) * a.ldx + column);
      }
    }
    commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s) fetch(place + s * pitch, blockIdx.x + s * gridDim.x);
  const Vec16 gamma = ld16((const TX *)a.gamma + column);
  const float scale = FP8 && a.scale ? *a.scale : 1.0f, one = a.zero_centered ? 1.0f : 0.0f;
  const u32 recorded = read_amax(a);
  put_scale_inv(a, scale);
  // Parts of warps that are not there; the first barrier stands between this and whoever reads them.
  for (u32 i = threadIdx.x; i < 16 * ROWS; i += blockDim.x)
    if ((i & 15) >= warps) parts[0][i >> 4][i & 15] = parts[1][i >> 4][i & 15] = 0.0f;
  const u64 policy = store_policy(FP8 && !a.again && beyond_cache(a.rows, a.hidden, 1));
  const u32 my_parts = shared_address(parts) + lane / LANES * (u32)sizeof(parts[0][0]);
  // Two, so that comparisons need not wait for each other.
  float amax[2] = {0.0f, 0.0f};
  const auto all_sets = [&](auto type) {
    constexpr int DT = decltype(type)::value;
    const u32 size = FP8 ? 1 : sizeof(TX);
    u32 from = place, part = my_parts;
#pragma unroll 1
    for (u32 set = blockIdx.x; set < sets; set += gridDim.x) {
      wait(STAGES);
      float v[ROWS][N], s[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        unpack<X>(read16(from + r * 512), v[r]);
        // There are registers for them: nothing is unpacked again.
#pragma unroll
        for (int k = 0; k < N; ++k) asm volatile("" : "+f"(v[r][k]));
      }
      // The place is free again.
      fetch(from, set + STAGES * gridDim.x);
      from = place + (place + pitch - from);
      const float none = -0.0f;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        float sum[2] = {none, none};
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k & 1] += v[r][k] * v[r][k];
        s[r] = sum[0] + sum[1];
      }
      // Two buffers take turns: one barrier a set.
      const float mine = sum_rows(s);
      if (lane % LANES == 0) asm volatile("st.shared.f32 [%0], %1;" ::"r"(part + (threadIdx.x >> 5) * 4), "f"(mine) : "memory");
      __syncthreads();
      float all = 0.0f;
#pragma unroll 1
      for (u32 w = 0; w < warps; w += 4) {
        const Vec16 p = read16(part + w * 4);
        all += (float_of(p.w[0]) + float_of(p.w[1])) + (float_of(p.w[2]) + float_of(p.w[3]));
      }
      part = my_parts + (my_parts + (u32)sizeof(parts[0]) - part);
      const Stats stats = finish(0.0f, 0.0f, all, a.inv_n, a.eps);
      const u32 row0 = set * ROWS;
      if (threadIdx.x < 32 && lane % LANES == 0 && row0 + lane / LANES <= last) put_stats(a, row0 + lane / LANES, stats);
      float g[N];
      unpack<X>(gamma, g);
#pragma unroll
      for (int k = 0; k < N; ++k) g[k] += one;
      u8 *y = a.y + ((i64)row0 * a.ldy + column) * size;
#pragma unroll
      for (int r = 0; r < ROWS; ++r, y += a.ldy * size) {
        const float rsigma = of_row(stats.rsigma, r);
        const bool there = row0 + r <= last;
        float(&w)[N] = v[r];
#pragma unroll
        for (int k = 0; k < N; ++k) {
          w[k] = w[k] * rsigma * g[k];
          if (FP8) amax[k & 1] = max_nan(amax[k & 1], w[k]);
        }
        // Made before it is asked whether the row is there: no branches around them.
        if constexpr (FP8) {
          Vec8 codes;
#pragma unroll
          for (int j = 0; j < 2; ++j)
            codes.w[j] = f32x4_to_fp8x4<DT>(w[4 * j] * scale, w[4 * j + 1] * scale, w[4 * j + 2] * scale, w[4 * j + 3] * scale);
          if (there) st8(y, codes, policy);
        } else {
          const Vec16 packed = pack<X>(w);
          if (there) st16(y, packed, policy);
        }
      }
    }
  };
  if constexpr (FP8) with_output(a.y_dt, all_sets);
  else all_sets(Type<X>());
  put_warp_amax(a, max_nan(amax[0], amax[1]), recorded);
}
