// The small kernels beside cross_entropy.cu, over tokens alone. Bytes moved: 4 to 16 a token and array; a few microseconds each.
//
//   loss_count    one block: how many of the targets count, as f32
//   loss_total    one block: the sum of the losses, in a fixed order, in f64; divided by the count where there is one
//   loss_combine  a thread a token: what all slices of the vocabulary have together, from `ranks` arrays of (m, s, x[target], sum of x)
// The shared header asks for a type; no kernel here looks at elements.
#define X 0
#include "common/rows.cuh"

#define BLOCK 1024

struct Args {
  const void *target;
  const float *partials;  // [ranks, tokens, 4]
  i64 ranks, rank_stride;
  float *combined;        // [tokens, 4]
  float *loss, *lse, *total, *count;
  i64 tokens, vocabulary, ignore;
  float smoothing;
  i32 narrow;
};

struct alignas(16) Part { float most, sum, logit, logits; };

DEVICE i64 target_at(const Args &a, i64 i) { return a.narrow ? (i64)((const i32 *)a.target)[i] : ((const i64 *)a.target)[i]; }

// The sum over the block, in thread 0.
template <class V> DEVICE V block_total(V v) {
  __shared__ V part[BLOCK / 32];
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xFFFFFFFFu, v, o);
  if (lane == 0) part[warp] = v;
  __syncthreads();
  v = part[lane];
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xFFFFFFFFu, v, o);
  return v;
}

extern "C" __global__ void __launch_bounds__(BLOCK) loss_count(const __grid_constant__ Args a) {
  after_previous();
  u64 n = 0;
#pragma unroll 8
  for (i64 i = threadIdx.x; i < a.tokens; i += BLOCK) n += target_at(a, i) != a.ignore;
  n = block_total(n);
  if (threadIdx.x == 0) *a.count = (float)n;
}

extern "C" __global__ void __launch_bounds__(BLOCK) loss_total(const __grid_constant__ Args a) {
  after_previous();
  double s = 0.0;
#pragma unroll 8
  for (i64 i = threadIdx.x; i < a.tokens; i += BLOCK) s += (double)a.loss[i];
  s = block_total(s);
  if (threadIdx.x == 0) *a.total = (float)(a.count ? s / (double)*a.count : s);
}

extern "C" __global__ void __launch_bounds__(256) loss_combine(const __grid_constant__ Args a) {
  after_previous();
  for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < a.tokens; i += (i64)gridDim.x * 256) {
    Part p = {NEG_INF, 0.0f, 0.0f, 0.0f};
    for (i64 r = 0; r < a.ranks; r++) p.most = fmaxf(p.most, a.partials[r * a.rank_stride + 4 * i]);
    const float base = base_of(p.most);
    for (i64 r = 0; r < a.ranks; r++) {
      const float *q = a.partials + r * a.rank_stride + 4 * i;
      p.sum += q[1] * exp2_fast((q[0] - base) * LOG2E);
      p.logit += q[2];
      p.logits += q[3];
    }
    float *c = a.combined + 4 * i;
    c[0] = p.most;
    c[1] = p.sum;
    c[2] = p.logit;
    c[3] = p.logits;
    const float log_sum = logf(p.sum);
    if (a.lse) a.lse[i] = base + log_sum;
    if (a.loss) {
      const i64 t = target_at(a, i);
      float loss = log_sum - (1.0f - a.smoothing) * (p.logit - base);
      if (a.smoothing != 0.0f) loss -= a.smoothing * (p.logits / (float)a.vocabulary - base);
      a.loss[i] = t == a.ignore ? 0.0f : t < 0 || t >= a.vocabulary ? NVTE_NAN : loss;
    }
  }
}
