// The activation functions and their derivatives in f32 (NUMERICS section 8).
//
// ex2.approx (2 ulp) and rcp.approx (1 ulp): with them every result lies within a few f32 ulp of the formula, well inside what an FP8 or
// 16-bit output can show. tanh.approx does not: it moves every eleventh FP8 code. Instructions count: at the rate of memory a
// multiprocessor has time for about 35 an element.
// Products are written as such (__fmul_rn), so that every kernel that includes this computes the same bits.
#pragma once
#include "common/base.cuh"

// The numbers of nvte::ops::activation::Activation; a gated form is 16 above its function.
#define ACT_GELU 0
#define ACT_GELU_ERF 1
#define ACT_SILU 2
#define ACT_RELU 3
#define ACT_QGELU 4
#define ACT_SRELU 5

// What they share code by: the sigmoid functions differ in constants only, the rectified ones in a square.
#define FAMILY_SIGMOID 0
#define FAMILY_ERF 1
#define FAMILY_RELU 2

// These keep a NaN operand, unlike fmaxf and fminf; +0 counts above -0.
DEVICE float max_nan(float a, float b) { float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
DEVICE float min_nan(float a, float b) { float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }

// 2^t; subnormal results are flushed: here they always stand beside something at least 2^-20, or 1.
DEVICE float ex2(float t) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(t)); return r; }

// 1/d for d >= 1, infinity included.
DEVICE float reciprocal_of_large(float d) { float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d)); return r; }

// Beyond +-128 every sigmoid here is 0 or 1 in f32. Clamping there keeps infinities out of products with 0, so that the ends are the
// limits of the formulas; NaN passes.
#define FAR 128.0f

// One function, chosen at run time: its constants live in registers.
struct Function {
  // x * sigmoid(-x (a + b x^2)): a, b include log2(e); the derivative slope_a + slope_b x^2 of the argument, without its minus, does not.
  float a, b, slope_a, slope_b;
  bool rectified, square;

  DEVICE Function(i32 kind) {
    i32 k = kind & 15;
    a = k == ACT_GELU ? -2.3022082f : k == ACT_QGELU ? -2.4554669f : -1.44269504f;
    b = k == ACT_GELU ? -0.10294324f : 0.0f;
    slope_a = k == ACT_GELU ? 1.59576912f : k == ACT_QGELU ? 1.702f : 1.0f;
    slope_b = k == ACT_GELU ? 0.21406445f : 0.0f;
    square = k == ACT_SRELU;
    rectified = k == ACT_RELU || square;
  }

  // f(x) and, where SLOPE, f'(x).
  template <int F, bool SLOPE> DEVICE void eval(float x, float &value, float &slope) const {
    if (F == FAMILY_RELU) {
      float r = max_nan(x, 0.0f);
      value = square ? __fmul_rn(r, r) : r;
      // r > 0 is false for NaN, which then is the slope.
      slope = square ? 2.0f * r : r > 0.0f ? 1.0f : r;
      return;
    }
    float low = max_nan(x, -FAR), c = min_nan(low, FAR), cc = __fmul_rn(c, c);
    if (F == FAMILY_SIGMOID) {
      // s = 1 / (1 + exp(-z)): where the exponential is infinite s is 0. s (1 - s) as s - s^2 is off by half an ulp of s, beside a slope near s.
      float s = reciprocal_of_large(__fadd_rn(1.0f, ex2(__fmul_rn(c, __fmaf_rn(b, cc, a)))));
      value = __fmul_rn(low, s);
      if (SLOPE) slope = __fmaf_rn(__fmul_rn(c, __fmaf_rn(-s, s, s)), __fmaf_rn(slope_b, cc, slope_a), s);
    } else {
      // Phi(-a) = exp(-a^2/2) Q(t) with t = 1/(1 + 0.28 a): minimax in t, 5e-8 near a = 0, 2.5e-7 relative in the tail.
      float e = ex2(__fmul_rn(cc, -0.7213475f)), t = reciprocal_of_large(__fmaf_rn(0.28f, fabsf(c), 1.0f));
      float q = 0.02464782f;
      q = __fmaf_rn(q, t, -0.092962034f);
      q = __fmaf_rn(q, t, 0.09076412f);
      q = __fmaf_rn(q, t, -0.0043897845f);
      q = __fmaf_rn(q, t, 0.07141004f);
      q = __fmaf_rn(q, t, 0.08413064f);
      q = __fmaf_rn(q, t, 0.10298658f);
      q = __fmaf_rn(q, t, 0.111709103f);
      q = __fmaf_rn(q, t, 0.11170354f);
      float tail = __fmul_rn(e, __fmul_rn(t, q));
      float phi = c >= 0.0f ? __fsub_rn(1.0f, tail) : tail;
      value = __fmul_rn(low, phi);
      if (SLOPE) slope = __fmaf_rn(__fmul_rn(c, e), 0.39894228f, phi);
    }
  }
};

// Four values to four codes of a format chosen at run time.
DEVICE u32 f32x4_to_fp8x4_any(bool e5m2, float a, float b, float c, float d) {
  return e5m2 ? f32x4_to_fp8x4<DT_E5M2>(a, b, c, d) : f32x4_to_fp8x4<DT_E4M3>(a, b, c, d);
}
