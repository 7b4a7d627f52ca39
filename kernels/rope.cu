// Rotary position embedding, forward and backward, alone or fused with the split of packed QKV, where rows can be read as vectors.
// rope_any.cu takes everything else.
//
// PLAIN   y[t, h, :] = rotate(x[t, h, :])                       x, y: [tokens, heads, head_dim], any strides
// SPLIT   q, k = rotate, v = copy of the heads of a packed row  x: [tokens, heads * head_dim], y: q, k, v
// MERGE   the other way round (backward)                        x: dq, dk, dv, y: packed
// The first rotary_dim elements of a head are rotated in pairs, (i, i + rotary_dim/2) or interleaved (2i, 2i + 1); the rest is copied.
//
// Launch: blocks of at most 256 threads, whole tokens per block, grid.y where a token has more work than that. A thread takes the same
// two vectors (columns V*i and rotary_dim/2 + V*i, which hold V whole pairs in either layout; behind rotary_dim two neighbouring vectors)
// of HEADS heads, head_step apart, so that a warp covers whole heads that follow each other: 4 loads of 16 bytes under way per thread.
// The table's entries serve all its heads.
// Bytes moved: input and output once. The table (4 bytes per rotated element of one head of a token) comes from L1 and L2.
//
// Compile-time: X (data type), KIND, HEADS. Needs rotary_dim % (2 * V) == 0, head_dim % V == 0, strides % V == 0, bases on 16 bytes.
#include "common/rope.cuh"

#define V (X == DT_F32 ? 4 : 8)
#define SIZE (X == DT_F32 ? 4 : 2)

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

// N entries of the table from `at` on; N floats are aligned.
template <int N> DEVICE void entries(const float *at, float *to) {
  if (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const Vec16 v = *(const Vec16 *)(at + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) to[i + j] = float_of(v.w[j]);
    }
  } else {
    const Vec8 v = *(const Vec8 *)at;
    to[0] = float_of(v.w[0]);
    to[1] = float_of(v.w[1]);
  }
}

extern "C" __global__ void __launch_bounds__(256, 4) rope(const __grid_constant__ RopeParams p) {
  after_previous();
  RopeToken t;
  if (!rope_token(p, t)) return;
  const u32 pairs = (u32)(p.rotary_dim / (2 * V));
  const bool pair = t.item < pairs;
  // Columns of the two vectors. Behind the rotated part the second may lie past the end of the head.
  const i64 first = pair ? (i64)V * t.item : p.rotary_dim + (i64)(2 * V) * (t.item - pairs);
  const i64 second = pair ? first + p.rotary_dim / 2 : first + V;
  const bool both = second < p.head_dim;
  // Of the pairs' angles: the two vectors have the same (halves), or one half each (interleaved).
  float c[V], s[V];
  bool rotated = false;
  auto angles = [&] {
    i64 row = -1;
    rotated = pair && rope_position(p, t, row);
    if (!rotated) return;
    if (row < 0) {
#pragma unroll
      for (int i = 0; i < V; ++i) c[i] = s[i] = NVTE_NAN;
    } else if (p.interleaved) {
      const i64 at = row * p.table_ld + first / 2, more = p.rotary_dim / 4;
      entries<V / 2>(p.cos + at, c);
      entries<V / 2>(p.cos + at + more, c + V / 2);
      entries<V / 2>(p.sin + at, s);
      entries<V / 2>(p.sin + at + more, s + V / 2);
    } else {
      entries<V>(p.cos + row * p.table_ld + first, c);
      entries<V>(p.sin + row * p.table_ld + first, s);
    }
    if (p.backward) {
#pragma unroll
      for (int i = 0; i < V; ++i) s[i] = -s[i];
    }
  };
  // Where the place in the table is not read from memory, the table comes first, and is there when the heads are.
  const bool known = !p.positions && !p.starts && !p.cu_seqlens;
  if (known) angles();
  Vec16 raw[HEADS][2];
  u32 part[HEADS];
  char *to[HEADS];
#pragma unroll
  for (int k = 0; k < HEADS; ++k) {
    const u32 head = t.head + k * p.head_step;
    to[k] = nullptr;
    if (head >= p.heads) continue;
    u32 number = head;
    part[k] = 0;
    if (KIND != ROPE_PLAIN) part[k] = rope_part(p, head, number);
    const RopeSide &x = p.x[KIND == ROPE_MERGE ? part[k] : 0], &y = p.y[KIND == ROPE_SPLIT ? part[k] : 0];
    const char *from = x.data + (rope_offset(x, t, KIND == ROPE_MERGE ? number : head) + first) * SIZE;
    to[k] = y.data + (rope_offset(y, t, KIND == ROPE_SPLIT ? number : head) + first) * SIZE;
    raw[k][0] = ld16_once(from);
    if (both) raw[k][1] = ld16_once(from + (second - first) * SIZE);
  }
  if (!known) angles();
#pragma unroll
  for (int k = 0; k < HEADS; ++k) {
    if (!to[k]) continue;
    if (rotated && part[k] < 2) {
      float a[V], b[V];
      widen(raw[k][0], a);
      widen(raw[k][1], b);
      if (p.interleaved) {
#pragma unroll
        for (int i = 0; i < V / 2; ++i) {
          rope_pair(a[2 * i], a[2 * i + 1], c[i], s[i], a[2 * i], a[2 * i + 1]);
          rope_pair(b[2 * i], b[2 * i + 1], c[V / 2 + i], s[V / 2 + i], b[2 * i], b[2 * i + 1]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < V; ++i) rope_pair(a[i], b[i], c[i], s[i], a[i], b[i]);
      }
      raw[k][0] = narrow(a);
      raw[k][1] = narrow(b);
    }
    st16(to[k], raw[k][0]);
    if (both) st16(to[k] + (second - first) * SIZE, raw[k][1]);
  }
}
