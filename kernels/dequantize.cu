// Dequantize: y = f32(q) * scale_inv, rounded once to OUT. q: [rows, cols] of IN (FP8) with row stride ldq, or, where only the
// transposed copy is present, qt: [cols, rows] with row stride ldq. y: [rows, cols] of OUT with row stride ldy.
//
// One block of 256 threads per 128 x 128 tile of the codes. Bytes moved per element: 1 + sizeof(OUT).
//   dequantize_tile    from row-wise codes, 8-byte loads and 16-byte stores; bases and strides are multiples of those, cols of the load.
//   dequantize_tile_t  from transposed codes, by way of shared memory; rows are a multiple of 8.
//   dequantize_any     from either, single elements: every other stride and alignment; tiles of 64 x 64.
// A contiguous tensor arrives at dequantize_tile as rows of 128; `last` and `tail` take what is left over.
#include "common/tile.cuh"

typedef Elem<OUT>::T Out;
#define V TileVec<OUT>::V
#define N (8 / V)

struct DequantizeParams {
  const u8 *q;             // row-wise or transposed codes
  Out *y;
  const float *scale_inv;
  i64 ldq, ldy, rows, cols;
  i64 last;                // columns of the last row
  u32 col_tiles;           // tiles along cols
  u32 tail;                // elements behind the last row
  u32 transposed, pad;
};

DEVICE float factor_of(const DequantizeParams &p) { return p.scale_inv ? *p.scale_inv : 1.0f; }

// Four codes to four values.
DEVICE void decode4(u32 codes, float factor, float (&v)[4]) {
  u32 lo = fp8x2_to_f16x2<IN>(codes & 0xFFFFu), hi = fp8x2_to_f16x2<IN>(codes >> 16);
  v[0] = f16_to_f32((u16)lo) * factor;
  v[1] = f16_to_f32((u16)(lo >> 16)) * factor;
  v[2] = f16_to_f32((u16)hi) * factor;
  v[3] = f16_to_f32((u16)(hi >> 16)) * factor;
}

// Four values as f32, or eight of a 16-bit type, to 16 bytes.
DEVICE Vec16 pack_f32(u32 codes, float factor) {
  float v[4];
  decode4(codes, factor, v);
  return Vec16{{bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3])}};
}
DEVICE Vec16 pack_16(u32 lo, u32 hi, float factor) {
  float a[4], b[4];
  decode4(lo, factor, a);
  decode4(hi, factor, b);
  return Vec16{{pack2<OUT>(a[0], a[1]), pack2<OUT>(a[2], a[3]), pack2<OUT>(b[0], b[1]), pack2<OUT>(b[2], b[3])}};
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS) dequantize_tile(const __grid_constant__ DequantizeParams p) {
  after_previous();
  u32 index = blockIdx.x;
  i64 row = (i64)(index / p.col_tiles) * TILE + tile_row(), col0 = (i64)(index % p.col_tiles) * TILE;
  u32 code[8][2];
  i64 rows_here[N];
#pragma unroll
  for (int n = 0; n < N; n++) {
    i64 c = col0 + tile_col<V>(n);
    rows_here[n] = c >= p.cols ? 0 : c < p.last ? p.rows : p.rows - 1;
    const u8 *from = p.q + row * p.ldq + c;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      bool inside = row + i < rows_here[n];
      if (V == 8) {
        Vec8 both = {{0, 0}};
        if (inside) both = ld8_stream(from + i * p.ldq);
        code[i][0] = both.w[0], code[i][1] = both.w[1];
      } else {
        code[i][n] = inside ? ld4_stream(from + i * p.ldq) : 0;
      }
    }
  }
  float factor = factor_of(p);
#pragma unroll
  for (int n = 0; n < N; n++) {
    Out *to = p.y + row * p.ldy + col0 + tile_col<V>(n);
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (row + i < rows_here[n]) st16(to + i * p.ldy, V == 8 ? pack_16(code[i][0], code[i][1], factor) : pack_f32(code[i][n], factor));
  }
  if (index == gridDim.x - 1 && threadIdx.x < p.tail) {
    i64 at = (p.rows - 1) * TILE + p.last + threadIdx.x;
    p.y[at] = Elem<OUT>::store(fp8_to_f32<IN>(p.q[at]) * factor);
  }
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS) dequantize_tile_t(const __grid_constant__ DequantizeParams p) {
  after_previous();
  __shared__ Vec16 shared[TILE * TILE / 16];
  u8 *tile = (u8 *)shared;
  u32 index = blockIdx.x;
  i64 row0 = (i64)(index / p.col_tiles) * TILE, col0 = (i64)(index % p.col_tiles) * TILE;
  u32 code[8][2];
  // Rows of the codes are columns of the output.
  i64 r = row0 + tile_col<8>(0), c = col0 + tile_row();
  const u8 *from = p.q + c * p.ldq + r;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    Vec8 both = {{0, 0}};
    if (c + i < p.cols && r < p.rows) both = ld8_stream(from + i * p.ldq);
    code[i][0] = both.w[0], code[i][1] = both.w[1];
  }
  tile_put<8>(tile, code);
  float factor = factor_of(p);
  __syncthreads();
  u32 k = threadIdx.x & 15;
  i64 col = col0 + 8 * k;
  if (col >= p.cols) return;
#pragma unroll 1
  for (u32 i = threadIdx.x >> 4; i < TILE && row0 + i < p.rows; i += TILE_THREADS / 16) {
    Vec8 v = tile_get8<8>(tile, i, k);
    Out *to = p.y + (row0 + i) * p.ldy + col;
    if (col + 8 <= p.cols) {
      if (V == 8) {
        st16(to, pack_16(v.w[0], v.w[1], factor));
      } else {
        st16(to, pack_f32(v.w[0], factor));
        st16(to + 4, pack_f32(v.w[1], factor));
      }
    } else {
#pragma unroll
      for (u32 b = 0; b < 8; b++)
        if (col + b < p.cols) to[b] = Elem<OUT>::store(fp8_to_f32<IN>((u8)(v.w[b >> 2] >> 8 * (b & 3))) * factor);
    }
  }
}

#define ANY 64

extern "C" __global__ void __launch_bounds__(TILE_THREADS) dequantize_any(const __grid_constant__ DequantizeParams p) {
  after_previous();
  __shared__ u8 tile[ANY][ANY + 4];
  u32 index = blockIdx.x, tx = threadIdx.x & 63, ty = threadIdx.x >> 6;
  i64 row0 = (i64)(index / p.col_tiles) * ANY, col0 = (i64)(index % p.col_tiles) * ANY;
  // tile[r][c], read along whichever way the codes lie.
  u32 height = (u32)imin(ANY, p.rows - row0), width = (u32)imin(ANY, p.cols - col0);
  if (p.transposed) {
    if (tx < height)
#pragma unroll 4
      for (u32 c = ty; c < width; c += 4) tile[tx][c] = p.q[(col0 + c) * p.ldq + row0 + tx];
  } else {
    if (tx < width)
#pragma unroll 4
      for (u32 r = ty; r < height; r += 4) tile[r][tx] = p.q[(row0 + r) * p.ldq + col0 + tx];
  }
  float factor = factor_of(p);
  __syncthreads();
  if (tx < width)
#pragma unroll 4
    for (u32 r = ty; r < height; r += 4) p.y[(row0 + r) * p.ldy + col0 + tx] = Elem<OUT>::store(fp8_to_f32<IN>(tile[r][tx]) * factor);
}
