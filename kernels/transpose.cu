// Transpose of FP8 codes (bytes of either format): out[c, r] = in[r, c]. in: [rows, cols] with stride ld; out: [cols, rows] with stride ldt.
// The scale_inv that belongs to the codes is copied along.
//
// One block of 256 threads per tile, through shared memory. Bytes moved per element: 2.
//   transpose_tile  128 x 128, 8-byte loads, 128-byte segments out: `in` and ld are multiples of 8, `out` and ldt of 16, cols of 8.
//   transpose_any   64 x 64, single bytes: every other stride and alignment.
#include "common/tile.cuh"

struct TransposeParams {
  const u8 *in;
  u8 *out;
  const float *scale_inv;
  float *scale_inv_out;  // null: not copied
  i64 ld, ldt, rows, cols;
  u32 col_tiles, empty;  // empty: only scale_inv is copied
};

DEVICE void copy_scale_inv(const TransposeParams &p) {
  if (blockIdx.x == 0 && threadIdx.x == 0 && p.scale_inv_out) *p.scale_inv_out = *p.scale_inv;
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS) transpose_tile(const __grid_constant__ TransposeParams p) {
  after_previous();
  __shared__ Vec16 shared[TILE * TILE / 16];
  u8 *tile = (u8 *)shared;
  i64 row0 = (i64)(blockIdx.x / p.col_tiles) * TILE, col0 = (i64)(blockIdx.x % p.col_tiles) * TILE;
  i64 row = row0 + tile_row(), col = col0 + tile_col<8>(0);
  const u8 *from = p.in + row * p.ld + col;
  u32 code[8][2];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    Vec8 both = {{0, 0}};
    if (row + i < p.rows && col < p.cols) both = ld8_stream(from + i * p.ld);
    code[i][0] = both.w[0], code[i][1] = both.w[1];
  }
  copy_scale_inv(p);
  tile_put<8>(tile, code);
  __syncthreads();
  tile_store_transposed<8>(tile, p.out, p.ldt, row0, col0, p.rows, p.cols);
}

#define ANY 64

extern "C" __global__ void __launch_bounds__(TILE_THREADS) transpose_any(const __grid_constant__ TransposeParams p) {
  after_previous();
  __shared__ u8 tile[ANY][ANY + 4];
  copy_scale_inv(p);
  if (p.empty) return;
  u32 tx = threadIdx.x & 63, ty = threadIdx.x >> 6;
  i64 row0 = (i64)(blockIdx.x / p.col_tiles) * ANY, col0 = (i64)(blockIdx.x % p.col_tiles) * ANY;
  u32 height = (u32)imin(ANY, p.rows - row0), width = (u32)imin(ANY, p.cols - col0);
  if (tx < width)
#pragma unroll 4
    for (u32 r = ty; r < height; r += 4) tile[r][tx] = p.in[(row0 + r) * p.ld + col0 + tx];
  __syncthreads();
  if (tx < height)
#pragma unroll 4
    for (u32 c = ty; c < width; c += 4) p.out[(col0 + c) * p.ldt + row0 + tx] = tile[tx][c];
}
