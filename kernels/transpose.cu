// Transpose of FP8 codes (bytes of either format): out[c, r] = in[r, c]. in: [rows, cols] with stride ld; out: [cols, rows] with stride ldt.
// The scale_inv that belongs to the codes is copied along.
//
// One block of 256 threads per tile of 128 x 128, through shared memory. Bytes moved per element: 2.
//   transpose_tile  8-byte loads: `in` and ld are multiples of 8, cols too.
//   transpose_any   every other stride and alignment, by way of quads.cuh.
// HALO: columns of `out` begin at no multiple of 32 (see tile.cuh).
#include "common/tile.cuh"

struct TransposeParams {
  const u8 *in;
  u8 *out;
  const float *scale_inv;
  float *scale_inv_out;  // null: not copied
  i64 ld, ldt, rows, cols;
  u32 col_tiles, empty;  // empty: only scale_inv is copied
  u32 newest_first;      // from the last tile to the first: where the last rows were written last, they are found in the cache
};

DEVICE void copy_scale_inv(const TransposeParams &p) {
  if (blockIdx.x == 0 && threadIdx.x == 0 && p.scale_inv_out) *p.scale_inv_out = *p.scale_inv;
}

#define ROOM (TILE * TILE + HALO * HALO_BYTES)

extern "C" __global__ void __launch_bounds__(TILE_THREADS, HALO ? 4 : 8) transpose_tile(const __grid_constant__ TransposeParams p) {
  after_previous();
  __shared__ Vec16 shared[ROOM / 16];
  u8 *tile = (u8 *)shared;
  const u32 block = p.newest_first ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  i64 row0 = (i64)(block / p.col_tiles) * TILE, col0 = (i64)(block % p.col_tiles) * TILE;
  i64 row = row0 + tile_row(), col = col0 + tile_col<8>(0);
  const u8 *from = p.in + row * p.ld + col;
  // Codes that were just made make room in L2 for those that were not read yet.
  const u64 policy = p.newest_first ? FIRST_LINES : NORMAL_LINES;
  u32 code[8][2];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    Vec8 both = {{0, 0}};
    if (row + i < p.rows && col < p.cols) both = ld8_policy(from + i * p.ld, policy);
    code[i][0] = both.w[0], code[i][1] = both.w[1];
  }
#if HALO
  u32 above[4];
#pragma unroll
  for (int i = 0; i < 4; i++)
    above[i] = row0 && col0 + halo_col() < p.cols ? ld4(p.in + (row0 + halo_row() + i) * p.ld + col0 + halo_col()) : 0;
#endif
  copy_scale_inv(p);
  tile_put<8>(tile, code);
#if HALO
  halo_put(tile, above);
#endif
  __syncthreads();
  const u64 past = store_policy(beyond_cache(p.rows, p.cols, 1));
#if HALO
  halo_store<8>(tile, p.out, p.ldt, row0, col0, p.rows, p.cols, past);
#else
  tile_store_transposed<8>(tile, p.out, p.ldt, row0, col0, p.rows, p.cols, past);
#endif
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS, 4 - (HALO && __CUDA_ARCH__ >= 1000)) transpose_any(const __grid_constant__ TransposeParams p) {
  after_previous();
  __shared__ Vec16 shared[ROOM / 16];
  u8 *tile = (u8 *)shared;
  copy_scale_inv(p);
  if (p.empty) return;
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 row0 = (i64)(blockIdx.x / p.col_tiles) * TILE, col0 = (i64)(blockIdx.x % p.col_tiles) * TILE, col = col0 + 4 * lane;
  const u32 n = quad_size(p.cols, col);
#if HALO
  if (row0) {
    const i64 row = row0 + halo_row();
    const bool inner = row > 0 && col0 + TILE <= p.cols;
    const u8 *from = p.in + row * p.ld + col;
    Quad<1> raw[4];
    u32 code[4];
#pragma unroll
    for (int i = 0; i < 4; i++) raw[i].load(inner, from + i * p.ld, n);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 w[1];
      raw[i].get(w, inner, from + i * p.ld);
      code[i] = w[0];
    }
    halo_put(tile, code);
  }
#endif
#pragma unroll 1
  for (u32 r = 16 * warp; r < 16 * warp + 16; r += 8) {
    const i64 row = row0 + r;
    if (row >= p.rows) break;
    const bool inner = row > 0 && row + 8 < p.rows && col0 + TILE <= p.cols;
    Quad<1> raw[8];
    u32 code[8];
    const u8 *from = p.in + row * p.ld + col;
#pragma unroll
    for (int i = 0; i < 8; i++) raw[i].load(inner, from + i * p.ld, row + i < p.rows ? n : 0);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u32 w[1];
      raw[i].get(w, inner, from + i * p.ld);
      code[i] = w[0];
    }
    transpose4(code[0], code[1], code[2], code[3]);
    transpose4(code[4], code[5], code[6], code[7]);
#pragma unroll
    for (u32 j = 0; j < 4; j++) *(Vec8 *)(tile + (4 * lane + j) * TILE + ((r / 8) ^ tile_key<4>(4 * lane)) * 8) = Vec8{{code[j], code[j + 4]}};
  }
  __syncthreads();
#if HALO
  halo_store<4>(tile, p.out, p.ldt, row0, col0, p.rows, p.cols, store_policy(beyond_cache(p.rows, p.cols, 1)));
#else
  tile_store_transposed<4>(tile, p.out, p.ldt, row0, col0, p.rows, p.cols);
#endif
}
