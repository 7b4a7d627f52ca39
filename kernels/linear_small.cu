// The forward pass of a small Linear in one launch: the casts of x and W to FP8, their product, the bias.
//
//   qx = encode(x * scale_x), qw = encode(w * scale_w), y = qx . qw^T / (scale_x * scale_w) + bias
//
// x [m, k] and w [n, k], K-major, rows multiples of 16 bytes, k a multiple of 8. w is of x's type, or it is codes already. The codes made
// here stay inside; what backward needs of them, qx transposed [k, ldt] with ldt = m rounded up to 16 (zeros behind m), is written where
// wanted, and so are the scales that were used and the amaxes. Codes are multiplied as f16, which holds them exactly, with f32
// accumulators, in an order that depends on neither form of w.
//
// Launch: 128 threads, one block per 64 x 64 of y. A block casts its rows of x and w itself, in steps of 64 columns: rows that other
// blocks cast too are read from L2, so this is for sizes where launches cost more than bytes.
//
// Defines: IN (f32, f16, bf16), the type of x and y; CODES: w is E4M3.
#include "common/base.cuh"
#include "common/ptx_mma.cuh"
#include "common/gemm_epilogue.cuh"

typedef Elem<IN>::T In;
#define SIDE 64
#define THREADS 128
#define CODE_PITCH (SIDE + 4)  // 17 words: a warp that reads down columns touches every bank once
#define LOADS (IN == DT_F32 ? 2 : 1)

struct LinearParams {
  const In *x;
  const void *w;
  u8 *xt;                // qx transposed, or null
  const float *scale_x, *scale_w;  // null: 1; where w is codes out.scale_inv_b is theirs
  float *scale_inv_x;    // null: not written, as the next three
  float *kept;           // receives scale_w
  float *amax_x, *amax_w;
  i64 ldx, ldw, ldt, m, n, k;
  u64 tiles_n;
  GemmOut out;
};

// Eight neighbours of a row.
struct Piece { Vec16 v[LOADS]; };

DEVICE Piece load_piece(const In *row, bool there) {
  Piece p = {};
  if (there) {
#pragma unroll
    for (int i = 0; i < LOADS; i++) p.v[i] = ld16(row + i * (8 / LOADS));
  }
  return p;
}

// Their codes; zeros where there is nothing, whatever the scale.
DEVICE void encode_piece(u32 (&code)[2], const Piece &p, bool there, float scale, u32 &amax) {
  float v[8];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (IN == DT_F32) v[2 * i] = float_of(p.v[i / 2].w[i % 2 * 2]), v[2 * i + 1] = float_of(p.v[i / 2].w[i % 2 * 2 + 1]);
    else unpack2<IN == DT_F32 ? DT_BF16 : IN>(p.v[0].w[i], v[2 * i], v[2 * i + 1]);
  }
#pragma unroll
  for (int i = 0; i < 8; i++) amax = umax(amax, abs_bits(v[i]));
#pragma unroll
  for (int i = 0; i < 2; i++) {
    u32 q = f32x4_to_fp8x4<DT_E4M3>(__fmul_rn(v[4 * i], scale), __fmul_rn(v[4 * i + 1], scale), __fmul_rn(v[4 * i + 2], scale), __fmul_rn(v[4 * i + 3], scale));
    code[i] = there ? q : 0u;
  }
}

// Eight values of w, or eight codes.
#if CODES
typedef u8 Weight;
typedef Vec8 WeightPiece;
DEVICE WeightPiece load_weight(const Weight *row, bool there) {
  WeightPiece p = {};
  if (there) p = *(const Vec8 *)row;
  return p;
}
DEVICE void encode_weight(u32 (&code)[2], const WeightPiece &p, bool, float, u32 &) { code[0] = p.w[0], code[1] = p.w[1]; }
#else
typedef In Weight;
typedef Piece WeightPiece;
DEVICE WeightPiece load_weight(const Weight *row, bool there) { return load_piece(row, there); }
DEVICE void encode_weight(u32 (&code)[2], const WeightPiece &p, bool there, float scale, u32 &amax) { encode_piece(code, p, there, scale, amax); }
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 2) linear_small(const __grid_constant__ LinearParams p) {
  after_previous();
  // 64 rows of x, then 64 of w, of 64 f16 each: chunks of 16 bytes exchanged by the row's low three bits. Later the staged accumulators.
  __shared__ alignas(16) u8 operands[2 * SIDE * 128];
  __shared__ alignas(16) u8 codes[SIDE * CODE_PITCH];
  __shared__ float scale_inv[2];
  static_assert(2 * SIDE * 128 == 4 * STAGE_FLOATS * 4, "four warps stage in the memory of the operands");
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, chunk = threadIdx.x & 7, first = threadIdx.x >> 3;
  const i64 tile_m = blockIdx.x / (u32)p.tiles_n, tile_n = blockIdx.x % (u32)p.tiles_n;
  const i64 row0 = tile_m * SIDE, col0 = tile_n * SIDE;
  const bool keeps = p.xt && tile_n == 0;
  const float scale_x = p.scale_x ? *p.scale_x : 1.0f, scale_w = !CODES && p.scale_w ? *p.scale_w : 1.0f;
  if (threadIdx.x == 0) {
    scale_inv[0] = reciprocal(scale_x), scale_inv[1] = reciprocal(scale_w);
    if (blockIdx.x == 0 && p.scale_inv_x) *p.scale_inv_x = scale_inv[0];
    if (blockIdx.x == 0 && p.kept) *p.kept = scale_w;
  }

  // A thread takes chunk `chunk` of rows first, first + 16, first + 32, first + 48 of x and of w.
  Piece x[4];
  WeightPiece w[4];
  auto load = [&](i64 k0) {
    const i64 at = k0 + chunk * 8;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      const i64 row = row0 + first + 16 * i, col = col0 + first + 16 * i;
      x[i] = load_piece(p.x + row * p.ldx + at, row < p.m && at < p.k);
      w[i] = load_weight((const Weight *)p.w + col * p.ldw + at, col < p.n && at < p.k);
    }
  };
  float acc[32];
#pragma unroll
  for (int i = 0; i < 32; i++) acc[i] = 0.0f;
  u32 amax_x = 0, amax_w = 0;
  const u32 smem = smem_u32(operands), swap = lane & 7;
  const u32 at_a = smem + (warp * 16 + (lane & 15)) * 128, at_b = smem + (SIDE + (lane & 7) + (lane >> 4) * 8) * 128;
  load(0);
#pragma unroll 1
  for (i64 k0 = 0; k0 < p.k; k0 += SIDE) {
    const bool in = k0 + chunk * 8 < p.k;
    auto put = [&](const u32 (&q)[2], u32 row) {
      Vec16 f = {{fp8x2_to_f16x2<DT_E4M3>(q[0] & 0xFFFF), fp8x2_to_f16x2<DT_E4M3>(q[0] >> 16), fp8x2_to_f16x2<DT_E4M3>(q[1] & 0xFFFF),
                  fp8x2_to_f16x2<DT_E4M3>(q[1] >> 16)}};
      *(Vec16 *)(operands + row * 128 + ((chunk ^ (row & 7)) << 4)) = f;
    };
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      const u32 r = first + 16 * i;
      u32 q[2];
      encode_piece(q, x[i], row0 + r < p.m && in, scale_x, amax_x);
      put(q, r);
      if (keeps) {
        u32 *to = (u32 *)(codes + r * CODE_PITCH + chunk * 8);
        to[0] = q[0], to[1] = q[1];
      }
      encode_weight(q, w[i], col0 + r < p.n && in, scale_w, amax_w);
      put(q, SIDE + r);
    }
    __syncthreads();
    if (k0 + SIDE < p.k) load(k0 + SIDE);
#pragma unroll
    for (u32 q = 0; q < 4; q++) {
      u32 a[4], b[4][4];
      ldmatrix_x4(a, at_a + (((q * 2 + (lane >> 4)) ^ swap) << 4));
#pragma unroll
      for (u32 j = 0; j < 4; j++) ldmatrix_x4(b[j], at_b + j * 16 * 128 + (((q * 2 + ((lane >> 3) & 1)) ^ swap) << 4));
#pragma unroll
      for (u32 j = 0; j < 8; j++) mma_m16n8k16<DT_F16>(acc + j * 4, a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
    if (keeps) {
      // Sixteen rows of one column a thread and step.
#pragma unroll 1
      for (u32 task = threadIdx.x; task < SIDE * (SIDE / 16); task += THREADS) {
        const u32 c = task & (SIDE - 1), r = task / SIDE * 16;
        if (k0 + c >= p.k || row0 + r >= p.m) continue;
        Vec16 v;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
          const u8 *from = codes + (r + 4 * i) * CODE_PITCH + c;
          v.w[i] = from[0] | (u32)from[CODE_PITCH] << 8 | (u32)from[2 * CODE_PITCH] << 16 | (u32)from[3 * CODE_PITCH] << 24;
        }
        st16(p.xt + (k0 + c) * p.ldt + row0 + r, v);
      }
    }
    __syncthreads();
  }

  GemmOut out = p.out;
  out.scale_inv_a = scale_inv;
  if (!CODES) out.scale_inv_b = scale_inv + 1;
  const OutScale scale = out_scale<IN>(out);
  float *stage = (float *)operands + warp * STAGE_FLOATS;
  u32 unused = 0;
  stage_fragments(stage, acc);
  __syncwarp();
  store_chunk<IN>(out, scale, stage, row0 + warp * 16, col0, p.m, p.n, unused);

  // Each row of x and of w is recorded by one block.
  amax_x = warp_max(amax_x), amax_w = warp_max(amax_w);
  if (lane == 0 && tile_n == 0 && p.amax_x && amax_x) record_amax(p.amax_x, amax_x);
  if (lane == 0 && tile_m == 0 && p.amax_w && amax_w) record_amax(p.amax_w, amax_w);
}
