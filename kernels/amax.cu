// amax: the largest |x| of [rows, cols] of IN with row stride ldx, as a bit pattern (NaN > inf > finite).
//
// A grid that just fills the device walks over the tiles; each block ends with one atomic maximum into `amax`, or, as the first half of
// current scaling, leaves its own maximum in partials[block] (no zeroed memory is needed for that). Bytes moved: the input.
//   amax_tile  tiles of 128 rows of 16 loads of 16 bytes, one to 256 threads: base and row stride are multiples of 16 bytes, cols of the load.
//   amax_any   128 x 64 tiles, single elements: every other stride and alignment.
// A contiguous tensor arrives as rows of 128; `last` and `tail` take what is left over.
//
// What current scaling reads again is found in L2 as far as that kept it: the end of x, from where the cast walks backwards. What lies ahead of it
// is read as the first to leave, so that it does not push out that end while it is read.
#include "common/tile.cuh"

typedef Elem<IN>::T In;
#define V TileVec<IN>::V
#define MOST_THREADS 1024

struct AmaxParams {
  const In *x;
  float *amax;     // null: partials are wanted
  u32 *partials;
  i64 ldx, rows, cols;
  i64 last;        // columns of the last row
  u32 col_tiles, tiles;
  u32 tail;        // elements behind the last row
  u32 keep_from;   // tiles before this one are the first to leave the cache
};

DEVICE void finish(const AmaxParams &p, u32 amax) {
  amax = block_max<MOST_THREADS>(amax);
  if (threadIdx.x) return;
  if (!p.amax) p.partials[blockIdx.x] = amax;
  else if (amax) record_amax(p.amax, amax);
}

// Asks L2 for half of what a block of 1024 threads reads first: a thread for a line of 128 bytes.
DEVICE void ask_for_first(const AmaxParams &p) {
  const u32 group = threadIdx.x / TILE_THREADS, thread = threadIdx.x % TILE_THREADS, t = blockIdx.x * (blockDim.x / TILE_THREADS) + group;
  const i64 row = (i64)(t / p.col_tiles) * TILE + thread / 2, col = (i64)(t % p.col_tiles) * (16 * V) + thread % 2 * (8 * V);
  if (group >= 2 || t >= p.tiles || row >= p.rows || col >= (row < p.rows - 1 ? p.cols : p.last)) return;
  ask_for_line(p.x + row * p.ldx + col);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1) amax_tile(const __grid_constant__ AmaxParams p) {
  ask_for_first(p);
  after_previous_before_next();
  const u32 groups = blockDim.x / TILE_THREADS, thread = threadIdx.x % TILE_THREADS;
  const u32 tile_row = thread / 16 * 8, tile_col = thread % 16 * V;
  Largest<IN> largest;
#pragma unroll 1
  for (u32 first = blockIdx.x * groups; first < p.tiles; first += gridDim.x * groups) {
    const u64 policy = first >= p.keep_from ? NORMAL_LINES : FIRST_LINES;
    const u32 t = first + threadIdx.x / TILE_THREADS;
    const i64 row = (i64)(t / p.col_tiles) * TILE + tile_row, col = (i64)(t % p.col_tiles) * (16 * V) + tile_col;
    const i64 rows_here = col >= p.cols ? 0 : col < p.last ? p.rows : p.rows - 1;
    const In *from = p.x + row * p.ldx + col;
    Vec16 raw[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      raw[i] = Vec16{{0, 0, 0, 0}};
      if (row + i < rows_here) raw[i] = ld16_policy(from + i * p.ldx, policy);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) largest.take(raw[i]);
  }
  u32 amax = largest.bits();
  if (blockIdx.x == 0 && threadIdx.x < p.tail) amax = umax(amax, abs_bits(Elem<IN>::load(p.x[(p.rows - 1) * TILE + p.last + threadIdx.x])));
  finish(p, amax);
}

#define ANY_COLS 64

extern "C" __global__ void __launch_bounds__(TILE_THREADS) amax_any(const __grid_constant__ AmaxParams p) {
  after_previous_before_next();
  u32 tx = threadIdx.x & 63, ty = threadIdx.x >> 6, amax = 0;
#pragma unroll 1
  for (u32 t = blockIdx.x; t < p.tiles; t += gridDim.x) {
    i64 row0 = (i64)(t / p.col_tiles) * TILE, col = (i64)(t % p.col_tiles) * ANY_COLS + tx;
    i64 rows_here = imin(TILE, (col >= p.cols ? 0 : col < p.last ? p.rows : p.rows - 1) - row0);
    const In *from = p.x + (row0 + ty) * p.ldx + col;
#pragma unroll 1
    for (u32 r = ty; r < TILE; r += 32, from += 32 * p.ldx) {
      float v[8];
#pragma unroll
      for (u32 i = 0; i < 8; i++) v[i] = r + 4 * i < rows_here ? Elem<IN>::load(from[4 * i * p.ldx]) : 0.0f;
#pragma unroll
      for (u32 i = 0; i < 8; i++) amax = umax(amax, abs_bits(v[i]));
    }
  }
  finish(p, amax);
}
