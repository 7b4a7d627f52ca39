// FP8 GEMM on the tensor cores of sm_90a:  D[M,N] = epilogue(A[M,K] . B[N,K]^T), A and B E4M3 or E5M2 in any pair.
//
// Operands: K-major, base and row pitch multiples of 16 bytes (TMA), described by tensor maps of unsigned bytes: dimensions {K, rows},
// boxes {128, BM} and {128, BN / CLUSTER}, 128-byte swizzle, out of bounds = 0. So tails of M, N and K need no code: they arrive as zeros.
//
// Launch: 384 threads, clusters of CLUSTER blocks along x, a persistent grid of at most one block per SM. Warpgroup 0 loads (one thread),
// warpgroups 1 and 2 multiply: each owns BM/2 rows of the BM x BN tile. STAGES buffers of 128 bytes of K go round; `full` barriers are
// completed by TMA, `empty` barriers by the eight math warps (of both blocks of a cluster: with CLUSTER = 2 two tiles of neighbouring
// rows share one B tile, of which each block fetches half and multicasts it to both).
//
// PRECISE 0: one accumulator for the whole K; the tensor core keeps about 14 bits of it. PRECISE 1: every 128 of K the partial sums are
// added to f32 registers; the two math warpgroups fall out of step, so that one multiplies while the other adds. Where BM = 256 a
// warpgroup works on its two blocks of 64 rows one after the other, through one set of temporaries: 128 + 64 registers.
//
// Bytes moved from L2 per tile and 128 of K: (BM + BN / CLUSTER) * 128. The epilogue of a tile overlaps the loads of the next one (the
// loading thread runs ahead) and the products of the other warpgroup.
//
// Defines: A_DT, B_DT, D_DT, PRECISE, BM (128, 256), BN (64, 128, 256), STAGES, CLUSTER (1, 2).
#include "common/base.cuh"
#include "common/ptx_sm90.cuh"
#include "common/gemm_epilogue.cuh"

#if A_DT == DT_E4M3 && B_DT == DT_E4M3
#define TYPES "e4m3.e4m3"
#elif A_DT == DT_E4M3 && B_DT == DT_E5M2
#define TYPES "e4m3.e5m2"
#elif A_DT == DT_E5M2 && B_DT == DT_E4M3
#define TYPES "e5m2.e4m3"
#else
#define TYPES "e5m2.e5m2"
#endif

#define A_BYTES (BM * 128)
#define B_BYTES (BN * 128)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define WAVES (BM / 128)            // blocks of 64 rows per math warpgroup
#define FRAGS (BN / 2)              // accumulator registers of one such block
// Shared memory: up to 1023 bytes to reach 1024-byte alignment, the stages, 4 KiB of staging for each of eight math warps, 32 bytes of scales
// for each, the barriers. The launcher computes the same sum.

static_assert(sizeof(OutScale) <= 32, "the slot");
static_assert(BM == 128 || (BM == 256 && PRECISE && BN == 128), "256 rows only with promotion and 128 columns: registers");

DEVICE void multiply(float (&d)[FRAGS], u32 a, u32 b, u32 keep) {
#if BN == 256
  WGMMA_M64N256(TYPES, d, a, b, keep);
#elif BN == 128
  WGMMA_M64N128(TYPES, d, a, b, keep);
#else
  WGMMA_M64N64(TYPES, d, a, b, keep);
#endif
}

// Position in the ring of stages.
struct Ring {
  u32 stage, parity;
  DEVICE void advance() {
    if (++stage == STAGES) { stage = 0; parity ^= 1; }
  }
};

extern "C" __global__ void __launch_bounds__(384, 1)
gemm_sm90(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const GemmOut out, const i32 m, const i32 n, const i32 k,
          const u32 tiles_m /* rounded up to a multiple of CLUSTER */, const u32 tiles_n, const u32 group) {
  after_previous();
  extern __shared__ u8 raw[];
  u8 *smem = raw + ((1024u - (smem_u32(raw) & 1023u)) & 1023u);
  const u32 tiles = smem_u32(smem);
  float *stage_all = (float *)(smem + STAGES * STAGE_BYTES);
  OutScale *scales = (OutScale *)(stage_all + 8 * STAGE_FLOATS);
  const u32 full = tiles + STAGES * STAGE_BYTES + 8 * STAGE_FLOATS * 4 + 8 * 32, empty = full + STAGES * 8;

  // The shuffle tells the compiler that the number is the same for the whole warp: descriptors then live in uniform registers.
  const u32 warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x >> 5, 0), rank = CLUSTER > 1 ? cluster_rank() : 0;
  const u32 first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER, count = tiles_m / CLUSTER * tiles_n;
  const u32 blocks_k = ((u32)k + 127) / 128;

  if (threadIdx.x == 0) {
    tma_prefetch_map(&map_a);
    tma_prefetch_map(&map_b);
    for (u32 s = 0; s < STAGES; s++) {
      mbar_init(full + 8 * s, 1);
      mbar_init(empty + 8 * s, 8 * CLUSTER);
    }
    mbar_init_fence();
    if (blockIdx.x == 0) write_scale_inv(out);
  }
  __syncthreads();
  if (CLUSTER > 1) cluster_sync();

  if (warp < 4) {
    // ---------------------------------------------------------------- the loading warpgroup
    registers_drop<40>();
    if (threadIdx.x == 0) {
      Ring at = {0, 1};  // a fresh empty barrier counts as passed
      for (u32 t = first; t < count; t += step) {
        u32 tm, tn;
        tile_at(t, tiles_m / CLUSTER, tiles_n, group, tm, tn);
        const i32 row_a = (i32)((tm * CLUSTER + rank) * BM), row_b = (i32)(tn * BN + rank * (BN / CLUSTER));
        for (u32 kb = 0; kb < blocks_k; kb++) {
          const u32 bar = full + 8 * at.stage, a = tiles + at.stage * STAGE_BYTES, b = a + A_BYTES;
          mbar_wait(empty + 8 * at.stage, at.parity);
          mbar_arrive_expect(bar, STAGE_BYTES);
          tma_load_2d(a, &map_a, (i32)(kb * 128), row_a, bar);
          if (CLUSTER > 1) tma_load_2d_multicast(b + rank * (B_BYTES / CLUSTER), &map_b, (i32)(kb * 128), row_b, bar, (u16)((1 << CLUSTER) - 1));
          else tma_load_2d(b, &map_b, (i32)(kb * 128), row_b, bar);
          at.advance();
        }
      }
    }
    __syncwarp();
  } else {
    // ---------------------------------------------------------------- the two math warpgroups
    registers_raise<232>();
    const u32 wg = warp / 4 - 1, lane = threadIdx.x & 31;
    float *stage = stage_all + (warp - 4) * STAGE_FLOATS;
    // Kept in shared memory, not in registers: with promotion every one of those is taken.
    OutScale *my_scale = (OutScale *)((u8 *)scales + (warp - 4) * 32);
    if (lane == 0) *my_scale = out_scale<D_DT>(out);
    const u32 my_a = wg * (A_BYTES / 2), my_b = A_BYTES;
    u32 amax = 0;
    Ring at = {0, 0};
    float acc[WAVES][FRAGS];

    // This warp has read the stage; with a cluster, the loading threads of both blocks wait for that.
    auto release = [&](u32 s) {
      if (CLUSTER == 1) { if (lane == 0) mbar_arrive(empty + 8 * s); }
      else if (lane < CLUSTER) mbar_arrive_cluster(empty + 8 * s, lane);
    };

    for (u32 t = first; t < count; t += step) {
#if PRECISE
#pragma unroll
      for (int w = 0; w < WAVES; w++)
#pragma unroll
        for (int i = 0; i < FRAGS; i++) acc[w][i] = 0.0f;
      float part[FRAGS];
#pragma unroll 1
      for (u32 kb = 0; kb < blocks_k; kb++) {
        mbar_wait(full + 8 * at.stage, at.parity);
        const u32 base = tiles + at.stage * STAGE_BYTES;
        const u32 b = wgmma_descriptor(base + my_b);
#pragma unroll
        for (int w = 0; w < WAVES; w++) {
          const u32 a = wgmma_descriptor(base + my_a + w * 64 * 128);
          wgmma_settle(part);
          wgmma_fence();
#pragma unroll
          for (int q = 0; q < 4; q++) multiply(part, a + 2 * q, b + 2 * q, q != 0);
          wgmma_commit();
          wgmma_wait<0>();
          wgmma_settle(part);
          if (w == WAVES - 1) release(at.stage);
#pragma unroll
          for (int i = 0; i < FRAGS; i++) acc[w][i] = __fadd_rn(acc[w][i], part[i]);
        }
        at.advance();
      }
#else
      u32 before = 0;
#pragma unroll 1
      for (u32 kb = 0; kb < blocks_k; kb++) {
        mbar_wait(full + 8 * at.stage, at.parity);
        const u32 base = tiles + at.stage * STAGE_BYTES;
        const u32 a = wgmma_descriptor(base + my_a), b = wgmma_descriptor(base + my_b);
        wgmma_fence();
#pragma unroll
        for (int q = 0; q < 4; q++) multiply(acc[0], a + 2 * q, b + 2 * q, (kb | q) != 0);
        wgmma_commit();
        // One batch stays in flight: the stage before is free once it is the only one.
        wgmma_wait<1>();
        if (kb > 0) release(before);
        before = at.stage;
        at.advance();
      }
      wgmma_wait<0>();
      wgmma_settle(acc[0]);
      release(before);
#endif
      u32 tm, tn;
      tile_at(t, tiles_m / CLUSTER, tiles_n, group, tm, tn);
      const i64 row0 = (i64)(tm * CLUSTER + rank) * BM + wg * (BM / 2) + (warp & 3) * 16, col0 = (i64)tn * BN;
      // One copy of the store code: only the choice of registers is unrolled.
#pragma unroll 1
      for (int ch = 0; ch < WAVES * (BN / 64); ch++) {
        __syncwarp();
#pragma unroll
        for (int c = 0; c < WAVES * (BN / 64); c++)
          if (c == ch) stage_fragments(stage, acc[c / (BN / 64)] + c % (BN / 64) * 32);
        __syncwarp();
        const OutScale scale = *my_scale;
        store_chunk<D_DT>(out, scale, stage, row0 + ch / (BN / 64) * 64, col0 + ch % (BN / 64) * 64, m, n, amax);
      }
    }
    record_out_amax(out, amax);
  }
  // No block of a cluster may leave while another one still writes to it or signals it.
  if (CLUSTER > 1) cluster_sync();
}
