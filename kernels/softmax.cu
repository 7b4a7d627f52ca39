// Softmax over rows, scaled, masked, causal: y = softmax(scale * x), and its gradient dx = scale * y * (dy - sum(y * dy)).
//
// x, y, dy, dx: [rows, cols] of one type X, row strides of their own, any alignment. Row r is query r % queries of matrix r / queries; the
// mask (u8, not 0: hidden) of matrix b * heads + h lies at b * mask_batch + h * mask_head + query * mask_query; causal: query i sees
// keys j <= i + offset. A hidden element counts as -infinity; a row that has nothing above that is 0.
//
//   softmax_fwd_row, _row_masked, softmax_bwd_row
//     the row in registers, 4 vectors of 16 bytes a thread: 4 to 32 lanes a row and several rows a block of 64, or one block of up to 32
//     warps a row (backward: or a cluster of them). Small blocks, many a multiprocessor: what is under way comes from them.
//   softmax_fwd_wide
//     8 vectors a thread, which stay as they lie in memory: each power is worked out twice, so that twice as much is under way. Lanes of a
//     warp, a block of up to 16 warps, or a cluster of them a row.
//   softmax_fwd_loop, softmax_bwd_loop
//     512 threads a row of any length: maximum and sum in one pass (online), then the row is read again, from L2 where it still lies there.
// Vectors are cut where those of the result begin. Rows of x that begin elsewhere are shifted into place, by softmax_fwd_wide and softmax_bwd_row;
// the other row kernels want rows that begin alike.
//
// Bytes moved per element: forward 2 sizeof(X), 1 more with a mask of its own; backward 3 sizeof(X). Causal: what is hidden is written,
// not read. BACKWARD chooses which are compiled.
#include "common/rows.cuh"

#define SLOTS 4
#define WIDE_SLOTS 8
#define WIDE_THREADS 512
#define MAX_CLUSTER 8
#define LOOP_THREADS 512

struct Args {
  const TX *x;    // backward: y
  i64 ldx;
  const TX *dy;
  i64 lddy;
  TX *y;          // backward: dx
  i64 ldy;
  const u8 *mask;
  i64 mask_batch, mask_head, mask_query;
  i64 rows, cols, queries, heads, offset;
  float scale;    // forward: |scale| * log2(e), not 0
  u32 flip;       // forward: the sign bits of a word where scale is negative
  i32 causal;
  u32 lanes;      // threads of a row, or of each of its blocks
  u32 blocks;     // of a row, which are a cluster
  u32 early;      // so many blocks of whole rows ask L2 for them ahead of the kernel before
};

// The row's mask (or null) and how many of its elements causality leaves.
struct Place {
  const u8 *mask;
  i64 visible;
};

DEVICE Place place_of(const Args &a, i64 row) {
  Place p = {nullptr, a.cols};
  if (!a.causal && !a.mask) return p;
  // A division of 64 bits is long.
  const bool narrow = a.rows >> 32 == 0;
  const i64 matrix = narrow ? (i64)((u32)row / (u32)a.queries) : row / a.queries;
  const i64 query = row - matrix * a.queries;
  if (a.causal) {
    const i64 seen = query + a.offset + 1;
    p.visible = seen < 0 ? 0 : imin(seen, a.cols);
  }
  if (a.mask) {
    const i64 batch = narrow ? (i64)((u32)matrix / (u32)a.heads) : matrix / a.heads;
    p.mask = a.mask + batch * a.mask_batch + (matrix - batch * a.heads) * a.mask_head + query * a.mask_query;
  }
  return p;
}

// The bytes of a mask beside a vector.
struct Hidden {
  u32 w[N / 4];
  DEVICE bool at(int k) const { return (w[k / 4] >> (8 * (k % 4)) & 0xFFu) != 0; }
  template <class I> DEVICE void load(const u8 *mask, I first, I n) {
    if (first >= 0 && first + N <= n && ((u64)(mask + first) & (N - 1)) == 0) {
      if constexpr (N == 8) {
        const Vec8 v = *(const Vec8 *)(mask + first);
        w[0] = v.w[0];
        w[1] = v.w[1];
      } else {
        w[0] = *(const u32 *)(mask + first);
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < N / 4; j++) w[j] = 0;
#pragma unroll
    for (int k = 0; k < N; k++)
      if (first + k >= 0 && first + k < n) w[k / 4] |= (u32)mask[first + k] << (8 * (k % 4));
  }
};

// The elements of a vector once more. Written so that a compiler does not keep what it has unpacked before, for which there are no registers.
DEVICE void unpack_again(Vec16 v, float (&f)[N]) {
#pragma unroll
  for (int j = 0; j < 4; j++) asm volatile("" : "+r"(v.w[j]));
  unpack<X>(v, f);
}

// The elements of a vector as they count: turned over where the scale is negative, -infinity where hidden.
template <bool MASKED> DEVICE void visible(const Args &a, Vec16 v, const Hidden &hidden, float (&f)[N]) {
#pragma unroll
  for (int j = 0; j < 4; j++) v.w[j] ^= a.flip;
  unpack<X>(v, f);
  if (MASKED) {
#pragma unroll
    for (int k = 0; k < N; k++) f[k] = hidden.at(k) ? NEG_INF : f[k];
  }
}

// What lies behind the last visible element of a vector is 0, whatever the row comes to.
template <class I> DEVICE void zero_hidden(I first, I n, float (&f)[N]) {
  if (first + N <= n) return;
#pragma unroll
  for (int k = 0; k < N; k++)
    if (first + k >= n) f[k] = 0.0f;
}

// exp(scale * (x - base)).
DEVICE float power(const Args &a, float f, float base) { return exp2_fast((f - base) * a.scale); }
// 1/sum; a row of nothing has the sum 0, and becomes 0. NaN passes.
DEVICE float inverse(float sum) { return sum == 0.0f ? 0.0f : reciprocal(sum); }

// With a mask the compiler for sm_120 wants a few registers more than there are.
#define TIGHT(masked) ((masked) && __CUDA_ARCH__ >= 1200)

// How whole vectors are stored: by a cache policy; as usual where there are no registers for it.
template <bool MASKED> struct Store {
  u64 policy;
  DEVICE Store(const Args &a) : policy(store_policy(beyond_cache(a.rows, a.cols, sizeof(TX)))) {}
  DEVICE void operator()(TX *to, Vec16 v) const {
    if (TIGHT(MASKED)) st16(to, v);
    else st16(to, v, policy);
  }
};

// Writes a vector as store_row does.
template <class Put> DEVICE void put_row(TX *row, i32 first, i32 n, const float (&f)[N], const Put &put) {
  if (first >= 0 && first + N <= n) put(row + first, pack<X>(f));
  else store_row(row, first, n, f, false);
}

// Zeros where a row's vectors are hidden as a whole, `step` elements apart from `start` on: written while the visible ones are on their way.
template <int S, class Put> DEVICE void put_hidden(TX *row, i32 start, i32 step, i32 visible, i32 cols, const Put &put) {
  const float zeros[N] = {};
#pragma unroll
  for (int i = 0; i < S; i++) {
    const i32 first = start + i * step;
    if (first >= visible && first < cols) put_row(row, first, cols, zeros, put);
  }
}

// Which row this thread works on, and as which of how many.
struct Group {
  u32 T, t;
  i64 row;
  DEVICE Group(const Args &a) {
    T = a.lanes;
    const u32 shift = 31 - __clz((int)T);
    t = T > 32 ? threadIdx.x : threadIdx.x & (T - 1);
    row = T > 32 ? (i64)blockIdx.x : (i64)blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
  }
};

// Asks L2 for the rows of one of the first blocks.
DEVICE void ask_for_row(const TX *row, i64 n) {
  const u64 from = (u64)row & ~15ull, end = ((u64)(row + n) + 15) & ~15ull;
  ask_l2((const void *)from, (u32)(end - from));
}
DEVICE void ask_for_rows(const Args &a) {
#if __CUDA_ARCH__ == 900
  if (blockIdx.x >= a.early) return;
  const Group g(a);
  if (g.t || g.row >= a.rows) return;
  ask_for_row(a.x + g.row * a.ldx, a.cols);
#if BACKWARD
  ask_for_row(a.dy + g.row * a.lddy, a.cols);
#endif
#endif
}

// The same where several blocks may share a row: each has S vectors a thread, side by side.
template <int S> struct SharedGroup {
  u32 T, t, rank, blocks;
  i64 row;
  DEVICE SharedGroup(const Args &a) {
    T = a.lanes;
    blocks = T > 32 ? a.blocks : 1;
    if (T > 32) {
      const u32 r = blockIdx.x / blocks;
      t = threadIdx.x, rank = blockIdx.x - r * blocks, row = r;
    } else {
      const u32 shift = 31 - __clz((int)T);
      t = threadIdx.x & (T - 1), rank = 0, row = (i64)blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
    }
  }
  DEVICE i32 start() const { return (i32)((rank * S * T + t) * N); }
};

// What a block has found in its share of a row.
struct alignas(8) Found { float most, sum; };
// Every block calls the first when it begins, then the second, which puts what each has found into the `all` of each.
DEVICE void blocks_started() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
DEVICE void blocks_exchange(Found *all, u32 t, u32 rank, u32 blocks, float most, float sum) {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
  if (t < blocks)
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.v2.f32 [there], {%2, %3}; }"
                 :: "r"(shared_address(&all[rank])), "r"(t), "f"(most), "f"(sum) : "memory");
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

#if !BACKWARD
template <bool MASKED> DEVICE void forward_row(const Args &a) {
  __shared__ float part[2][32];
  const Group g(a);
  // A row behind the last has no elements: its lanes go along, since the others' shuffles need them.
  const bool there = g.row < a.rows;
  const i64 row = there ? g.row : 0;
  const Place p = place_of(a, row);
  const TX *x = a.x + row * a.ldx;
  const i32 n = there ? (i32)p.visible : 0, lead = (i32)lead_of(x);
  const i32 start = (i32)(g.t * N) - lead, step = (i32)(g.T * N);
  Vec16 v[SLOTS];
  Hidden hidden[SLOTS];
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    const i32 first = start + i * step;
    if (first < n) v[i] = load_row(x, first, n, WORD_NEG_INF ^ a.flip);
  }
  TX *y = a.y + row * a.ldy;
  const i32 cols = (i32)a.cols;
  const Store<MASKED> put(a);
  if (there && !TIGHT(MASKED)) put_hidden<SLOTS>(y, start, step, n, cols, put);
  if (MASKED) {
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
      if (start + i * step < n) hidden[i].load(p.mask, start + i * step, n);
  }
  float f[SLOTS][N], m = NEG_INF;
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    if (start + i * step >= n) continue;
    visible<MASKED>(a, v[i], hidden[i], f[i]);
#pragma unroll
    for (int k = 0; k < N; k++) m = fmaxf(m, f[i][k]);
  }
  const float base = base_of(row_max(m, g.T, part[0]));
  float sums[2] = {};
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    if (start + i * step >= n) continue;
#pragma unroll
    for (int k = 0; k < N; k++) sums[k & 1] += f[i][k] = power(a, f[i][k], base);
  }
  const float inv = inverse(row_total(sums[0] + sums[1], g.T, part[1]));
  if (!there) return;
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    const i32 first = start + i * step;
    if (first >= n) continue;
    float out[N];
#pragma unroll
    for (int k = 0; k < N; k++) out[k] = f[i][k] * inv;
    zero_hidden(first, n, out);
    put_row(y, first, cols, out, put);
  }
  if (TIGHT(MASKED)) put_hidden<SLOTS>(y, start, step, n, cols, put);
}

extern "C" __global__ void __launch_bounds__(1024) softmax_fwd_row(const __grid_constant__ Args a) {
  ask_for_rows(a);
  after_previous();
  forward_row<false>(a);
}
extern "C" __global__ void __launch_bounds__(1024) softmax_fwd_row_masked(const __grid_constant__ Args a) {
  ask_for_rows(a);
  after_previous();
  forward_row<true>(a);
}

// The largest element of a vector; like fmaxf, it drops NaN. Two at a time.
DEVICE float largest(const Vec16 &v) {
  if (X == DT_F32) return fmaxf(fmaxf(float_of(v.w[0]), float_of(v.w[1])), fmaxf(float_of(v.w[2]), float_of(v.w[3])));
  const auto halves = [](u32 a, u32 b) {
    u32 r;
    if (X == DT_BF16) asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    else asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  };
  float low, high;
  unpack2<X>(halves(halves(v.w[0], v.w[1]), halves(v.w[2], v.w[3])), low, high);
  return fmaxf(low, high);
}

// -infinity in place of what the mask hides.
DEVICE void hide(Vec16 &v, const Hidden &hidden, u32 infinity) {
#pragma unroll
  for (int k = 0; k < N; k++) {
    const u32 part = X == DT_F32 ? 0xFFFFFFFFu : k & 1 ? 0xFFFF0000u : 0xFFFFu;
    u32 &w = v.w[k * 4 / N];
    if (hidden.at(k)) w = (w & ~part) | (infinity & part);
  }
}

extern "C" __global__ void __launch_bounds__(WIDE_THREADS, __CUDA_ARCH__ >= 1000 ? 1 : 2) softmax_fwd_wide(const __grid_constant__ Args a) {
  ask_for_rows(a);
  after_previous();
  __shared__ float part[2][32];
  __shared__ Found all[MAX_CLUSTER];
  const SharedGroup<WIDE_SLOTS> g(a);
  const bool there = g.row < a.rows;
  const i64 row = there ? g.row : 0;
  const Place p = place_of(a, row);
  const TX *x = a.x + row * a.ldx;
  TX *y = a.y + row * a.ldy;
  const i32 n = there ? (i32)p.visible : 0, lead = (i32)lead_of(y), start = g.start() - lead, step = (i32)(g.T * N);
  const u32 infinity = WORD_NEG_INF ^ a.flip;
  if (g.blocks > 1) blocks_started();
  Vec16 v[WIDE_SLOTS];
  if (lead_of(x) == (u32)lead) load_slots(x, start, step, n, infinity, v);
  else load_shifted(x, start, step, n, infinity, v);
  const i32 cols = (i32)a.cols;
  const Store<false> put(a);
  if (there) put_hidden<WIDE_SLOTS>(y, start, step, n, cols, put);
  if (p.mask) {
#pragma unroll
    for (int i = 0; i < WIDE_SLOTS; i++)
      if (start + i * step < n) {
        Hidden hidden;
        hidden.load(p.mask, start + i * step, n);
        hide(v[i], hidden, infinity);
      }
  }
  if (a.flip) {
#pragma unroll
    for (int i = 0; i < WIDE_SLOTS; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) v[i].w[j] ^= a.flip;
  }
  float m = NEG_INF;
#pragma unroll
  for (int i = 0; i < WIDE_SLOTS; i++)
    if (start + i * step < n) m = fmaxf(m, largest(v[i]));
  m = row_max(m, g.T, part[0]);
  float base = base_of(m), sums[2] = {};
#pragma unroll
  for (int i = 0; i < WIDE_SLOTS; i++) {
    if (start + i * step >= n) continue;
    float f[N];
    unpack<X>(v[i], f);
#pragma unroll
    for (int k = 0; k < N; k++) sums[k & 1] += power(a, f[k], base);
  }
  float sum = row_total(sums[0] + sums[1], g.T, part[1]);
  if (g.blocks > 1) {
    blocks_exchange(all, g.t, g.rank, g.blocks, m, sum);
    // In the order of the blocks, the same everywhere.
#pragma unroll 1
    for (u32 r = 0; r < g.blocks; r++) m = fmaxf(m, all[r].most);
    base = base_of(m);
    sum = 0.0f;
#pragma unroll 1
    for (u32 r = 0; r < g.blocks; r++) sum += all[r].sum * power(a, base_of(all[r].most), base);
  }
  const float inv = inverse(sum);
  if (!there) return;
#pragma unroll
  for (int i = 0; i < WIDE_SLOTS; i++) {
    const i32 first = start + i * step;
    if (first >= n) continue;
    float f[N];
    unpack_again(v[i], f);
#pragma unroll
    for (int k = 0; k < N; k++) f[k] = power(a, f[k], base) * inv;
    zero_hidden(first, n, f);
    put_row(y, first, cols, f, put);
  }
}

template <bool MASKED> DEVICE void forward_loop(const Args &a) {
  __shared__ float part[2][32];
  constexpr i64 step = (i64)LOOP_THREADS * N;
#pragma unroll 1
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const Place p = place_of(a, row);
    const TX *x = a.x + row * a.ldx;
    const i64 n = p.visible, start = (i64)threadIdx.x * N - lead_of(x);
    float m = NEG_INF, sum = 0.0f;
#pragma unroll 1
    for (i64 at = start; at < n; at += SLOTS * step) {
      Vec16 v[SLOTS];
      Hidden hidden[SLOTS];
#pragma unroll
      for (int i = 0; i < SLOTS; i++) v[i] = load_row(x, at + i * step, n, WORD_NEG_INF ^ a.flip);
      if (MASKED) {
#pragma unroll
        for (int i = 0; i < SLOTS; i++) hidden[i].load(p.mask, at + i * step, n);
      }
      float most = m, f[N];
#pragma unroll
      for (int i = 0; i < SLOTS; i++) {
        visible<MASKED>(a, v[i], hidden[i], f);
#pragma unroll
        for (int k = 0; k < N; k++) most = fmaxf(most, f[k]);
      }
      const float base = base_of(most);
      // Its own sum for each stretch: the error of a long row stays that of a shorter one.
      float sums[2] = {};
#pragma unroll
      for (int i = 0; i < SLOTS; i++) {
        visible<MASKED>(a, v[i], hidden[i], f);
#pragma unroll
        for (int k = 0; k < N; k++) sums[k & 1] += power(a, f[k], base);
      }
      sum = sum * power(a, m, base) + (sums[0] + sums[1]);
      m = most;
    }
    const float base = base_of(row_max(m, LOOP_THREADS, part[0]));
    // A thread that saw nothing has the maximum -infinity and the sum 0.
    const float inv = inverse(row_total(sum * power(a, m, base), LOOP_THREADS, part[1]));
    TX *y = a.y + row * a.ldy;
    const bool whole = lead_of(y) == lead_of(x);
#pragma unroll 2
    for (i64 at = start; at < a.cols; at += step) {
      float f[N] = {};
      if (at < n) {
        const Vec16 v = load_row(x, at, n, WORD_NEG_INF ^ a.flip);
        Hidden hidden;
        if (MASKED) hidden.load(p.mask, at, n);
        visible<MASKED>(a, v, hidden, f);
#pragma unroll
        for (int k = 0; k < N; k++) f[k] = power(a, f[k], base) * inv;
        zero_hidden(at, n, f);
      }
      store_row(y, at, a.cols, f, whole);
    }
    // The next row's sums would otherwise meet threads that still read this row's.
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(LOOP_THREADS) softmax_fwd_loop(const __grid_constant__ Args a) {
  after_previous();
  if (a.mask) forward_loop<true>(a);
  else forward_loop<false>(a);
}

#else
// f * g, added up in pairs.
DEVICE float dot(const Vec16 &y, const Vec16 &dy) {
  float f[N], g[N], s[2] = {};
  unpack<X>(y, f);
  unpack<X>(dy, g);
#pragma unroll
  for (int k = 0; k < N; k++) s[k & 1] += f[k] * g[k];
  return s[0] + s[1];
}
DEVICE void gradient(const Args &a, const Vec16 &y, const Vec16 &dy, float sum, float (&out)[N]) {
  float g[N];
  unpack<X>(y, out);
  unpack<X>(dy, g);
#pragma unroll
  for (int k = 0; k < N; k++) out[k] = a.scale * (out[k] * (g[k] - sum));
}

extern "C" __global__ void __launch_bounds__(1024) softmax_bwd_row(const __grid_constant__ Args a) {
  ask_for_rows(a);
  after_previous();
  __shared__ float part[32];
  __shared__ Found all[MAX_CLUSTER];
  const SharedGroup<SLOTS> g(a);
  const bool there = g.row < a.rows;
  const i64 row = there ? g.row : 0;
  const TX *y = a.x + row * a.ldx, *dy = a.dy + row * a.lddy;
  TX *dx = a.y + row * a.ldy;
  const i32 n = there ? (i32)place_of(a, row).visible : 0, lead = (i32)lead_of(dx), start = g.start() - lead, step = (i32)(g.T * N);
  if (g.blocks > 1) blocks_started();
  Vec16 v[SLOTS], w[SLOTS];
  if (lead_of(y) == (u32)lead && lead_of(dy) == (u32)lead) {
    load_slots(y, start, step, n, 0u, v);
    load_slots(dy, start, step, n, 0u, w);
  } else {
    load_shifted(y, start, step, n, 0u, v);
    load_shifted(dy, start, step, n, 0u, w);
  }
  const i32 cols = (i32)a.cols;
  const Store<false> put(a);
  if (there) put_hidden<SLOTS>(dx, start, step, n, cols, put);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < SLOTS; i++)
    if (start + i * step < n) sum += dot(v[i], w[i]);
  sum = row_total(sum, g.T, part);
  if (g.blocks > 1) {
    blocks_exchange(all, g.t, g.rank, g.blocks, 0.0f, sum);
    sum = 0.0f;
#pragma unroll 1
    for (u32 r = 0; r < g.blocks; r++) sum += all[r].sum;
  }
  if (!there) return;
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    const i32 first = start + i * step;
    if (first >= n) continue;
    float out[N];
    gradient(a, v[i], w[i], sum, out);
    zero_hidden(first, n, out);
    put_row(dx, first, cols, out, put);
  }
}

extern "C" __global__ void __launch_bounds__(LOOP_THREADS) softmax_bwd_loop(const __grid_constant__ Args a) {
  after_previous();
  __shared__ float part[32];
  constexpr i64 step = (i64)LOOP_THREADS * N;
#pragma unroll 1
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const TX *y = a.x + row * a.ldx, *dy = a.dy + row * a.lddy;
    const i64 n = place_of(a, row).visible, start = (i64)threadIdx.x * N - lead_of(y);
    const bool dy_whole = lead_of(dy) == lead_of(y);
    float sum = 0.0f;
#pragma unroll 1
    for (i64 at = start; at < n; at += SLOTS * step) {
      Vec16 v[SLOTS], w[SLOTS];
#pragma unroll
      for (int i = 0; i < SLOTS; i++) {
        v[i] = load_row(y, at + i * step, n, 0u);
        w[i] = load_row(dy, at + i * step, n, 0u, dy_whole);
      }
      float s = 0.0f;
#pragma unroll
      for (int i = 0; i < SLOTS; i++) s += dot(v[i], w[i]);
      sum += s;
    }
    sum = row_total(sum, LOOP_THREADS, part);
    TX *dx = a.y + row * a.ldy;
    const bool whole = lead_of(dx) == lead_of(y);
#pragma unroll 2
    for (i64 at = start; at < a.cols; at += step) {
      float out[N] = {};
      if (at < n) {
        gradient(a, load_row(y, at, n, 0u), load_row(dy, at, n, 0u, dy_whole), sum, out);
        zero_hidden(at, n, out);
      }
      store_row(dx, at, a.cols, out, whole);
    }
    __syncthreads();
  }
}
#endif
