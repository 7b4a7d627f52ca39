// What rope.cu computes, for any stride, alignment, size of head and rotary_dim: single-element accesses, the same bits.
//
// Launch: as rope.cu. An item is a pair (of rotary_dim / 2) or an element behind the rotated part; neighbouring threads take neighbouring
// items. A thread takes its item of HEADS heads, head_step apart, so that the table is read once for them. Types and kind are uniform
// branches: one module serves all.
#include "common/rope.cuh"

#define HEADS 4

DEVICE u32 bits_at(const char *p, i32 type, i64 i) { return type == DT_F32 ? ((const u32 *)p)[i] : ((const u16 *)p)[i]; }
DEVICE void put_bits(char *p, i32 type, i64 i, u32 bits) {
  if (type == DT_F32) ((u32 *)p)[i] = bits;
  else ((u16 *)p)[i] = (u16)bits;
}
DEVICE float value_of(i32 type, u32 bits) { return type == DT_F32 ? float_of(bits) : type == DT_BF16 ? bf16_to_f32((u16)bits) : f16_to_f32((u16)bits); }
DEVICE u32 encoded(i32 type, float v) { return type == DT_F32 ? bits_of(v) : type == DT_BF16 ? f32_to_bf16(v) : f32_to_f16(v); }

extern "C" __global__ void __launch_bounds__(256) rope_any(const __grid_constant__ RopeParams p, const i32 kind, const i32 type) {
  after_previous();
  RopeToken t;
  if (!rope_token(p, t)) return;
  const u32 half = (u32)(p.rotary_dim / 2);
  const bool pair = t.item < half;
  const i64 first = !pair ? p.rotary_dim + (t.item - half) : p.interleaved ? 2 * (i64)t.item : t.item;
  const i64 second = p.interleaved ? first + 1 : first + half;
  i64 row = -1;
  const bool rotated = pair && rope_position(p, t, row);
  float c = NVTE_NAN, s = NVTE_NAN;
  if (rotated && row >= 0) {
    c = p.cos[row * p.table_ld + t.item];
    s = p.sin[row * p.table_ld + t.item];
  }
  if (p.backward) s = -s;
  // All loads before the first store: the output may be the input, and a compiler must then keep their order.
  u32 raw[HEADS][2], part[HEADS];
  i64 to[HEADS];
#pragma unroll
  for (int k = 0; k < HEADS; ++k) {
    const u32 head = t.head + k * p.head_step;
    if (head >= p.heads) break;
    u32 number = head;
    part[k] = 0;
    if (kind != ROPE_PLAIN) part[k] = rope_part(p, head, number);
    const RopeSide &x = p.x[kind == ROPE_MERGE ? part[k] : 0];
    const i64 from = rope_offset(x, t, kind == ROPE_MERGE ? number : head);
    to[k] = rope_offset(p.y[kind == ROPE_SPLIT ? part[k] : 0], t, kind == ROPE_SPLIT ? number : head);
    raw[k][0] = bits_at(x.data, type, from + first);
    if (pair) raw[k][1] = bits_at(x.data, type, from + second);
  }
#pragma unroll
  for (int k = 0; k < HEADS; ++k) {
    if (t.head + k * p.head_step >= p.heads) break;
    char *y = p.y[kind == ROPE_SPLIT ? part[k] : 0].data;
    if (rotated && part[k] < 2) {
      float a, b;
      rope_pair(value_of(type, raw[k][0]), value_of(type, raw[k][1]), c, s, a, b);
      raw[k][0] = encoded(type, a);
      raw[k][1] = encoded(type, b);
    }
    put_bits(y, type, to[k] + first, raw[k][0]);
    if (pair) put_bits(y, type, to[k] + second, raw[k][1]);
  }
}
