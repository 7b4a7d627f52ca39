// GEMM on mma.sync, sm_80 and later:  D[M,N] = epilogue(A[M,K] . B[N,K]^T), A and B both f16 or both bf16, f32 accumulators.
// FP8 comes here decoded to f16 (gemm_pack.cu) where the tensor core or the library has no FP8 for it.
//
// Operands: K-major, base and row pitch multiples of 16 bytes. Tails of K are cut at byte granularity by cp.async (which fills with zeros),
// rows beyond M and N arrive as zeros.
//
// Launch: 32 * WARPS_M * WARPS_N threads, one block per tile of (32 * WARPS_M) x (64 * WARPS_N); a warp owns 32 x 64. STAGES buffers of 128 bytes
// (64 elements) of K; rows of 128 bytes whose 16-byte chunks are exchanged by the row's low three bits, so that cp.async writes and ldmatrix
// reads are free of bank conflicts. Dynamic shared memory: STAGES * (BM + BN) * 128 bytes.
// Bytes moved from L2 per tile and 64 of K: (BM + BN) * 128.
//
// Defines: IN_DT (f16, bf16), D_DT, WARPS_M, WARPS_N, STAGES (>= 2).
#include "common/base.cuh"
#include "common/ptx_mma.cuh"
#include "common/gemm_epilogue.cuh"

#define BM (32 * WARPS_M)
#define BN (64 * WARPS_N)
#define THREADS (32 * WARPS_M * WARPS_N)
#define STAGE_BYTES ((BM + BN) * 128)
#define ROW_STEP (THREADS / 8)  // rows that one pass of all threads loads
static_assert(STAGES * STAGE_BYTES >= WARPS_M * WARPS_N * STAGE_FLOATS * 4, "the epilogue stages in the same memory");
static_assert(BM % ROW_STEP == 0 && BN % ROW_STEP == 0 && ROW_STEP % 8 == 0, "whole passes");

// ROWS x 128 bytes from byte `at` of the rows on; `row` counts from the first row of the operand.
template <int ROWS> DEVICE void load_tile(u32 dst, const u8 *base, i64 pitch, i64 row0, i64 rows, i64 at, i64 row_bytes) {
  const u32 chunk = threadIdx.x & 7, r = threadIdx.x >> 3;
  i64 left = row_bytes - (at + chunk * 16);
  const u32 bytes = left >= 16 ? 16u : left > 0 ? (u32)left : 0u;
  const u8 *src = base + (row0 + r) * pitch + at + chunk * 16;
  dst += r * 128 + ((chunk ^ (r & 7)) << 4);
#pragma unroll
  for (int i = 0; i < ROWS / ROW_STEP; i++) {
    const bool in = bytes != 0 && row0 + r + i * ROW_STEP < rows;
    cp_async16(dst + i * ROW_STEP * 128, in ? src : base, in ? bytes : 0u);
    src += ROW_STEP * pitch;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_mma(const u8 *a, const u8 *b, const i64 pitch_a, const i64 pitch_b, const GemmOut out, const i32 m, const i32 n, const i64 k,
         const u32 tiles_m, const u32 tiles_n, const u32 group) {
  after_previous();
  extern __shared__ u8 raw[];
  const u32 smem = smem_u32(raw);
  const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, wm = warp % WARPS_M, wn = warp / WARPS_M;
  u32 tm, tn;
  tile_at(blockIdx.x, tiles_m, tiles_n, group, tm, tn);
  const i64 row0 = (i64)tm * BM, col0 = (i64)tn * BN, row_bytes = k * 2;
  const i32 blocks_k = (i32)((k + 63) / 64);
  if (blockIdx.x == 0 && threadIdx.x == 0) write_scale_inv(out);

  auto load = [&](i32 kb, u32 at) {
    load_tile<BM>(at, a, pitch_a, row0, m, (i64)kb * 128, row_bytes);
    load_tile<BN>(at + BM * 128, b, pitch_b, col0, n, (i64)kb * 128, row_bytes);
  };

  float acc[2][32];
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < 32; j++) acc[i][j] = 0.0f;

  for (i32 s = 0; s < STAGES - 1; s++) {
    if (s < blocks_k) load(s, smem + s * STAGE_BYTES);
    cp_async_commit();
  }
  // ldmatrix: the row of A (16 rows x two chunks) and of B (two groups of eight rows x two chunks) that this lane points at.
  const u32 row_a = wm * 32 + (lane & 15), row_b = wn * 64 + (lane & 7) + (lane >> 4) * 8;
  const u32 chunk_a = lane >> 4, chunk_b = (lane >> 3) & 1, swap = lane & 7;
  const u32 end = smem + STAGES * STAGE_BYTES;
  u32 read = smem, write = smem + (STAGES - 1) * STAGE_BYTES;
#pragma unroll 1
  for (i32 kb = 0; kb < blocks_k; kb++) {
    cp_async_wait<STAGES - 2>();
    // Everyone's part of this stage has landed, and everyone is done with the stage that is filled next.
    __syncthreads();
    if (kb + STAGES - 1 < blocks_k) load(kb + STAGES - 1, write);
    cp_async_commit();
    const u32 at_a = read + row_a * 128, at_b = read + BM * 128 + row_b * 128;
    write = read;
    read = read + STAGE_BYTES == end ? smem : read + STAGE_BYTES;
#pragma unroll
    for (u32 q = 0; q < 4; q++) {
      u32 fa[2][4], fb[4][4];
#pragma unroll
      for (u32 i = 0; i < 2; i++) ldmatrix_x4(fa[i], at_a + i * 16 * 128 + (((q * 2 + chunk_a) ^ swap) << 4));
#pragma unroll
      for (u32 j = 0; j < 4; j++) ldmatrix_x4(fb[j], at_b + j * 16 * 128 + (((q * 2 + chunk_b) ^ swap) << 4));
#pragma unroll
      for (u32 i = 0; i < 2; i++)
#pragma unroll
        for (u32 j = 0; j < 8; j++) mma_m16n8k16<IN_DT>(acc[i] + j * 4, fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
    }
  }
  cp_async_wait<0>();
  __syncthreads();

  float *stage = (float *)raw + warp * STAGE_FLOATS;
  const OutScale scale = out_scale<D_DT>(out);
  u32 amax = 0;
#pragma unroll 1
  for (int half = 0; half < 2; half++) {
    __syncwarp();
    if (half == 0) stage_fragments(stage, acc[0]);
    else stage_fragments(stage, acc[1]);
    __syncwarp();
    store_chunk<D_DT>(out, scale, stage, row0 + wm * 32 + half * 16, col0 + wn * 64, m, n, amax);
  }
  record_out_amax(out, amax);
}
