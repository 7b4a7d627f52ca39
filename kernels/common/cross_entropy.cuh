// What the kernels of cross-entropy share: arguments, targets, and what a row comes to.
#pragma once
#include "common/rows.cuh"

struct Args {
  const TX *x;
  i64 ldx;
  TX *dx;
  i64 lddx;
  const void *target;
  const float *dloss;     // null: 1
  i64 dloss_stride;
  const float *count;     // targets that count; null: 1
  float *loss, *lse, *partial;
  const float *combined;  // null: found here
  i64 tokens, cols, start, vocabulary, ignore;
  float smoothing;
  i32 narrow;             // targets are i32
  u32 blocks;             // of a row
};

// (m, s, x[target], sum of x): as the slices of a vocabulary are exchanged, too.
struct alignas(16) Part { float most, sum, logit, logits; };

struct Target {
  i64 at;  // column; FAR_AWAY where it is not among these
  bool ignored, bad;
};
#define FAR_AWAY (-(i64)(1 << 30))

DEVICE i64 label_of(const Args &a, i64 row) { return a.narrow ? (i64)((const i32 *)a.target)[row] : ((const i64 *)a.target)[row]; }

DEVICE Target target_of(const Args &a, i64 t) {
  Target r;
  r.ignored = t == a.ignore;
  r.bad = !r.ignored && (t < 0 || t >= a.vocabulary);
  const bool here = !r.ignored && t >= a.start && t - a.start < a.cols;
  r.at = here ? t - a.start : FAR_AWAY;
  return r;
}

// What the gradient of a row is multiplied with.
DEVICE float factor_of(const Args &a, i64 row) {
  const float g = a.dloss ? a.dloss[row * a.dloss_stride] : 1.0f;
  return a.count ? __fdiv_rn(g, *a.count) : g;
}

// What a row comes to; one thread.
DEVICE void put_results(const Args &a, i64 row, const Target &t, const Part &p) {
  if (a.partial) ((Part *)a.partial)[row] = p;
  const float base = base_of(p.most), log_sum = logf(p.sum);
  if (a.lse) a.lse[row] = base + log_sum;
  if (a.loss) {
    float loss = log_sum - (1.0f - a.smoothing) * (p.logit - base);
    if (a.smoothing != 0.0f) loss -= a.smoothing * (p.logits / (float)a.vocabulary - base);
    a.loss[row] = t.ignored ? 0.0f : t.bad ? NVTE_NAN : loss;
  }
}

// The sum of what is there of a vector.
template <class I> DEVICE float sum_of(const float (&f)[N], I first, I n) {
  float s[2] = {};
#pragma unroll
  for (int k = 0; k < N; k++) s[k & 1] += first + k >= 0 && first + k < n ? f[k] : 0.0f;
  return s[0] + s[1];
}
