// What kernels that work on lists of tensors share: finding a block's tensor, and access to elements whose type is known at run time.
//
// A list's table (src/ops/list.rs): one entry per tensor, which begins with its first block and its number of blocks; one pointer per
// tensor; one word per block that says whose it is. A block reads its word and then its entry: two round trips to the cache before its
// own memory is asked for, which the other blocks of the multiprocessor hide.
#pragma once
#include "common/tile.cuh"

#define LIST_THREADS 256

// Four elements as they lie in memory. A vector of f32 fills the words, one of 16 bits the first two; single elements take a word each.
typedef Vec16 Raw;

DEVICE u32 type_bytes(u32 type) { return type == DT_F32 ? 4 : 2; }

// Half of what ld16_once reads.
DEVICE Raw ld8_once(const void *p) { Raw v; v.w[2] = v.w[3] = 0; asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v2.u32 {%0,%1}, [%2], %3;" : "=r"(v.w[0]), "=r"(v.w[1]) : "l"(p), "l"(NORMAL_LINES)); return v; }

// Four elements from `at` on. VEC: one vector, there or not; else the first `n` of them, STEP elements apart, the others 0.
template <bool VEC, int STEP> DEVICE Raw load4(u32 type, const void *base, i64 at, u32 n) {
  Raw raw = {{0, 0, 0, 0}};
  if (VEC) {
    if (n == 0) return raw;
    if (type == DT_F32) return ld16_once((const float *)base + at);
    return ld8_once((const u16 *)base + at);
  } else {
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      if (j >= n) break;
      if (type == DT_F32) raw.w[j] = ((const u32 *)base)[at + j * STEP];
      else raw.w[j] = ((const u16 *)base)[at + j * STEP];
    }
    return raw;
  }
}

DEVICE float from_bits16(u32 type, u32 bits) { return type == DT_BF16 ? float_of(bits << 16) : f16_to_f32((u16)bits); }

template <bool VEC> DEVICE void unpack4(u32 type, const Raw &raw, float (&v)[4]) {
  if (type == DT_F32) {
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = float_of(raw.w[j]);
  } else if (!VEC) {
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = from_bits16(type, raw.w[j]);
  } else if (type == DT_BF16) {
    unpack2<DT_BF16>(raw.w[0], v[0], v[1]);
    unpack2<DT_BF16>(raw.w[1], v[2], v[3]);
  } else {
    unpack2<DT_F16>(raw.w[0], v[0], v[1]);
    unpack2<DT_F16>(raw.w[1], v[2], v[3]);
  }
}

// Rounds four values to the type, where they are to be written and read back.
template <bool VEC> DEVICE Raw pack4(u32 type, const float (&v)[4]) {
  Raw raw = {{0, 0, 0, 0}};
  if (type == DT_F32) {
#pragma unroll
    for (int j = 0; j < 4; j++) raw.w[j] = bits_of(v[j]);
  } else {
    u32 lo = type == DT_BF16 ? f32x2_to_bf16x2(v[0], v[1]) : f32x2_to_f16x2(v[0], v[1]);
    u32 hi = type == DT_BF16 ? f32x2_to_bf16x2(v[2], v[3]) : f32x2_to_f16x2(v[2], v[3]);
    if (VEC) {
      raw.w[0] = lo, raw.w[1] = hi;
    } else {
      raw.w[0] = lo & 0xFFFFu, raw.w[1] = lo >> 16, raw.w[2] = hi & 0xFFFFu, raw.w[3] = hi >> 16;
    }
  }
  return raw;
}

template <bool VEC, int STEP> DEVICE void store4(u32 type, void *base, i64 at, u32 n, const Raw &raw) {
  if (VEC) {
    if (n == 0) return;
    if (type == DT_F32) st16((float *)base + at, Vec16{{raw.w[0], raw.w[1], raw.w[2], raw.w[3]}});
    else st8((u16 *)base + at, Vec8{{raw.w[0], raw.w[1]}});
  } else {
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      if (j >= n) break;
      if (type == DT_F32) ((u32 *)base)[at + j * STEP] = raw.w[j];
      else ((u16 *)base)[at + j * STEP] = (u16)raw.w[j];
    }
  }
}

// Whether a vector of four elements may begin at the base.
DEVICE bool vector_base(u32 type, const void *p) { return ((u64)p & (type == DT_F32 ? 15 : 7)) == 0; }

// Whether this block is the last of the launch to come here. Thread 0 calls it, after the block has done everything that others are to
// see. The counter is 0 between launches.
DEVICE bool last_block(u32 *counter) {
  __threadfence();
  bool last = atomicAdd(counter, 1u) == gridDim.x - 1;
  if (last) *counter = 0;
  __threadfence();
  return last;
}
