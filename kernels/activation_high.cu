// What activation.cu computes, to f32, f16 or bf16 and without column sums, for tensors whose rows start on 16 bytes.
//
// No layout is transposed, so there are no tiles: the 16-byte vectors of an input are counted through all rows, and a block of THREADS takes
// the PER * THREADS of them that lie next to each other, all loads before the first use. Small blocks, many a multiprocessor: what is under
// way comes from them. Much less than 6 KiB for a block is slower, since they cannot begin fast enough.
// Bytes moved per element of the result: inputs once, the output once.
//
// Compile-time: ERF (1: gelu_erf, 0: all other functions), GATED, BACKWARD, IN. Function and output type are uniform branches.
#include "common/activation.cuh"

#define V TileVec<IN>::V
#define INPUTS (1 + GATED + BACKWARD)
#define HALVES (GATED && BACKWARD ? 2 : 1)
// Mirrored by src/backend/cuda/activation.rs.
#define THREADS 128
#define PER (GATED ? 1 : 2)

typedef Elem<IN>::T In;

// Vectors of a row of the result, and by what a number below 2^31 is divided by that: (n * multiplier) >> shift.
struct Rows {
  i64 vectors;
  u32 multiplier, shift;
};

extern "C" __global__ void __launch_bounds__(THREADS) activation_high(const __grid_constant__ ActivationParams p, const __grid_constant__ Rows rows) {
  after_previous();
  const u64 first = (u64)blockIdx.x * (PER * THREADS) + threadIdx.x, total = (u64)p.rows * (u64)rows.vectors;
  Vec16 raw[PER][INPUTS];
  char *to[PER];  // null: there is no such vector
  // The amax slot as it was at some time before: it only grows, so few warps need an atomic.
  const u32 recorded = p.amax ? *(const volatile u32 *)p.amax : 0;
  float amax = 0.0f;
  const u32 size = p.y_type == DT_F32 ? 4 : 2;
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u64 at = first + i * THREADS;
    to[i] = nullptr;
    if (at < total) {
      // A division of 64 bits is long.
      const i64 row = total >> 31 ? (i64)(at / (u64)rows.vectors) : (i64)((at * rows.multiplier) >> rows.shift);
      const i64 col = ((i64)at - row * rows.vectors) * V;
      const In *x = (const In *)p.x + row * p.ldx + col;
      raw[i][0] = ld16_stream(x);
      if (GATED) raw[i][1] = ld16_stream(x + p.hidden);
      if (BACKWARD) raw[i][INPUTS - 1] = ld16_stream((const In *)p.dy + row * p.lddy + col);
      to[i] = p.y + (row * p.ldy + col) * size;
    }
  }
  const Function f(p.kind);
#pragma unroll
  for (int i = 0; i < PER; i++) {
    if (!to[i]) continue;
    float in[INPUTS][V], v[HALVES][V];
#pragma unroll
    for (int k = 0; k < INPUTS; k++) {
#pragma unroll
      for (int w = 0; w < 4; w++) {
        if constexpr (V == 8) unpack2<IN>(raw[i][k].w[w], in[k][2 * w], in[k][2 * w + 1]);
        else in[k][w] = float_of(raw[i][k].w[w]);
      }
    }
    apply(f, in, v);
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      if (p.amax) {
#pragma unroll
        for (int k = 0; k < V; k++) amax = max_nan(amax, fabsf(v[h][k]));
      }
      store_high<V>(to[i] + h * p.hidden * size, p.y_type, v[h]);
    }
  }
  if (!p.amax) return;
  const u32 most = warp_max(abs_bits(amax));
  if ((threadIdx.x & 31) == 0 && most > recorded) record_amax(p.amax, most);
}
