// Cross-entropy of logits with class targets, forward and gradient in one pass: logits are read once, their gradient written once.
//
// logits, dx: [tokens, cols] of X, row strides of their own, any alignment; dx null: no gradient; it may be the logits' own memory.
// target: [tokens] i64 or i32 into a vocabulary of which the columns are [start, start + cols). With m the largest logit of a row and
// s = sum of exp(x - m): logsumexp = m + ln s, and with label smoothing e
//   loss = (1 - e) (logsumexp - x[target]) + e mean(logsumexp - x)
//   dx   = g (exp(x - m) / s - e / vocabulary - (1 - e) [target]),  g = dloss / count
// An ignored target gives 0 and 0; one outside the vocabulary NaN and NaN.
//
//   cross_entropy_row   the row lies in the registers of a cluster of 1, 2, 4 or 8 blocks of up to 512 threads, 8 vectors of 16 bytes a
//                       thread, two such blocks a multiprocessor: 32768 elements of 16 bits a block. The blocks of a row exchange three
//                       numbers through distributed shared memory. (Before sm_90: one block.)
//   cross_entropy_loop  512 threads a row of any length: maximum and sum in one pass (online), then the row is read again.
//   scale_rows          x[row] *= scale[row * stride], in place; rows whose scale is 1 are not touched.
//
// Vocabulary in slices: `partial` receives (m, s, x[target] or 0, sum of x) of a token's slice; from what all slices have together,
// `combined`, of the same form, another call writes the gradient of a slice and reduces nothing.
// Bytes moved per element: 2 sizeof(X); without a gradient 1 sizeof(X).
#include "common/cross_entropy.cuh"

#define SLOTS 8
#define ROW_THREADS 512
#define LOOP_THREADS 512
#define MAX_CLUSTER 8
// Two blocks a multiprocessor leave 64 registers, of which ptxas for sm_100 wants a few more.
#define ROW_BLOCKS (__CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200 ? 1 : 2)

struct Gradient {
  float base, scale, even, off;
  DEVICE Gradient(const Args &a, const Target &t, float g, float base_, float sum) {
    base = base_;
    scale = t.bad ? NVTE_NAN : g * reciprocal(sum);
    even = a.smoothing == 0.0f ? 0.0f : a.smoothing * g / (float)a.vocabulary;
    off = (1.0f - a.smoothing) * g;
  }
  // The gradient of a vector that starts `to_target` columns before the target.
  template <class I> DEVICE void of(const Vec16 &v, I to_target, float (&f)[N]) const {
    unpack<X>(v, f);
#pragma unroll
    for (int k = 0; k < N; k++) f[k] = __fmaf_rn(exp2_fast((f[k] - base) * LOG2E), scale, -even);
    if (to_target >= 0 && to_target < N) {
#pragma unroll
      for (int k = 0; k < N; k++)
        if (k == (i32)to_target) f[k] -= off;
    }
  }
};

#if __CUDA_ARCH__ >= 900
// Not .aligned: lanes come from branches. A block may be written to once it is known to have started.
DEVICE void cluster_started() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
DEVICE void cluster_done() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
DEVICE void put_remote(const Part *place, u32 rank, const Part &p) {
  asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5}; }"
               :: "r"(shared_address(place)), "r"(rank), "f"(p.most), "f"(p.sum), "f"(p.logit), "f"(p.logits) : "memory");
}
#endif

extern "C" __global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS) cross_entropy_row(const __grid_constant__ Args a) {
  after_previous();
  __shared__ float part[3][32];
  const u32 T = blockDim.x, t = threadIdx.x;
  const u32 row32 = blockIdx.x / a.blocks, rank = blockIdx.x - row32 * a.blocks;
  const i64 row = row32;
  const Target target = target_of(a, label_of(a, row));
  const TX *x = a.x + row * a.ldx;
  TX *dx = a.dx ? a.dx + row * a.lddx : nullptr;
  const i32 n = (i32)a.cols, lead = (i32)lead_of(x), step = (i32)(T * N);
  const i32 start = (i32)((rank * SLOTS * T + t) * N) - lead;
  const bool whole = lead_of(dx) == (u32)lead;
  if (target.ignored && !a.lse && !a.partial) {
    // All blocks of the row leave here.
    const float zeros[N] = {};
    if (dx) {
#pragma unroll 1
      for (int i = 0; i < SLOTS; i++)
        if (start + i * step < n) store_row(dx, start + i * step, n, zeros, whole);
    }
    if (a.loss && rank == 0 && t == 0) a.loss[row] = 0.0f;
    return;
  }
#if __CUDA_ARCH__ >= 900
  __shared__ Part gathered[MAX_CLUSTER];
  const bool exchange = a.blocks > 1 && !a.combined;
  if (exchange) cluster_started();
#endif
  Vec16 v[SLOTS];
  const bool cut = load_slots(x, start, step, n, WORD_NEG_INF, v);
  const float g = dx ? factor_of(a, row) : 0.0f;
  float base, sum;
  if (a.combined) {
    base = base_of(a.combined[4 * row]);
    sum = a.combined[4 * row + 1];
  } else {
    Part p = {NEG_INF, 0.0f, 0.0f, 0.0f};
    // Before anyone writes: the gradient may go where the logits are. (A row of one warp meets no barrier.)
    if (t == 0 && rank == 0 && target.at >= 0) p.logit = Elem<X>::load(x[target.at]);
    __syncwarp();
    float f[N];
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
      if (start + i * step >= n) continue;
      unpack<X>(v[i], f);
#pragma unroll
      for (int k = 0; k < N; k++) p.most = fmaxf(p.most, f[k]);
    }
    p.most = row_max(p.most, T, part[0]);
    base = base_of(p.most);
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
      if (start + i * step >= n) continue;
      unpack<X>(v[i], f);
#pragma unroll
      for (int k = 0; k < N; k++) sums[k & 1] += exp2_fast((f[k] - base) * LOG2E);
    }
    p.sum = row_total(sums[0] + sums[1], T, part[1]);
    if (a.smoothing != 0.0f) {
#pragma unroll
      for (int i = 0; i < SLOTS; i++) {
        if (start + i * step >= n) continue;
        unpack<X>(v[i], f);
        p.logits += sum_of(f, start + i * step, n);
      }
      p.logits = row_total(p.logits, T, part[2]);
    }
#if __CUDA_ARCH__ >= 900
    if (exchange) {
      cluster_wait();
      if (t < a.blocks) put_remote(&gathered[rank], t, p);
      cluster_done();
      cluster_wait();
      // In the order of the blocks, the same everywhere.
      p.most = NEG_INF;
      for (u32 r = 0; r < a.blocks; r++) p.most = fmaxf(p.most, gathered[r].most);
      base = base_of(p.most);
      p.sum = p.logits = 0.0f;
      for (u32 r = 0; r < a.blocks; r++) {
        p.sum += gathered[r].sum * exp2_fast((gathered[r].most - base) * LOG2E);
        p.logits += gathered[r].logits;
      }
    }
#endif
    sum = p.sum;
    if (t == 0 && rank == 0) put_results(a, row, target, p);
  }
  if (!dx) return;
  const Gradient gradient(a, target, g, base, sum);
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    const i32 first = start + i * step;
    if (first >= n) continue;
    float f[N];
    gradient.of(v[i], (i32)target.at - first, f);
    if (target.ignored) {
#pragma unroll
      for (int k = 0; k < N; k++) f[k] = 0.0f;
    }
    v[i] = pack<X>(f);
    store_slot(dx, first, n, v[i], whole);
  }
  if (cut || !whole) store_cuts(dx, start, step, n, v, whole);
}

extern "C" __global__ void __launch_bounds__(LOOP_THREADS) cross_entropy_loop(const __grid_constant__ Args a) {
  after_previous();
  constexpr int STRETCH = 4;
  __shared__ float part[3][32];
  constexpr i64 step = (i64)LOOP_THREADS * N;
  const u32 t = threadIdx.x;
#pragma unroll 1
  for (i64 row = blockIdx.x; row < a.tokens; row += gridDim.x) {
    const Target target = target_of(a, label_of(a, row));
    const TX *x = a.x + row * a.ldx;
    TX *dx = a.dx ? a.dx + row * a.lddx : nullptr;
    const i64 n = a.cols, start = (i64)t * N - lead_of(x);
    const bool whole = lead_of(dx) == lead_of(x), nothing = target.ignored && !a.lse && !a.partial;
    Part p = {NEG_INF, 0.0f, 0.0f, 0.0f};
    float base = 0.0f;
    if (nothing) {
      if (a.loss && t == 0) a.loss[row] = 0.0f;
    } else if (a.combined) {
      base = base_of(a.combined[4 * row]);
      p.sum = a.combined[4 * row + 1];
    } else {
      if (t == 0 && target.at >= 0) p.logit = Elem<X>::load(x[target.at]);
#pragma unroll 1
      for (i64 at = start; at < n; at += STRETCH * step) {
        Vec16 v[STRETCH];
#pragma unroll
        for (int i = 0; i < STRETCH; i++) v[i] = load_row(x, at + i * step, n, WORD_NEG_INF);
        float most = p.most, f[N];
#pragma unroll
        for (int i = 0; i < STRETCH; i++) {
          unpack<X>(v[i], f);
#pragma unroll
          for (int k = 0; k < N; k++) most = fmaxf(most, f[k]);
        }
        base = base_of(most);
        // Its own sum for each stretch: the error of a long row stays that of a shorter one.
        float sums[2] = {};
#pragma unroll
        for (int i = 0; i < STRETCH; i++) {
          unpack<X>(v[i], f);
#pragma unroll
          for (int k = 0; k < N; k++) sums[k & 1] += exp2_fast((f[k] - base) * LOG2E);
          if (a.smoothing != 0.0f) p.logits += sum_of(f, at + i * step, n);
        }
        p.sum = p.sum * exp2_fast((p.most - base) * LOG2E) + (sums[0] + sums[1]);
        p.most = most;
      }
      const float own = p.most;
      p.most = row_max(own, LOOP_THREADS, part[0]);
      base = base_of(p.most);
      // A thread that saw nothing has the maximum -infinity and the sum 0.
      p.sum = row_total(p.sum * exp2_fast((own - base) * LOG2E), LOOP_THREADS, part[1]);
      if (a.smoothing != 0.0f) p.logits = row_total(p.logits, LOOP_THREADS, part[2]);
      if (t == 0) put_results(a, row, target, p);
    }
    if (dx) {
      const Gradient gradient(a, target, factor_of(a, row), base, p.sum);
#pragma unroll 2
      for (i64 at = start; at < n; at += step) {
        float f[N] = {};
        if (!target.ignored) gradient.of(load_row(x, at, n, WORD_NEG_INF), target.at - at, f);
        store_row(dx, at, n, f, whole);
      }
    }
    // The next row's sums would otherwise meet threads that still read this row's.
    __syncthreads();
  }
}

struct ScaleArgs {
  TX *x;
  i64 ldx;
  const float *scale;
  i64 stride, rows, cols;
};

extern "C" __global__ void __launch_bounds__(LOOP_THREADS) scale_rows(const __grid_constant__ ScaleArgs a) {
  after_previous();
  constexpr i64 step = (i64)LOOP_THREADS * N;
  // One scale for all: nothing to walk over.
  if (a.stride == 0 && *a.scale == 1.0f) return;
#pragma unroll 1
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float s = a.scale[row * a.stride];
    if (s == 1.0f) continue;
    TX *x = a.x + row * a.ldx;
#pragma unroll 4
    for (i64 at = (i64)threadIdx.x * N - lead_of(x); at < a.cols; at += step) {
      float f[N];
      unpack<X>(load_row(x, at, a.cols, 0u), f);
#pragma unroll
      for (int k = 0; k < N; k++) f[k] *= s;
      store_row(x, at, a.cols, f, true);
    }
  }
}
