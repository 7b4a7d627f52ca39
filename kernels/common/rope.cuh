// What the two RoPE kernels share: parameters, which token and head a thread has, and the row of the table for a token.
#pragma once
#include "common/base.cuh"

#define ROPE_PLAIN 0
#define ROPE_SPLIT 1
#define ROPE_MERGE 2

// A tensor [tokens, heads, head_dim] by its strides in elements. A token has two numbers: `outer` and `inner`.
struct RopeSide {
  char *data;
  i64 outer, inner, head;
};

// Mirrored by `Params` in src/backend/cuda/rope.rs.
struct RopeParams {
  RopeSide x[3], y[3];              // q, k, v on the side of the parts; otherwise only the first counts
  const float *cos, *sin;
  const void *positions;            // i32 or i64, or null
  const i32 *starts, *cu_seqlens;   // or null
  i64 tokens, inner;                // token t is (t / inner, t % inner)
  i64 start, table_rows, table_ld, positions_outer, positions_inner;
  i64 head_dim, rotary_dim, sequences;
  u32 heads, q_heads, kv_heads, group;   // group: heads of a group of packed QKV; 0: q, k, v one after the other
  u32 items, work, block_tokens;    // items of a head, items of a token over all steps of heads, tokens of a block
  u32 head_step;                    // a thread takes every head_step-th head
  u32 interleaved, backward, positions_i64, inner_is_batch;
  // ceil(2^32 / d), or ceil(2^64 / d): n / d is the high half of a product as long as n * d is below that power. 0: no such number.
  u32 items_inverse, work_inverse, group_inverse, pad;
  u64 inner_inverse;
};

DEVICE u32 rope_divide(u32 n, u32 d, u32 inverse) { return inverse ? __umulhi(n, inverse) : n / d; }

struct RopeToken {
  i64 outer, inner;
  u32 item;   // of a head
  u32 head;   // first
};

// Block (x, y): tokens from x * block_tokens on, items from y * blockDim.x on. False: this thread has nothing to do.
DEVICE bool rope_token(const RopeParams &p, RopeToken &t) {
  u32 step = rope_divide(threadIdx.x, p.work, p.work_inverse), work = threadIdx.x - step * p.work;
  if (gridDim.y > 1) step = 0, work = threadIdx.x + blockIdx.y * blockDim.x;
  const i64 token = (i64)blockIdx.x * p.block_tokens + step;
  if (step >= p.block_tokens || work >= p.work || token >= p.tokens) return false;
  t.outer = p.inner == 1 ? token : p.inner_inverse ? (i64)__umul64hi((u64)token, p.inner_inverse) : token / p.inner;
  t.inner = token - t.outer * p.inner;
  t.head = rope_divide(work, p.items, p.items_inverse);
  t.item = work - t.head * p.items;
  return true;
}

// Which part a head of the packed row belongs to, and its number there.
DEVICE u32 rope_part(const RopeParams &p, u32 head, u32 &number) {
  if (p.group == 0) {
    const u32 part = head < p.q_heads ? 0 : head < p.q_heads + p.kv_heads ? 1 : 2;
    number = part == 0 ? head : part == 1 ? head - p.q_heads : head - p.q_heads - p.kv_heads;
    return part;
  }
  const u32 g = rope_divide(head, p.group, p.group_inverse), place = head - g * p.group, shared = p.group - 2;
  number = place < shared ? g * shared + place : g;
  return place < shared ? 0 : place - shared + 1;
}

DEVICE i64 rope_offset(const RopeSide &s, const RopeToken &t, u32 head) { return t.outer * s.outer + t.inner * s.inner + head * s.head; }

// The token's row of the table; -1: outside the table. False: the token belongs to no sequence.
DEVICE bool rope_position(const RopeParams &p, const RopeToken &t, i64 &row) {
  i64 seq = p.inner_is_batch ? t.outer : t.inner, sequence = p.inner_is_batch ? t.inner : t.outer, place = seq;
  if (p.cu_seqlens) {
    i64 low = 0, high = p.sequences;
    if (seq < p.cu_seqlens[0] || seq >= p.cu_seqlens[high]) return false;
    while (high - low > 1) {
      i64 middle = low + (high - low) / 2;
      if (p.cu_seqlens[middle] <= seq) low = middle;
      else high = middle;
    }
    place = seq - p.cu_seqlens[low];
    sequence = low;
  }
  if (p.positions) {
    i64 i = t.outer * p.positions_outer + t.inner * p.positions_inner;
    place = p.positions_i64 ? ((const i64 *)p.positions)[i] : ((const i32 *)p.positions)[i];
  }
  u64 at = (u64)place + (u64)p.start;
  if (p.starts) at += (u64)(i64)p.starts[sequence];
  row = at < (u64)p.table_rows ? (i64)at : -1;
  return true;
}

// A pair by an angle, each operation rounded: the CPU back end has the same bits.
DEVICE void rope_pair(float a, float b, float c, float s, float &first, float &second) {
  first = __fadd_rn(__fmul_rn(a, c), -__fmul_rn(b, s));
  second = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
}
