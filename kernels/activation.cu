// Activations and gated activations to FP8, forward and backward, and backward to other types with column sums, for tensors whose rows start
// on 16 bytes. activation_high.cu takes those without codes and sums, activation_any.cu rows that start anywhere.
//
// Forward   y = f(x)              x: [rows, H] of IN           y: [rows, H]
//           y = f(a) b            a, b: halves of [rows, 2H]
// Backward  dx = dy f'(x)         dy: [rows, H] of IN          dx: as x
//           da = dy b f'(a), db = dy f(a)
// The result is rounded once, from f32: to f32/f16/bf16, or times a scale to FP8, row-wise, transposed, or both. Beside it: the amax of
// the f32 values, and (backward) their column sums over the rows of a tile, which dbias.cu adds up.
//
// Launch: 256 threads per tile of 128 x 128 elements of the result (gated backward: of each half), linear grid, tiles of one row strip
// next to each other. H is a multiple of 8, so a vector never crosses the end of a row. A thread takes its eight rows four at a time (one
// loop body: half the code to compile); their loads are issued before anything waits, all eight rows where registers hold them.
// Bytes moved per element of the result: inputs once, each layout of the output once; column sums add 4/128.
//
// Two inputs to FP8 where shared memory is large (STAGED): both wait there, in slots of 16 bytes which the thread that asked for them
// reads again, so that no barrier is needed. Registers then hold no raw data, and 192 KiB are under way per multiprocessor.
//
// Small tensors to FP8 without column sums: activation_low, in tiles of 32 rows (see tile.cuh).
//
// Compile-time: ERF (1: gelu_erf, 0: all other functions), GATED, BACKWARD, IN, FP8 (the output), FORM (STAGED; HALO of the transposed codes: see
// tile.cuh; forward without a gate; LOW). Function and output type are uniform branches: they cost a few instructions per row, and a hundred
// modules less.
#include "common/activation.cuh"
#include "common/ptx_mma.cuh"

#define STAGED (FORM == 1)
#define HALO (FORM == 2)
#define LOW (FORM == 3)
#define V (IN == DT_F32 ? 4 : 8)
// Loads per row and input.
#define LOADS (8 / V)
#define INPUTS (1 + GATED + BACKWARD)
#define HALVES (GATED && BACKWARD ? 2 : 1)
// Rows whose loads are in flight together: 32 to 48 registers of raw data.
#define FLIGHT (STAGED ? 0 : INPUTS * LOADS == 1 ? 8 : INPUTS * LOADS <= 3 ? 4 : 2)
#define BATCH (STAGED ? 1 : FLIGHT < 4 ? FLIGHT : 4)

typedef Elem<IN>::T In;

DEVICE void unpack(const Vec16 (&raw)[LOADS], float (&v)[8]) {
#pragma unroll
  for (int n = 0; n < LOADS; n++) {
#pragma unroll
    for (int w = 0; w < 4; w++) {
      if (V == 8) unpack2<IN>(raw[n].w[w], v[2 * w], v[2 * w + 1]);
      else v[4 * n + w] = float_of(raw[n].w[w]);
    }
  }
}

struct Raw { Vec16 v[INPUTS][LOADS]; };

// Blocks per multiprocessor, which is to say registers: 64, 80, 128 or 255. Outside sm_90 and sm_100, newer versions of ptxas spill where the
// erf's longer code meets the most raw data; those devices have less bandwidth per multiprocessor, and one block less still feeds it.
#define TIGHT (ERF && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200))
#define TIGHTEST (TIGHT && (INPUTS * LOADS == 6 || (INPUTS * LOADS == 3 && __CUDA_ARCH__ >= 1200)))
#define EASY (!ERF && LOADS == 1 && __CUDA_ARCH__ == 900)
#define BLOCKS (EASY && INPUTS <= 2 ? 4 - BACKWARD : INPUTS * LOADS == 1 ? (ERF && __CUDA_ARCH__ != 900 ? 2 : 3) : TIGHTEST ? 1 : 2)

#if !LOW
#if FP8 && !GATED
// Asks L2 for a tile of the inputs.
DEVICE void ask_for(const ActivationParams &p, u32 index) {
  const u32 down = index / p.col_tiles;
  const i64 row = (i64)down * TILE, col = (i64)(index - down * p.col_tiles) * TILE;
  const int size = sizeof(In);
  const u32 rows = (u32)imin(TILE, p.rows - row), bytes = (u32)imin(TILE, p.hidden - col) * size;
  ask_for_tile<TILE * size>((const In *)p.x + row * p.ldx + col, p.ldx * size, rows, bytes);
  if (BACKWARD) ask_for_tile<TILE * size>((const In *)p.dy + row * p.lddy + col, p.lddy * size, rows, bytes);
}
#endif

extern "C" __global__ void __launch_bounds__(TILE_THREADS, BLOCKS) activation(const __grid_constant__ ActivationParams p) {
#if FP8 && !GATED
  if (blockIdx.x < p.early) ask_for(p, blockIdx.x);
#endif
  after_previous();
  u32 row_tile = blockIdx.x / p.col_tiles;
  i64 row0 = (i64)row_tile * TILE, col0 = (i64)(blockIdx.x - row_tile * p.col_tiles) * TILE;
  u32 rows_here[LOADS];  // rows of the tile in which the load lies inside the tensor
#pragma unroll
  for (int n = 0; n < LOADS; n++) rows_here[n] = col0 + tile_col<V>(n) < p.hidden ? (u32)imin(TILE, p.rows - row0) : 0;
  const In *x = (const In *)p.x + row0 * p.ldx + col0, *dy = (const In *)p.dy + row0 * p.lddy + col0;
  const Function f(p.kind);
  float amax = 0.0f, sum[HALVES][8] = {};
#if STAGED
  extern __shared__ __align__(1024) u8 slots[];  // [row][input][thread] of 16 bytes; then the transposed tile
  u8 *const tile = slots, *const mine = slots + threadIdx.x * 16;
#elif FP8
  __shared__ Vec16 tile[HALVES][(TILE * TILE + HALO * HALO_BYTES) / 16];
#endif
#if FP8
  float scale = output_scale(p);
#endif

  // Elements outside are read as zeros, and every function and derivative makes zeros of them: neutral for amax and sums.
  auto load = [&](u32 r) {
    Raw raw;
#pragma unroll
    for (int n = 0; n < LOADS; n++) {
#pragma unroll
      for (int k = 0; k < INPUTS; k++) raw.v[k][n] = Vec16{{0, 0, 0, 0}};
      if (r < rows_here[n]) {
        const In *from = x + (i64)r * p.ldx + tile_col<V>(n);
        raw.v[0][n] = ld16_stream(from);
        if (GATED) raw.v[1][n] = ld16_stream(from + p.hidden);
        if (BACKWARD) raw.v[INPUTS - 1][n] = ld16_stream(dy + (i64)r * p.lddy + tile_col<V>(n));
      }
    }
    return raw;
  };

  // Neighbouring row groups begin with opposite halves of their rows: see tile_put_half.
  const u32 group = threadIdx.x >> 4;
  u32 quad = 2 * group + (group & 1);
  Raw batch[BATCH];
#if STAGED
  u32 saved[4][2];
#pragma unroll 1
  for (u32 step = 0; step < 2; step++) {
    const u32 q = quad ^ step, slot = smem_u32(mine) + (q & 1) * 8 * TILE_THREADS * 16;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      u32 r = 4 * q + i;
      u32 bytes = r < rows_here[0] ? 16 : 0, to = slot + i * 2 * TILE_THREADS * 16;
      cp_async16(to, x + (i64)r * p.ldx + tile_col<V>(0), bytes);
      cp_async16(to + TILE_THREADS * 16, dy + (i64)r * p.lddy + tile_col<V>(0), bytes);
    }
    cp_async_commit();
  }
#endif
#if HALO
  // What lies outside is read as zeros here, too, or belongs to no column.
  Vec16 above[4] = {};  // of 16-bit types the lower half
  if (row0 && col0 + halo_col() < p.hidden) {
    const In *from = x + halo_row() * p.ldx + halo_col();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (V == 4) {
        above[i] = ld16_stream(from + i * p.ldx);
      } else {
        const Vec8 four = ld8(from + i * p.ldx);
        above[i].w[0] = four.w[0], above[i].w[1] = four.w[1];
      }
    }
  }
#endif
#if FLIGHT == 8
  Raw later[4];
#pragma unroll
  for (int i = 0; i < 4; i++) batch[i] = load(4 * quad + i);
#pragma unroll
  for (int i = 0; i < 4; i++) later[i] = load(4 * (quad ^ 1) + i);
#endif
#if FP8 && INPUTS == 1 && !HALO
  if (p.ahead && blockIdx.x + p.ahead < gridDim.x) ask_for(p, blockIdx.x + p.ahead);
#endif
#pragma unroll 1
  for (u32 step = 0; step < 2; step++, quad ^= 1) {
    const u32 row = 4 * quad;
#if FP8
    u32 code[HALVES][4][2];
#endif
#if STAGED
    if (step == 0) cp_async_wait<1>();
    else cp_async_wait<0>();
    const u8 *from = mine + (quad & 1) * 8 * TILE_THREADS * 16;
#endif
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if STAGED
      batch[0].v[0][0] = *(const Vec16 *)(from + i * 2 * TILE_THREADS * 16);
      batch[0].v[INPUTS - 1][0] = *(const Vec16 *)(from + (i * 2 + 1) * TILE_THREADS * 16);
#elif FLIGHT < 8
      if (i % BATCH == 0) {
#pragma unroll
        for (int k = 0; k < BATCH; k++) batch[k] = load(row + i + k);
      }
#endif
      float in[INPUTS][8], v[HALVES][8];
#pragma unroll
      for (int k = 0; k < INPUTS; k++) unpack(batch[i % BATCH].v[k], in[k]);
      apply(f, in, v);
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
          amax = max_nan(amax, fabsf(v[h][j]));
          if (BACKWARD) sum[h][j] += v[h][j];
        }
        i64 at = (row0 + anew(row + i)) * p.ldy + h * p.hidden + col0;
#if FP8
        u32(&w)[2] = code[h][i];
        bool e5m2 = p.y_type == DT_E5M2;
        w[0] = f32x4_to_fp8x4_any(e5m2, v[h][0] * scale, v[h][1] * scale, v[h][2] * scale, v[h][3] * scale);
        w[1] = f32x4_to_fp8x4_any(e5m2, v[h][4] * scale, v[h][5] * scale, v[h][6] * scale, v[h][7] * scale);
        if (p.y) {
          if (V == 8) {
            if (row + i < rows_here[0]) st8(p.y + at + tile_col<V>(0), Vec8{{w[0], w[1]}});
          } else {
#pragma unroll
            for (int n = 0; n < LOADS; n++)
              if (row + i < rows_here[n]) st4(p.y + at + tile_col<V>(n), w[n]);
          }
        }
#else
#pragma unroll
        for (int n = 0; n < LOADS; n++)
          if (row + i < rows_here[n]) store_high<V>(p.y + (at + tile_col<V>(n)) * (p.y_type == DT_F32 ? 4 : 2), p.y_type, v[h] + V * n);
#endif
      }
    }
#if STAGED
    if (step == 0) {
#pragma unroll
      for (int i = 0; i < 4; i++) saved[i][0] = code[0][i][0], saved[i][1] = code[0][i][1];
      continue;
    }
    if (p.yt) {
      __syncthreads();  // the slots have been read
      tile_put_half<V>(tile, saved, (quad ^ 1) & 1, quad >> 1);
      tile_put_half<V>(tile, code[0], quad & 1, quad >> 1);
    }
#elif FP8
    if (p.yt) {
#pragma unroll
      for (int h = 0; h < HALVES; h++) tile_put_half<V>((u8 *)tile[h], code[h], quad & 1, quad >> 1);
    }
#endif
#if FLIGHT == 8
#pragma unroll
    for (int i = 0; i < 4; i++) batch[i] = later[i];
#endif
  }
#if HALO
  {
    u32 codes[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float in[INPUTS][4], v[HALVES][4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        if (V == 4) in[0][j] = float_of(above[i].w[j]);
        else if (j % 2 == 0) unpack2<IN>(above[i].w[j / 2], in[0][j], in[0][j + 1]);
      }
      apply(f, in, v);
      codes[i] = f32x4_to_fp8x4_any(p.y_type == DT_E5M2, v[0][0] * scale, v[0][1] * scale, v[0][2] * scale, v[0][3] * scale);
    }
    halo_put((u8 *)tile[0], codes);
  }
#endif
  // One barrier for all that the block shares.
  __shared__ u32 maxima[TILE_THREADS / 32];
  leave_amax(maxima, amax);
#if BACKWARD
  // Sixteen row groups per column: two meet in a shuffle, the eight warps in shared memory.
  __shared__ float part[HALVES][8][TILE];
  if (p.sums) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
      for (int j = 0; j < 8; j++) {
        float s = sum[h][j] + __shfl_xor_sync(0xFFFFFFFFu, sum[h][j], 16);
        if ((threadIdx.x & 16) == 0) part[h][threadIdx.x >> 5][tile_col<V>(j >> 2) + (j & 3)] = s;
      }
    }
  }
#endif
  __syncthreads();
#if BACKWARD
  u32 h = threadIdx.x / TILE, c = threadIdx.x % TILE;
  if (p.sums && h < HALVES && col0 + c < p.hidden) {
    float s = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; k++) s += part[h][k][c];
    p.sums[((i64)row_tile * HALVES + h) * p.hidden + col0 + c] = s;
  }
#endif
  finish_amax(p, maxima);
#if STAGED
  if (p.yt) tile_store_transposed<V>(tile, p.yt, p.ldyt, row0, col0, p.rows, p.hidden);
#elif HALO
  halo_store<V>((u8 *)tile[0], p.yt, p.ldyt, row0, col0, p.rows, p.hidden, false);
#elif FP8
  if (p.yt) {
#pragma unroll
    for (int h = 0; h < HALVES; h++)
      tile_store_transposed<V>((u8 *)tile[h], p.yt + h * p.hidden * p.ldyt, p.ldyt, row0, col0, p.rows, p.hidden);
  }
#endif
}
#endif

#if LOW
extern "C" __global__ void __launch_bounds__(TILE_THREADS) activation_low(const __grid_constant__ ActivationParams p) {
  const LowTile at(p.rows, p.hidden, p.col_tiles);
  const In *const x = (const In *)p.x + at.row * p.ldx + at.col, *const dy = (const In *)p.dy + at.row * p.lddy + at.col;
  at.ask(x, p.ldx);
  if (GATED) at.ask(x + p.hidden, p.ldx);
  if (BACKWARD) at.ask(dy, p.lddy);
  after_previous();
  __shared__ u32 words[HALVES][LOW_WORDS];
  __shared__ u32 maxima[TILE_THREADS / 32];
  // Zeros outside, as above.
  u32 raw[INPUTS][4][sizeof(In)];
  low_load(x, p.ldx, at.here, raw[0]);
  if (GATED) low_load(x + p.hidden, p.ldx, at.here, raw[GATED]);
  if (BACKWARD) low_load(dy, p.lddy, at.here, raw[INPUTS - 1]);
  const float scale = output_scale(p);
  const Function f(p.kind);
  const bool e5m2 = p.y_type == DT_E5M2;
  char *const y = p.y + at.row * p.ldy + at.col;
  float amax = 0.0f;
  u32 code[HALVES][4];
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    float in[INPUTS][4], v[HALVES][4];
#pragma unroll
    for (int k = 0; k < INPUTS; k++) low_unpack<IN>(raw[k][i], in[k]);
    apply(f, in, v);
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
      for (int j = 0; j < 4; j++) amax = max_nan(amax, fabsf(v[h][j]));
      code[h][i] = f32x4_to_fp8x4_any(e5m2, v[h][0] * scale, v[h][1] * scale, v[h][2] * scale, v[h][3] * scale);
      if (p.y && i < at.here) st4(y + i * p.ldy + h * p.hidden, code[h][i]);
    }
  }
#pragma unroll
  for (int h = 0; h < HALVES; h++) low_put(words[h], code[h]);
  leave_amax(maxima, amax);
  __syncthreads();
  finish_amax(p, maxima);
  if (!p.yt) return;
#pragma unroll
  for (int h = 0; h < HALVES; h++) low_store(words[h], p.yt + h * p.hidden * p.ldyt, p.ldyt, at.row0, at.col0, p.rows, p.hidden);
}
#endif
