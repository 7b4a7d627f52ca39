// What activation.cu computes, for tensors of any stride, alignment and mixture of types.
//
// Launch: 256 threads per tile of 128 x 128 elements of the result (gated backward: of each half), linear grid; warp w takes sixteen rows
// from 16w on, four at a time, a lane four columns (see quads.cuh). Bytes moved: as in activation.cu.
// Compile-time: INPUTS, one (forward), two (gated forward, or backward) or three (gated backward). All else is a uniform branch.
// The same functions as in activation.cu: equal bits for equal inputs.
#include "common/activation.cuh"

#define HALVES (INPUTS == 3 ? 2 : 1)
#define ROWS 4
// Rows whose loads are under way together.
#define FLIGHT (INPUTS == 1 ? 4 : 2)

struct Four { float v[4]; };

// An input: a matrix of f32 or of a 16-bit type.
struct Input {
  const u8 *begin;
  i64 step;  // bytes from row to row
  i32 type;

  DEVICE Input(const void *p, i32 dtype, i64 ld) : begin((const u8 *)p), step(dtype == DT_F32 ? 4 * ld : 2 * ld), type(dtype) {}
  DEVICE const u8 *at(i64 row, i64 col) const { return begin + row * step + (type == DT_F32 ? 4 * col : 2 * col); }
  DEVICE void load(u32 (&raw)[4], bool inner, const u8 *at, u32 n) const {
    if (type == DT_F32) ((Quad<4> &)raw).load(inner, at, n);
    else ((Quad<2> &)raw).load(inner, at, n);
  }
  DEVICE Four get(u32 (&raw)[4], bool inner, const u8 *at) const {
    if (type == DT_F32) return Four{{float_of(raw[0]), float_of(raw[1]), float_of(raw[2]), float_of(raw[3])}};
    u32 w[2];
    ((Quad<2> &)raw).get(w, inner, at);
    Four f;
    if (type == DT_BF16) unpack2<DT_BF16>(w[0], f.v[0], f.v[1]), unpack2<DT_BF16>(w[1], f.v[2], f.v[3]);
    else unpack2<DT_F16>(w[0], f.v[0], f.v[1]), unpack2<DT_F16>(w[1], f.v[2], f.v[3]);
    return f;
  }
};

// Four results (of each half) from four of each input.
template <int F, bool SLOPE> DEVICE void apply(const Function &f, bool gated, const Four (&in)[INPUTS], Four (&out)[HALVES]) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
    float value, slope, g = in[INPUTS - 1].v[j];
    f.eval<F, SLOPE>(in[0].v[j], value, slope);
    if (SLOPE) {
      if (INPUTS == 3) out[HALVES - 1].v[j] = __fmul_rn(g, value);
      out[0].v[j] = __fmul_rn(INPUTS == 3 ? __fmul_rn(g, in[INPUTS / 2].v[j]) : g, slope);
    } else {
      out[0].v[j] = INPUTS == 2 ? __fmul_rn(value, g) : value;
    }
  }
}
template <int F> DEVICE void apply(const Function &f, bool backward, const Four (&in)[INPUTS], Four (&out)[HALVES]) {
  if (INPUTS == 3 || (INPUTS == 2 && backward)) apply<F, INPUTS != 1>(f, INPUTS == 3, in, out);
  else apply<F, false>(f, INPUTS == 2, in, out);
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS, INPUTS == 3 ? 2 : 3) activation_any(const __grid_constant__ ActivationParams p) {
  after_previous();
  __shared__ Vec16 tile[HALVES][TILE * TILE / 16];
  const u32 row_tile = blockIdx.x / p.col_tiles, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 row0 = (i64)row_tile * TILE, col0 = (i64)(blockIdx.x - row_tile * p.col_tiles) * TILE, col = col0 + 4 * lane;
  const bool fp8 = p.y_type >= DT_E4M3, backward = INPUTS == 3 || (INPUTS == 2 && p.backward), gated = INPUTS == 3 || (INPUTS == 2 && !backward);
  const float scale = fp8 ? output_scale(p) : 1.0f;
  const Function f(p.kind);
  const Input x(p.x, p.x_type, p.ldx), dy(p.dy, p.dy_type, p.lddy);
  const u32 n = quad_size(p.hidden, col), size = fp8 ? 1 : p.y_type == DT_F32 ? 4 : 2;
  float amax = 0.0f, sum[HALVES][4] = {};
#pragma unroll 1
  for (u32 r = 16 * warp; r < 16 * warp + 16; r += ROWS) {
    const i64 row = row0 + r;
    if (row >= p.rows) break;
    const bool inner = row > 0 && row + ROWS < p.rows && col0 + TILE <= p.hidden;
    const u8 *a = x.at(row, col), *b = x.at(row, p.hidden + col), *g = dy.at(row, col);
    u8 *to = (u8 *)p.y + (row * p.ldy + col) * size;
    u32 raw[FLIGHT][INPUTS][4], code[HALVES][ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      if (i % FLIGHT == 0) {
#pragma unroll
        for (int k = 0; k < FLIGHT; k++) {
          u32 m = row + i + k < p.rows ? n : 0;
          x.load(raw[k][0], inner, a + (i + k) * x.step, m);
          if (gated) x.load(raw[k][INPUTS / 2], inner, b + (i + k) * x.step, m);
          if (backward) dy.load(raw[k][INPUTS - 1], inner, g + (i + k) * dy.step, m);
        }
      }
      u32 m = row + i < p.rows ? n : 0;
      Four in[INPUTS], out[HALVES];
      in[0] = x.get(raw[i % FLIGHT][0], inner, a + i * x.step);
      if (gated) in[INPUTS / 2] = x.get(raw[i % FLIGHT][INPUTS / 2], inner, b + i * x.step);
      if (backward) in[INPUTS - 1] = dy.get(raw[i % FLIGHT][INPUTS - 1], inner, g + i * dy.step);
      if (f.rectified) apply<FAMILY_RELU>(f, backward, in, out);
      else if ((p.kind & 15) == ACT_GELU_ERF) apply<FAMILY_ERF>(f, backward, in, out);
      else apply<FAMILY_SIGMOID>(f, backward, in, out);
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
        const float(&v)[4] = out[h].v;
#pragma unroll
        for (int j = 0; j < 4; j++) amax = max_nan(amax, fabsf(v[j])), sum[h][j] += v[j];
        u8 *here = to + (i * p.ldy + h * p.hidden) * size;
        if (fp8) {
          u32 w[1] = {f32x4_to_fp8x4_any(p.y_type == DT_E5M2, v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale)};
          code[h][i] = w[0];
          if (p.y) quad_put<1>(inner, here, w, m);
        } else if (p.y_type == DT_F32) {
          u32 w[4] = {bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3])};
          quad_put<4>(inner, here, w, m);
        } else {
          bool bf16 = p.y_type == DT_BF16;
          u32 w[2] = {bf16 ? pack2<DT_BF16>(v[0], v[1]) : pack2<DT_F16>(v[0], v[1]), bf16 ? pack2<DT_BF16>(v[2], v[3]) : pack2<DT_F16>(v[2], v[3])};
          quad_put<2>(inner, here, w, m);
        }
      }
    }
    if (fp8 && p.yt) {
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
        transpose4(code[h][0], code[h][1], code[h][2], code[h][3]);
        u8 *to = (u8 *)tile[h] + 4 * lane * TILE + ((r / 8) ^ tile_key<4>(4 * lane)) * 8 + (r & 4);
#pragma unroll
        for (u32 j = 0; j < 4; j++) *(u32 *)(to + j * TILE) = code[h][j];
      }
    }
  }
#if INPUTS > 1
  __shared__ float part[HALVES][TILE_THREADS / 32][TILE];
#pragma unroll
  for (int h = 0; h < HALVES; h++) {
#pragma unroll
    for (u32 j = 0; j < 4; j++) part[h][warp][4 * lane + j] = sum[h][j];
  }
#endif
  __shared__ u32 maxima[TILE_THREADS / 32];
  leave_amax(maxima, amax);
  __syncthreads();
  if (fp8 && p.yt) {
#pragma unroll 1
    for (int h = 0; h < HALVES; h++) tile_store_transposed<4>((u8 *)tile[h], p.yt + h * p.hidden * p.ldyt, p.ldyt, row0, col0, p.rows, p.hidden);
  }
#if INPUTS > 1
  u32 h = threadIdx.x / TILE, c = threadIdx.x % TILE;
  if (p.sums && h < HALVES && col0 + c < p.hidden) {
    float s = 0.0f;
#pragma unroll
    for (int k = 0; k < TILE_THREADS / 32; k++) s += part[h][k][c];
    p.sums[((i64)row_tile * HALVES + h) * p.hidden + col0 + c] = s;
  }
#endif
  finish_amax(p, maxima);
}
