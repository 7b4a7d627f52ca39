// GEMM in plain f32 arithmetic (never TF32), any architecture:  D[M,N] = epilogue(A[M,K] . B[N,K]^T).
// Elements are converted to f32 as they are loaded, one fused multiply-add each, K in ascending order.
//
// Operands: any strides along the row and along K, element alignment only, so every layout is served as it lies and nothing is packed.
//
// Launch: 32 * WARPS_M * WARPS_N threads, one block per tile of (32 * WARPS_M) x (64 * WARPS_N); a warp owns 32 x 64, a thread 8 x 8 of it in four
// blocks of 4 x 4 (per step of K: two 16-byte reads of each operand for 64 multiply-adds). Two buffers of 16 (small tiles: 8) of K; the next one is
// fetched into registers while this one is multiplied.
// Bytes moved from L2 per tile and step of K: (BM + BN) elements.
//
// Defines: A_DT, B_DT, D_DT, WARPS_M, WARPS_N.
#include "common/base.cuh"
#include "common/gemm_epilogue.cuh"

#define BM (32 * WARPS_M)
#define BN (64 * WARPS_N)
#define THREADS (32 * WARPS_M * WARPS_N)
#define BK (THREADS >= 256 ? 16 : 8)  // eight elements of each operand per thread
#define BUFFER (BK * (BM + 4 + BN + 4))  // rows of K, four floats of padding: 16-byte reads stay aligned
static_assert(THREADS % BM == 0 && THREADS % BN == 0, "whole passes");
static_assert(2 * BUFFER >= WARPS_M * WARPS_N * STAGE_FLOATS, "the epilogue stages in the same memory");

// The part of one operand's tiles that a thread fetches: COUNT elements. Neighbouring threads go along whichever direction is contiguous,
// a thread's elements along the other one.
template <int DT, int SIDE> struct Fetch {
  typedef typename Elem<DT>::T T;
  enum { COUNT = SIDE * BK / THREADS, ROW_STEP = THREADS / BK, K_STEP = THREADS / SIDE };
  const T *p;
  i64 each, tile;   // element distance from one to the next, from one tile to the next
  i64 k_left;       // valid while row < rows_left and kk < k_left
  int rows_left, row, kk;
  bool along_k;
  float v[COUNT];

  DEVICE void init(const void *base, i64 row0, i64 rows, i64 k, i64 row_stride, i64 k_stride) {
    along_k = k_stride == 1;
    row = along_k ? threadIdx.x / BK : threadIdx.x % SIDE;
    kk = along_k ? threadIdx.x % BK : threadIdx.x / SIDE;
    p = (const T *)base + (row0 + row) * row_stride + kk * k_stride;
    each = along_k ? ROW_STEP * row_stride : K_STEP * k_stride;
    tile = BK * k_stride;
    rows_left = (int)imin(rows - row0, SIDE);
    k_left = k;
  }
  DEVICE void load() {
    const T *q = p;
    if (along_k) {
#pragma unroll
      for (int i = 0; i < COUNT; i++, q += each) v[i] = row + i * ROW_STEP < rows_left && kk < k_left ? Elem<DT>::load(*q) : 0.0f;
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; i++, q += each) v[i] = row < rows_left && kk + i * K_STEP < k_left ? Elem<DT>::load(*q) : 0.0f;
    }
    p += tile;
    k_left -= BK;
  }
  DEVICE void store(float *to) {
    to += kk * (SIDE + 4) + row;
    if (along_k) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) to[i * ROW_STEP] = v[i];
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; i++) to[i * K_STEP * (SIDE + 4)] = v[i];
    }
  }
};

// Two large tiles per multiprocessor leave a thread 128 registers. Converting FP8 takes a few more before sm_90, for which
// one tile is given up: FP8 products have tensor cores, so this is the rare way.
#define FP8_INPUT (A_DT == DT_E4M3 || A_DT == DT_E5M2 || B_DT == DT_E4M3 || B_DT == DT_E5M2)
#define BLOCKS (THREADS < 256 ? 4 : FP8_INPUT && __CUDA_ARCH__ < 900 ? 1 : 2)

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
gemm_simt(const void *a, const void *b, const i64 row_a, const i64 k_a, const i64 row_b, const i64 k_b, const GemmOut out, const i32 m, const i32 n,
          const i64 k, const u32 tiles_m, const u32 tiles_n, const u32 group) {
  after_previous();
  __shared__ alignas(16) float buf[2 * BUFFER];
  const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, wm = warp % WARPS_M, wn = warp / WARPS_M, lr = lane >> 3, lc = lane & 7;
  u32 tm, tn;
  tile_at(blockIdx.x, tiles_m, tiles_n, group, tm, tn);
  const i64 row0 = (i64)tm * BM, col0 = (i64)tn * BN;
  if (blockIdx.x == 0 && threadIdx.x == 0) write_scale_inv(out);

  Fetch<A_DT, BM> fa;
  Fetch<B_DT, BN> fb;
  fa.init(a, row0, m, k, row_a, k_a);
  fb.init(b, col0, n, k, row_b, k_b);
  fa.load();
  fb.load();
  float acc[8][8];
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int j = 0; j < 8; j++) acc[i][j] = 0.0f;

  u32 which = 0;
#pragma unroll 1
  for (i64 k0 = 0; k0 < k; k0 += BK) {
    float *sa = buf + which * BUFFER, *sb = sa + BK * (BM + 4);
    fa.store(sa);
    fb.store(sb);
    // One barrier per step is enough: the other buffer is written only after the next one, when nobody reads it any more.
    __syncthreads();
    if (k0 + BK < k) { fa.load(); fb.load(); }
    const float *pa = sa + wm * 32 + lr * 4, *pb = sb + wn * 64 + lc * 4;
#pragma unroll
    for (int kk = 0; kk < BK; kk++) {
      F4 a0 = *(const F4 *)(pa + kk * (BM + 4)), a1 = *(const F4 *)(pa + kk * (BM + 4) + 16);
      F4 b0 = *(const F4 *)(pb + kk * (BN + 4)), b1 = *(const F4 *)(pb + kk * (BN + 4) + 32);
      const float x[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w}, y[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
#pragma unroll
      for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) acc[i][j] = __fmaf_rn(x[i], y[j], acc[i][j]);
    }
    which ^= 1;
  }
  __syncthreads();

  float *stage = buf + warp * STAGE_FLOATS;
  const OutScale scale = out_scale<D_DT>(out);
  u32 amax = 0;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float(&v)[8] = acc[half * 4 + i];
      *(F4 *)(stage + stage_at(lr * 4 + i, lc * 4)) = {v[0], v[1], v[2], v[3]};
      *(F4 *)(stage + stage_at(lr * 4 + i, lc * 4 + 32)) = {v[4], v[5], v[6], v[7]};
    }
    __syncwarp();
    store_chunk<D_DT>(out, scale, stage, row0 + wm * 32 + half * 16, col0 + wn * 64, m, n, amax);
  }
  record_out_amax(out, amax);
}
