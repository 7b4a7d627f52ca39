// Dropout with bias and residual, forward and backward.
//
// Forward   y = (kept ? (x + bias) * scale : 0) + residual           x, residual, y: [rows, cols] of X; bias: [cols]
// Backward  dx = kept ? dy * scale : 0, sums = column sums of dx     dy, dx: [rows, cols] of X
// An element is kept as the generator says (NUMERICS section 8: Philox4x32-10, key = seed, counter = (offset + i / 4, stream), word i % 4,
// i = row * cols + column), as a mask says (backward), always (p = 0) or never (p = 1). The mask has a bit per element, rows of whole bytes.
//
// Launch: 256 threads per tile of 32 * W columns (W: 8, with vectors of f32 4), linear grid, tiles of one row strip next to each other.
//   dropout        what is kept is known: a tile of 32 rows; a warp takes four, a lane W columns of each; all loads come first
//   dropout_drawn  it is drawn: `steps` strips of 16 rows, two of a warp, whose loads are issued before the words for the two before are
//                  drawn; so they are under way all the time, not only at a block's beginning
// Backward with column sums: `steps` row strips per block, whose sums meet in shared memory; dbias.cu adds up what blocks leave.
// Bytes moved per element: x, residual and y once; the mask 1/8.
// Arithmetic per element: ten rounds of two wide products, two three-way xors for four elements, and the key's additions for sixteen: 11
// instructions, five of them wide products; with the rest about 20. At 4 TB/s backward in bf16 (1e12 elements a second) that is two thirds
// of what an H200 issues, if nothing else stands in the way; the mask is cheaper to read.
//
// Compile-time: X, BACKWARD. dropout: rows on 16 bytes, cols % 8 == 0. dropout_any: everything else, single elements, three draws for
// eight elements of a row, which need not begin at a multiple of four.
#include "common/norm.cuh"

#define ROWS 4        // of a warp at a time
#define STRIP 32      // of a block at a time
#define V (X == DT_F32 ? 4 : 8)
// Blocks per multiprocessor, which is to say registers: with 80, newer versions of ptxas spill for sm_100.
#define BLOCKS (BACKWARD && (__CUDA_ARCH__ < 1000 || __CUDA_ARCH__ >= 1200) ? 3 : 2)
// Likewise for words that are drawn, two rows at a time while the next two are on their way.
#define DRAWN_ROWS 2
#define DRAWN_BLOCKS (BACKWARD ? 4 : __CUDA_ARCH__ >= 1000 ? 2 : 3)
// Of -0.
#define NOTHING (X == DT_F32 ? 0x80000000u : 0x80008000u)
#define KEEP_ALL 0
#define KEEP_NONE 1
#define KEEP_DRAW 2
#define KEEP_MASK 3

typedef Elem<X>::T T;

// Mirrored by `Params` in src/backend/cuda/dropout.rs.
struct DropoutParams {
  const T *x, *residual;
  T *y;
  const void *bias;
  u8 *mask;
  const u64 *rng;
  float *sums;                         // [row strips of a block, cols], backward
  i64 ldx, ldr, ldy, ld_mask, rows, cols, last;   // last: columns of the last row
  u64 stream;
  u32 keep, threshold;
  float scale;
  i32 bias_type;
  u32 col_tiles, steps;
};

// Words for K counters, the rounds side by side.
template <int K> DEVICE void philox(u32 (&c)[K][4], u32 k0, u32 k1) {
#pragma unroll
  for (int r = 0; r < 10; ++r) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const u64 a = (u64)c[k][0] * 0xD2511F53u, b = (u64)c[k][2] * 0xCD9E8D57u;
      c[k][0] = (u32)(b >> 32) ^ c[k][1] ^ k0;
      c[k][2] = (u32)(a >> 32) ^ c[k][3] ^ k1;
      c[k][1] = (u32)b;
      c[k][3] = (u32)a;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}
DEVICE void counter(u32 (&c)[4], u64 at, u64 stream) {
  c[0] = (u32)at;
  c[1] = (u32)(at >> 32);
  c[2] = (u32)stream;
  c[3] = (u32)(stream >> 32);
}

DEVICE void widen(const Vec16 &v, float (&f)[V]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (X == DT_F32) f[i] = float_of(v.w[i]);
    else unpack2<X>(v.w[i], f[2 * i], f[2 * i + 1]);
  }
}
DEVICE Vec16 narrow(const float (&f)[V]) {
  Vec16 v;
#pragma unroll
  for (int i = 0; i < 4; ++i) v.w[i] = X == DT_F32 ? bits_of(f[i]) : pack2<X>(f[2 * i], f[2 * i + 1]);
  return v;
}

// W results, of which keep(j) says what is kept. Each operation is rounded: the CPU back end has the same bits. Where there is no bias or
// residual they are -0, which changes nothing when it is added, and costs less than a branch.
template <int W, class Keep> DEVICE void apply(float scale, Keep keep, const float (&bias)[W], const float (&rest)[W], float (&v)[W]) {
#pragma unroll
  for (int j = 0; j < W; ++j) {
    if (!BACKWARD) v[j] = __fadd_rn(v[j], bias[j]);
    v[j] = __fmul_rn(v[j], scale);
    v[j] = keep(j) ? v[j] : 0.0f;
    if (!BACKWARD) v[j] = __fadd_rn(v[j], rest[j]);
  }
}

// The block's column sums: eight warps meet in shared memory.
template <int W> DEVICE void put_sums(const DropoutParams &p, const float (&sum)[W], u32 row_tile, i64 col0) {
  __shared__ float part[8][32 * W];
#pragma unroll
  for (int j = 0; j < W; ++j) part[threadIdx.x >> 5][(threadIdx.x & 31) * W + j] = sum[j];
  __syncthreads();
  const u32 c = threadIdx.x;
  if (c < 32 * W && col0 + c < p.cols) {
    float s = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; ++w) s += part[w][c];
    p.sums[(i64)row_tile * p.cols + col0 + c] = s;
  }
}

// From a row's values, of which keep(j) says what is kept, to their place in memory. What lies outside was read as zeros.
template <class Keep>
DEVICE void finish(const DropoutParams &p, const Vec16 &raw, const Vec16 &more, const float (&bias)[V], Keep keep, bool valid, i64 col, T *y, u8 *mask,
                   float (&sum)[V]) {
  float v[V], rest[V];
  widen(raw, v);
  widen(more, rest);
  apply<V>(p.scale, keep, bias, rest, v);
  if (BACKWARD && p.sums) {
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] += v[j];
  }
  if (valid) st16(y, narrow(v));
  if (!BACKWARD && p.mask) {
    u32 bits = 0;
#pragma unroll
    for (int j = 0; j < V; ++j)
      if (keep(j)) bits |= 1u << j;
    if (V == 4) bits |= __shfl_xor_sync(0xFFFFFFFFu, bits, 1) << 4;
    if (valid && (col & 7) == 0) *mask = (u8)bits;
  }
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS) dropout(const __grid_constant__ DropoutParams p) {
  after_previous();
  const u32 row_tile = blockIdx.x / p.col_tiles, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 col0 = (i64)(blockIdx.x - row_tile * p.col_tiles) * (32 * V), col = col0 + lane * V;
  const bool inside = col < p.cols, inside_last = col < p.last;
  float sum[V] = {};
  Parameters<V> parameters;
  if (!BACKWARD && p.bias && inside) parameters.fetch(p.bias, p.bias_type, col);
#pragma unroll 1
  for (u32 step = 0; step < p.steps; ++step) {
    const i64 row0 = ((i64)row_tile * p.steps + step) * STRIP + warp * ROWS, left = p.rows - row0;
    // Rows from row0 on, as far as they matter; the last one may be shorter.
    const i32 rows = left > ROWS ? ROWS + 1 : (i32)(left < 0 ? 0 : left);
    const T *x = p.x + row0 * p.ldx + col, *residual = p.residual + row0 * p.ldr + col;
    T *y = p.y + row0 * p.ldy + col;
    u8 *mask = p.mask + row0 * p.ld_mask + (col >> 3);
    Vec16 raw[ROWS], more[ROWS];
    u32 kept[ROWS];
    bool valid[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
      valid[k] = k + 1 < rows ? inside : k + 1 == rows && inside_last;
      raw[k] = Vec16{{0, 0, 0, 0}};
      more[k] = Vec16{{NOTHING, NOTHING, NOTHING, NOTHING}};
      kept[k] = p.keep == KEEP_ALL ? (1u << V) - 1 : 0;
      if (!valid[k]) continue;
      raw[k] = ld16_once(x + k * p.ldx);
      if (!BACKWARD && p.residual) more[k] = ld16_once(residual + k * p.ldr);
      if (BACKWARD && p.keep == KEEP_MASK) kept[k] = mask[k * p.ld_mask] >> (col & 7);
    }
    float bias[V];
#pragma unroll
    for (int j = 0; j < V; ++j) bias[j] = -0.0f;
    if (!BACKWARD && p.bias && inside) parameters.widen(p.bias_type, bias);
#pragma unroll
    for (int k = 0; k < ROWS; ++k)
      finish(p, raw[k], more[k], bias, [&](int j) { return (kept[k] >> j & 1) != 0; }, valid[k], col, y + k * p.ldy, mask + k * p.ld_mask, sum);
  }
  if (BACKWARD && p.sums) put_sums<V>(p, sum, row_tile, col0);
}

// Rows of a step of dropout_drawn, on their way.
struct Step {
  Vec16 raw[DRAWN_ROWS], more[DRAWN_ROWS];
  bool valid[DRAWN_ROWS];
};

extern "C" __global__ void __launch_bounds__(256, DRAWN_BLOCKS) dropout_drawn(const __grid_constant__ DropoutParams p) {
  after_previous();
  constexpr int K = DRAWN_ROWS, GROUPS = V / 4, DOWN = 8 * K;   // groups of four elements in a vector; rows of a step
  const u32 row_tile = blockIdx.x / p.col_tiles, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 col0 = (i64)(blockIdx.x - row_tile * p.col_tiles) * (32 * V), col = col0 + lane * V;
  const bool inside = col < p.cols, inside_last = col < p.last;
  const u64 seed = p.rng[0], fours = (u64)p.cols >> 2;
  float sum[V] = {}, bias[V];
#pragma unroll
  for (int j = 0; j < V; ++j) bias[j] = -0.0f;
  Parameters<V> parameters;
  if (!BACKWARD && p.bias && inside) parameters.fetch(p.bias, p.bias_type, col);
  // Everything moves on by a step at a time: `row`, `x` and `residual` to what is fetched next, the others to what is written next.
  i64 row = (i64)row_tile * p.steps * DOWN + warp * K;
  const T *x = p.x + row * p.ldx + col, *residual = p.residual + row * p.ldr + col;
  T *y = p.y + row * p.ldy + col;
  u8 *mask = p.mask + row * p.ld_mask + (col >> 3);
  u64 at = p.rng[1] + (((u64)row * (u64)p.cols + (u64)col) >> 2);
  auto fetch = [&](Step &s, bool there) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      s.valid[k] = there && (row + k < p.rows - 1 ? inside : row + k == p.rows - 1 && inside_last);
      s.raw[k] = Vec16{{0, 0, 0, 0}};
      s.more[k] = Vec16{{NOTHING, NOTHING, NOTHING, NOTHING}};
      if (!s.valid[k]) continue;
      s.raw[k] = ld16_once(x + k * p.ldx);
      if (!BACKWARD && p.residual) s.more[k] = ld16_once(residual + k * p.ldr);
    }
    row += DOWN;
    x += DOWN * p.ldx;
    residual += DOWN * p.ldr;
  };
  Step now, next;
  fetch(now, true);
  if (!BACKWARD && p.bias && inside) parameters.widen(p.bias_type, bias);
#pragma unroll 1
  for (u32 step = 0; step < p.steps; ++step) {
    fetch(next, step + 1 < p.steps);
    u32 word[K * GROUPS][4];
#pragma unroll
    for (int k = 0; k < K * GROUPS; ++k) counter(word[k], at + (u64)(k / GROUPS) * fours + k % GROUPS, p.stream);
    philox<K * GROUPS>(word, (u32)seed, (u32)(seed >> 32));
#pragma unroll
    for (int k = 0; k < K; ++k) {
      auto keep = [&](int j) { return word[k * GROUPS + j / 4][j % 4] >= p.threshold; };
      finish(p, now.raw[k], now.more[k], bias, keep, now.valid[k], col, y + k * p.ldy, mask + k * p.ld_mask, sum);
    }
    y += DOWN * p.ldy;
    mask += DOWN * p.ld_mask;
    at += DOWN * fours;
    now = next;
  }
  if (BACKWARD && p.sums) put_sums<V>(p, sum, row_tile, col0);
}

extern "C" __global__ void __launch_bounds__(256) dropout_any(const __grid_constant__ DropoutParams p) {
  after_previous();
  const u32 row_tile = blockIdx.x / p.col_tiles, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 col0 = (i64)(blockIdx.x - row_tile * p.col_tiles) * 256, col = col0 + lane * 8;
  float bias[8], sum[8] = {};
#pragma unroll
  for (u32 j = 0; j < 8; ++j) bias[j] = !BACKWARD && p.bias && col + j < p.cols ? load_as(p.bias, p.bias_type, col + j) : -0.0f;
  const bool draw = p.keep == KEEP_DRAW;
  u64 seed = 0, offset = 0;
  if (draw) seed = p.rng[0], offset = p.rng[1];
#pragma unroll 1
  for (u32 r = 0; r < p.steps * ROWS; ++r) {
    const i64 row = ((i64)row_tile * p.steps + r / ROWS) * STRIP + warp * ROWS + r % ROWS;
    if (row >= p.rows) break;
    const i64 end = row == p.rows - 1 ? p.last : p.cols;
    const u32 width = col < end ? (u32)imin(8, end - col) : 0;
    float v[8] = {}, rest[8];
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
      rest[j] = -0.0f;
      if (j >= width) continue;
      v[j] = Elem<X>::load(p.x[row * p.ldx + col + j]);
      if (!BACKWARD && p.residual) rest[j] = Elem<X>::load(p.residual[row * p.ldr + col + j]);
    }
    u32 kept = p.keep == KEEP_ALL ? 0xFFu : 0;
    if (BACKWARD && p.keep == KEEP_MASK && width) kept = p.mask[row * p.ld_mask + (col >> 3)];
    if (draw) {
      const u64 i = (u64)row * (u64)p.cols + (u64)col;
      u32 word[3][4];
#pragma unroll
      for (int k = 0; k < 3; ++k) counter(word[k], offset + (i >> 2) + k, p.stream);
      philox<3>(word, (u32)seed, (u32)(seed >> 32));
      // Bits of twelve elements, of which the row's eight begin at i % 4.
      u32 bits = 0;
#pragma unroll
      for (int k = 0; k < 12; ++k)
        if (word[k >> 2][k & 3] >= p.threshold) bits |= 1u << k;
      kept = bits >> ((u32)i & 3);
    }
    apply<8>(p.scale, [&](int j) { return (kept >> j & 1) != 0; }, bias, rest, v);
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
      if (j >= width) continue;
      if (BACKWARD) sum[j] += v[j];
      p.y[row * p.ldy + col + j] = Elem<X>::store(v[j]);
    }
    if (!BACKWARD && p.mask && width) p.mask[row * p.ld_mask + (col >> 3)] = (u8)(kept & ((1u << width) - 1));
  }
  if (BACKWARD && p.sums) put_sums<8>(p, sum, row_tile, col0);
}
