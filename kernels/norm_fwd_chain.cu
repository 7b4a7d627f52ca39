// LayerNorm (RMS = 0) and RMSNorm (RMS = 1) forward to FP8 in both layouts, for tensors whose codes L2 cannot hold: one of a chain of launches.
// Each makes the codes of some rows, as norm_fwd_row.cu does, and transposes those of the launch before it, tile by tile as transpose.cu
// does, which L2 then still holds. The rows: common/norm_row.cuh.
//
// Bytes moved per element: sizeof(X) + 2 beyond L2; one more within it.
//
// Blocks come in an order that keeps both kinds under way: `lead` blocks of rows, then one tile after every `per_tile` of them. Only the first
// launch has to wait before it reads x: rows need nothing of the launches before theirs, and take the places of their last blocks while
// these run. Tiles wait for the launch that made their codes.
// L2 is for codes.
#define X_LINES FIRST_LINES
#include "common/norm_row.cuh"
#include "common/tile.cuh"

struct ChainArgs {
  Args norm;             // of the whole tensor
  i64 row, rows;         // whose codes are made
  i64 tile_row, tiled;   // rows whose codes are transposed: multiples of 16
  u32 col_tiles, lead, per_tile;
  u32 waits;             // the first launch
};

// The block's part: a tile, or the rows of a block of norm_fwd_row.
struct Part { bool tile; u32 index; };
DEVICE Part part_of(const ChainArgs &p) {
  if (blockIdx.x < p.lead) return {false, blockIdx.x};
  const u32 i = blockIdx.x - p.lead, period = p.per_tile + 1, turn = i / period, place = i - turn * period;
  return place == p.per_tile ? Part{true, turn} : Part{false, p.lead + turn * p.per_tile + place};
}

// Every block of the next launch may begin once all of this one have.
DEVICE bool waits(const ChainArgs &p) { return p.waits || part_of(p).tile; }
DEVICE void before_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

DEVICE void rows_of(const ChainArgs &p, u32 index) {
  const bool alone = p.norm.warps == 1;
  const i64 i = alone ? (i64)index * (blockDim.x >> 5) + (threadIdx.x >> 5) : index;
  if (i < p.rows) forward_row(p.norm, p.row + i, [] { return NORMAL_LINES; });
}

// As many threads as there are: sixteen take eight rows of the tile at a time.
DEVICE void tile_of(const ChainArgs &p, u32 index) {
  __shared__ Vec16 shared[TILE * TILE / 16];
  u8 *tile = (u8 *)shared;
  const Args &a = p.norm;
  const i64 row0 = p.tile_row + (i64)(index / p.col_tiles) * TILE, col0 = (i64)(index % p.col_tiles) * TILE, col = col0 + tile_col<8>(0);
  const u32 here = (u32)imin(TILE, p.tile_row + p.tiled - row0), width = (u32)imin(TILE, a.hidden - col0);
#pragma unroll 2
  for (u32 k = threadIdx.x >> 4; 8 * k < here; k += blockDim.x >> 4) {
    const u8 *from = a.y + (row0 + 8 * k) * a.ldy + col;
    u32 code[8][2];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      Vec8 both = {{0, 0}};
      // They make room in L2 for codes that were not read yet.
      if (col < a.hidden) both = ld8_policy(from + i * a.ldy, FIRST_LINES);
      code[i][0] = both.w[0], code[i][1] = both.w[1];
    }
    tile_put<8>(tile, code, k);
  }
  __syncthreads();
  const u32 k = threadIdx.x & 7;
  if (16 * k >= here) return;
  u8 *out = a.yt + col0 * a.ldyt + row0 + 16 * k;
#pragma unroll 4
  for (u32 c = threadIdx.x >> 3; c < width; c += blockDim.x >> 3) st16(out + c * a.ldyt, tile_get16<8>(tile, c, k), FIRST_LINES);
}

extern "C" __global__ void __launch_bounds__(256, OCTETS == 5 ? 3 : 4) norm_fwd_chain(const __grid_constant__ ChainArgs p) {
  if (waits(p)) after_previous_before_next();
  else before_next();
  const Part part = part_of(p);
  if (p.waits) put_scale_inv(p.norm);
  if (part.tile) tile_of(p, part.index);
  else rows_of(p, part.index);
}
