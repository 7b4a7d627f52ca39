// What every kernel file stands on: integer names, element types, conversions, reductions.
// Self-contained on purpose: NVRTC compiles these files with no CUDA header on any machine.
// The numbers of the data types are those of nvte_dtype_t (src/tensor.rs).
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

#define DT_F32 0
#define DT_F16 1
#define DT_BF16 2
#define DT_E4M3 3
#define DT_E5M2 4

#define DEVICE __device__ __forceinline__

struct alignas(16) Vec16 { u32 w[4]; };
struct alignas(8) Vec8 { u32 w[2]; };

DEVICE u32 umax(u32 a, u32 b) { return a > b ? a : b; }
DEVICE u32 bits_of(float v) { return __float_as_uint(v); }
DEVICE float float_of(u32 b) { return __uint_as_float(b); }
#define NVTE_INF __uint_as_float(0x7F800000u)
#define NVTE_NAN __uint_as_float(0x7FFFFFFFu)

// ---------------------------------------------------------------- f16 and bf16
// NaN leaves every conversion to a 16-bit type as 0x7FFF, as the hardware writes it; the CPU back end does the same.
DEVICE float bf16_to_f32(u16 b) { return float_of((u32)b << 16); }
DEVICE u16 f32_to_bf16(float v) { u16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v)); return r; }
DEVICE float f16_to_f32(u16 h) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h)); return r; }
DEVICE u16 f32_to_f16(float v) { u16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v)); return r; }
// lo goes to the low half.
DEVICE u32 f32x2_to_bf16x2(float lo, float hi) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
DEVICE u32 f32x2_to_f16x2(float lo, float hi) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }

// ---------------------------------------------------------------- FP8
// One rounding, to nearest even, saturating; NaN is 0x7F in both formats (NUMERICS section 2).
// The integer form serves architectures below sm_89, and is the oracle of the tests there.
template <int DT> DEVICE u32 f32_to_fp8_soft(float v) {
  const int mant = DT == DT_E4M3 ? 3 : 2;                 // mantissa bits
  const int bias = DT == DT_E4M3 ? 7 : 15;                // exponent bias
  const u32 max_code = DT == DT_E4M3 ? 0x7Eu : 0x7Bu;     // largest finite
  u32 b = bits_of(v), sign = (b >> 24) & 0x80u, a = b & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return 0x7Fu;
  u32 code;
  if (a < (u32)(128 - bias) << 23) {
    // Below the least normal: adding 2^(23 - (bias-1) - mant) lets the f32 adder round to the subnormal grid.
    float magic = float_of((u32)(127 + 23 + 1 - bias - mant) << 23);
    code = bits_of(__fadd_rn(float_of(a), magic)) - bits_of(magic);
  } else {
    u32 shift = 23 - mant;
    u32 r = a + ((1u << (shift - 1)) - 1u) + ((a >> shift) & 1u);
    code = (r >> shift) - ((u32)(127 - bias) << mant);
    code = code > max_code ? max_code : code;
  }
  return sign | code;
}

template <int DT> DEVICE float fp8_to_f32_soft(u32 q) {
  const int mant = DT == DT_E4M3 ? 3 : 2, bias = DT == DT_E4M3 ? 7 : 15;
  u32 sign = (q & 0x80u) << 24, a = q & 0x7Fu;
  if (DT == DT_E4M3 ? a == 0x7Fu : a > 0x7Cu) return NVTE_NAN;
  if (DT == DT_E5M2 && a == 0x7Cu) return float_of(sign | 0x7F800000u);
  u32 e = a >> mant, m = a & ((1u << mant) - 1u);
  if (e == 0) return float_of(sign | bits_of((float)m * float_of((u32)(127 + 1 - bias - mant) << 23)));
  return float_of(sign | (e + 127 - bias) << 23 | m << (23 - mant));
}

// Two values to two codes; lo in the low byte.
template <int DT> DEVICE u32 f32x2_to_fp8x2(float lo, float hi) {
#if __CUDA_ARCH__ >= 890
  u16 r;
  if (DT == DT_E4M3) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
  else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
  return r;
#else
  return f32_to_fp8_soft<DT>(lo) | f32_to_fp8_soft<DT>(hi) << 8;
#endif
}
template <int DT> DEVICE u32 f32x4_to_fp8x4(float a, float b, float c, float d) {
  return f32x2_to_fp8x2<DT>(a, b) | f32x2_to_fp8x2<DT>(c, d) << 16;
}
template <int DT> DEVICE u8 f32_to_fp8(float v) { return (u8)f32x2_to_fp8x2<DT>(v, 0.0f); }

// Two codes (low 16 bits) to two f16 halves: exact for both formats.
template <int DT> DEVICE u32 fp8x2_to_f16x2(u32 q) {
#if __CUDA_ARCH__ >= 890
  u32 r;
  if (DT == DT_E4M3) asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((u16)q));
  else asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(r) : "h"((u16)q));
  return r;
#else
  return f32x2_to_f16x2(fp8_to_f32_soft<DT>(q & 0xFF), fp8_to_f32_soft<DT>((q >> 8) & 0xFF));
#endif
}
template <int DT> DEVICE float fp8_to_f32(u8 q) {
#if __CUDA_ARCH__ >= 890
  return f16_to_f32((u16)fp8x2_to_f16x2<DT>(q));
#else
  return fp8_to_f32_soft<DT>(q);
#endif
}

// ---------------------------------------------------------------- element types
template <int DT> struct Elem;
template <> struct Elem<DT_F32> { typedef float T; static DEVICE float load(float v) { return v; } static DEVICE float store(float v) { return v; } };
template <> struct Elem<DT_F16> { typedef u16 T; static DEVICE float load(u16 v) { return f16_to_f32(v); } static DEVICE u16 store(float v) { return f32_to_f16(v); } };
template <> struct Elem<DT_BF16> { typedef u16 T; static DEVICE float load(u16 v) { return bf16_to_f32(v); } static DEVICE u16 store(float v) { return f32_to_bf16(v); } };
template <> struct Elem<DT_E4M3> { typedef u8 T; static DEVICE float load(u8 v) { return fp8_to_f32<DT_E4M3>(v); } static DEVICE u8 store(float v) { return f32_to_fp8<DT_E4M3>(v); } };
template <> struct Elem<DT_E5M2> { typedef u8 T; static DEVICE float load(u8 v) { return fp8_to_f32<DT_E5M2>(v); } static DEVICE u8 store(float v) { return f32_to_fp8<DT_E5M2>(v); } };

// Unpack one 32-bit word of a 16-bit type into two floats (low half first).
template <int DT> DEVICE void unpack2(u32 w, float &lo, float &hi) {
  if (DT == DT_BF16) { lo = float_of(w << 16); hi = float_of(w & 0xFFFF0000u); }
  else { lo = f16_to_f32((u16)w); hi = f16_to_f32((u16)(w >> 16)); }
}
template <int DT> DEVICE u32 pack2(float lo, float hi) { return DT == DT_BF16 ? f32x2_to_bf16x2(lo, hi) : f32x2_to_f16x2(lo, hi); }

// ---------------------------------------------------------------- scaling
#define FP8_MAX(DT) ((DT) == DT_E4M3 ? 448.0f : 57344.0f)
// scale_inv = 1/scale, correctly rounded, subnormals kept (no -use_fast_math anywhere in this project).
DEVICE float reciprocal(float v) { return __frcp_rn(v); }

// NUMERICS section 4.
DEVICE float scale_from_amax(float amax, float format_max, float margin_factor /* 2^-margin */, float epsilon, bool power_of_two, float previous) {
  float a = amax;
  if (!(a != a)) a = a < epsilon ? epsilon : a;
  if (a != a || bits_of(a) == 0x7F800000u || a == 0.0f) return previous;
  float s = __fdiv_rn(format_max * margin_factor, a);
  if (bits_of(s) == 0x7F800000u) s = float_of(0x7F7FFFFFu);
  // Only a large margin can bring it below the normal range; it stays positive there.
  u32 b = umax(bits_of(s), 1u);
  if (power_of_two) b = b >= 0x00800000u ? b & 0x7F800000u : 1u << (31 - __clz((int)b));
  return float_of(b);
}

// ---------------------------------------------------------------- amax and reductions
// amax lives as the bit pattern of |v|, compared as an unsigned integer: NaN > inf > finite (NUMERICS section 3).
DEVICE u32 abs_bits(float v) { return bits_of(v) & 0x7FFFFFFFu; }
DEVICE u32 warp_max(u32 v) { return __reduce_max_sync(0xFFFFFFFFu, v); }
DEVICE float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xFFFFFFFFu, v, o);
  return v;
}
// All threads of the block call it; thread 0 gets the maximum. THREADS, the most threads a block has, is a multiple of 32, at most 1024.
template <int THREADS> DEVICE u32 block_max(u32 v) {
  __shared__ u32 part[THREADS / 32];
  v = warp_max(v);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  if (threadIdx.x < 32) v = warp_max(threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0u);
  __syncthreads();
  return v;
}
// Recording: the maximum with what the slot holds; a NaN is recorded as 0x7FFFFFFF, whatever its payload was.
DEVICE void record_amax(float *slot, u32 bits) { atomicMax((u32 *)slot, bits > 0x7F800000u ? 0x7FFFFFFFu : bits); }

// ---------------------------------------------------------------- order of kernels
// The first statement of every kernel. From sm_90 on kernels are launched as programmatic dependents: the blocks of one take their
// places while the last blocks of the kernel before it in the stream still run, which hides the launch (1 to 2 us). The first
// instruction lets the next kernel do the same as soon as every block of this one has begun; the second waits until all that was
// enqueued before has ended and is visible. Nothing may be read, written or returned from ahead of it. (L2 may be asked for what will be read:
// ask_l2, and tile.cuh.)
DEVICE void after_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The other way round, for a kernel whose next one in the stream is known, and reads ahead of its own wait what was there before both: the
// next one begins when every block of this one has waited.
DEVICE void after_previous_before_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---------------------------------------------------------------- what will be read
// Asks L2 for what a block will read, ahead of after_previous, in the blocks that then find places or in all: nothing is read by it, and what the kernel before still
// writes, it writes in L2. Memory is then busy from one kernel to the next. One thread asks for `bytes` from `p` on, both multiples of 16; or each for a
// line. Kernels do it for sm_90, where it was measured.
DEVICE void ask_l2(const void *p, u32 bytes) {
#if __CUDA_ARCH__ == 900
  asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" :: "l"(p), "r"(bytes), "l"(0x16F0000000000000ull) : "memory");
#endif
}
DEVICE void ask_for_line(const void *p) {
#if __CUDA_ARCH__ == 900
  asm volatile("prefetch.global.L2::evict_normal [%0];" :: "l"(p) : "memory");
#endif
}

// ---------------------------------------------------------------- memory access
DEVICE Vec16 ld16(const void *p) { Vec16 v; asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p)); return v; }
// Cache policies of L2.
DEVICE u64 evict_first() { u64 r; asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(r)); return r; }
DEVICE u64 evict_last() { u64 r; asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(r)); return r; }
DEVICE u64 evict_normal() { u64 r; asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(r)); return r; }
// What the last makes on every architecture, and the first. As numbers they cost nothing; from sm_90 on the instruction is five, repeated at
// each access.
#define NORMAL_LINES 0x16F0000000000000ull
#define FIRST_LINES 0x12F0000000000000ull
// Read once, not kept in L1. L1::no_allocate alone makes what is read the first to leave L2 as well: it then never takes the place of what other
// programs left there, and a kernel that has the rest of L2 to itself only is up to 10 % slower. Hence the policy.
DEVICE Vec16 ld16_policy(const void *p, u64 policy) { Vec16 v; asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;" : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p), "l"(policy)); return v; }
DEVICE Vec16 ld16_stream(const void *p) { return ld16_policy(p, NORMAL_LINES); }
// The same of memory that the same thread may write afterwards.
DEVICE Vec16 ld16_once(const void *p) { Vec16 v; asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;" : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p), "l"(NORMAL_LINES)); return v; }
DEVICE void st16(void *p, Vec16 v) { asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" :: "l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory"); }
DEVICE void st8(void *p, Vec8 v) { asm volatile("st.global.v2.u32 [%0], {%1,%2};" :: "l"(p), "r"(v.w[0]), "r"(v.w[1]) : "memory"); }
// Outputs of which the next kernel finds nothing in the cache anyway may be the first lines to leave, so that something else stays.
DEVICE bool beyond_cache(i64 rows, i64 cols, u32 bytes) { return (u64)rows * (u64)cols * bytes >= (32u << 20); }
DEVICE void st16(void *p, Vec16 v, bool past) {
  if (past) asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" :: "l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
  else st16(p, v);
}
DEVICE void st8(void *p, Vec8 v, bool past) {
  if (past) asm volatile("st.global.cs.v2.u32 [%0], {%1,%2};" :: "l"(p), "r"(v.w[0]), "r"(v.w[1]) : "memory");
  else st8(p, v);
}

// The same as a cache policy, chosen once per kernel: no branch at each store.
DEVICE u64 store_policy(bool past) {
  u64 first = evict_first(), normal = evict_normal();
  return past ? first : normal;
}
// Words by which blocks of one launch tell each other something: coherent between them, in no order with anything else.
DEVICE u32 ld_relaxed(const u32 *p) { u32 v; asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
DEVICE void st_relaxed(u32 *p, u32 v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
DEVICE void st16(void *p, Vec16 v, u64 policy) { asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1,%2,%3,%4}, %5;" :: "l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]), "l"(policy) : "memory"); }
DEVICE void st8(void *p, Vec8 v, u64 policy) { asm volatile("st.global.L2::cache_hint.v2.u32 [%0], {%1,%2}, %3;" :: "l"(p), "r"(v.w[0]), "r"(v.w[1]), "l"(policy) : "memory"); }

DEVICE i64 imin(i64 a, i64 b) { return a < b ? a : b; }
// The same number or address, hidden from the compiler, which would keep what derives from it in registers.
DEVICE u32 anew(u32 v) {
  asm volatile("" : "+r"(v));
  return v;
}
template <class P> DEVICE P *anew(P *p) {
  asm volatile("" : "+l"(p));
  return p;
}
