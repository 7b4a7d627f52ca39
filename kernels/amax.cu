// amax: the largest |x| of [rows, cols] of IN with row stride ldx, as a bit pattern (NaN > inf > finite).
//
// A grid that just fills the device walks over the tiles; each block ends with one atomic maximum into `amax`, or, as the first half of
// current scaling, leaves its own maximum in partials[block] (no zeroed memory is needed for that). Bytes moved: the input.
//   amax_tile  128 x 128 tiles, 16-byte loads: base and row stride are multiples of 16 bytes, cols of the load.
//   amax_any   128 x 64 tiles, single elements: every other stride and alignment.
// A contiguous tensor arrives as rows of 128; `last` and `tail` take what is left over.
#include "common/tile.cuh"

typedef Elem<IN>::T In;
#define V TileVec<IN>::V
#define N (8 / V)

struct AmaxParams {
  const In *x;
  float *amax;     // null: partials are wanted
  u32 *partials;
  i64 ldx, rows, cols;
  i64 last;        // columns of the last row
  u32 col_tiles, tiles;
  u32 tail;        // elements behind the last row
  u32 keep_from;   // the cache is asked to keep tiles from this one on, for the cast that follows
};

DEVICE void finish(const AmaxParams &p, u32 amax) {
  amax = block_max<TILE_THREADS>(amax);
  if (threadIdx.x) return;
  if (!p.amax) p.partials[blockIdx.x] = amax;
  else if (amax) record_amax(p.amax, amax);
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS, IN == DT_F32 ? 2 : 4) amax_tile(const __grid_constant__ AmaxParams p) {
  after_previous_before_next();
  u32 amax = 0;
#pragma unroll 1
  for (u32 t = blockIdx.x; t < p.tiles; t += gridDim.x) {
    i64 row = (i64)(t / p.col_tiles) * TILE + tile_row(), col0 = (i64)(t % p.col_tiles) * TILE;
    const u64 last = evict_last(), normal = evict_normal(), policy = t >= p.keep_from ? last : normal;
    Vec16 raw[8][N];
#pragma unroll
    for (int n = 0; n < N; n++) {
      i64 c = col0 + tile_col<V>(n);
      i64 rows_here = c >= p.cols ? 0 : c < p.last ? p.rows : p.rows - 1;
      const In *from = p.x + row * p.ldx + c;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        raw[i][n] = Vec16{{0, 0, 0, 0}};
        if (row + i < rows_here) raw[i][n] = ld16_policy(from + i * p.ldx, policy);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int w = 0; w < 4; w++) {
          u32 word = raw[i][n].w[w];
          if (IN == DT_F32) {
            amax = umax(amax, word & 0x7FFFFFFFu);
          } else {
            float lo, hi;
            unpack2<IN>(word, lo, hi);
            amax = umax(amax, umax(abs_bits(lo), abs_bits(hi)));
          }
        }
  }
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
