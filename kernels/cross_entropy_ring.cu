// Cross-entropy of long rows from sm_90 on: the function of cross_entropy.cu, with the next rows on their way while one is worked on.
//
// One block a multiprocessor walks over the rows. Its shared memory is a ring of stages, which one warp fills by bulk copies: with a row, or
// with the slice of it that is this block's in a cluster of 2, 4 or 8. GROUPS groups of GROUP_THREADS threads take the stages in turn, so that
// one reads maxima and sums while another waits for its neighbours or writes. A group passes over its stage twice: maximum and sum together,
// of which each thread has its own until they meet, by one exchange in the block and one in the cluster; then exp(x - m) / s goes to memory,
// and the stage is free. Where no gradient is asked for, a stage is one of `pieces` of a row and is passed over once; a row needs no cluster.
//
// What the threads of a group would each work out about a row (place, target, factor) the filling warp puts beside the stage: a row is only
// some 600 instructions of a thread, of which few may go to anything but elements.
// A stage holds whole vectors: where a row begins or ends within one, its neighbours' elements come along and are covered with -infinity.
// Only the tensor's own two ends are read element by element. Needs dx to lie on 16 bytes where x does.
// Bytes moved per element: 2 sizeof(X); without a gradient 1 sizeof(X). Under way: what the stages hold that no group is at, 64 KB and more.
//
// 2^((x - m) log2 e) is one multiplication with addition and one ex2 an element: m log2 e is rounded once, and what that shifts all powers
// of a sum by is taken back from the sum. Maxima of 16-bit types are taken two at a time.
// Before cross_entropy.cuh, whose N is a macro.
#include "common/ptx_sm90.cuh"
#include "common/cross_entropy.cuh"

#ifndef GROUPS
#define GROUPS 3
#define GROUP_THREADS 256
#endif
#define WARPS (GROUP_THREADS / 32)
#define MAX_CLUSTER 8
#define MAX_STAGES 12
#define BATCH 4
// Beyond this, m log2 e is rounded too coarsely to be taken back, and the difference is formed first.
#define LARGE 1048576.0f

struct RingArgs {
  Args row;       // row.blocks: of the cluster
  u32 stages, slice;   // stages: a multiple of GROUPS, so that each is one group's; slice: vectors of a stage
  u32 pieces;     // of a row; more than 1 without a gradient and a cluster only
};

#if __CUDA_ARCH__ >= 900
struct No { static constexpr bool value = false; };
struct Yes { static constexpr bool value = true; };

DEVICE Vec16 load_shared(u32 at) { Vec16 v; asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "r"(at)); return v; }
DEVICE void store_shared(u32 at, const Vec16 &v) { asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" :: "r"(at), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory"); }
// A named barrier of a group's threads. Warps come whole.
DEVICE void meet(u32 id) { __syncwarp(); asm volatile("bar.sync %0, %1;" :: "r"(id), "n"(GROUP_THREADS) : "memory"); }

DEVICE u32 larger_halves(u32 a, u32 b) {
  u32 r;
  if (X == DT_BF16) asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  else asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// The largest element; like fmaxf, it drops NaN.
template <int K> DEVICE float largest(const Vec16 (&v)[K]) {
  if (X == DT_F32) {
    float m = NEG_INF;
#pragma unroll
    for (int i = 0; i < 4 * K; i++) m = fmaxf(m, float_of(v[i / 4].w[i % 4]));
    return m;
  }
  u32 m[4] = {WORD_NEG_INF, WORD_NEG_INF, WORD_NEG_INF, WORD_NEG_INF};
#pragma unroll
  for (int i = 0; i < 4 * K; i++) m[i % 4] = larger_halves(m[i % 4], v[i / 4].w[i % 4]);
  float low, high;
  unpack2<X>(larger_halves(larger_halves(m[0], m[1]), larger_halves(m[2], m[3])), low, high);
  return fmaxf(low, high);
}

// Powers 2^(f log2 e - shift), of which exp(f - base) is `fair` times as much.
struct Powers {
  float base, shift, fair;
  bool large;
  DEVICE Powers(float most) {
    base = base_of(most);
    large = !(fabsf(base) <= LARGE);
    shift = large ? 0.0f : base * LOG2E;
    fair = large ? 1.0f : exp2_fast(-__fmaf_rn(base, LOG2E, -shift));
  }
  DEVICE void prepare(float (&f)[N]) const {
    if (!large) return;
#pragma unroll
    for (int k = 0; k < N; k++) f[k] -= base;
  }
  DEVICE float of(float f) const { return exp2_fast(__fmaf_rn(f, LOG2E, -shift)); }
};

// Adds vectors, `step` elements apart from `first` on, of which elements in [0, end) count, to what a thread has of a row.
template <bool SMOOTH> DEVICE void add_vectors(Part &p, const Vec16 (&v)[BATCH], i32 first, i32 step, i32 end) {
  const float most = fmaxf(p.most, largest(v));
  const Powers powers(most);
  // A sum of its own for each batch: the error of a long row stays that of a shorter one.
  float sums[2] = {}, logits[2] = {};
#pragma unroll
  for (int i = 0; i < BATCH; i++) {
    float f[N];
    unpack<X>(v[i], f);
    if (SMOOTH) {
      const i32 at = first + i * step;
      if (at >= 0 && at + N <= end) {
#pragma unroll
        for (int k = 0; k < N; k++) logits[k & 1] += f[k];
      } else {
        logits[0] += sum_of(f, at, end);
      }
    }
    powers.prepare(f);
#pragma unroll
    for (int k = 0; k < N; k++) sums[k & 1] += powers.of(f[k]);
  }
  p.sum = p.sum * exp2_fast((p.most - powers.base) * LOG2E) + (sums[0] + sums[1]) * powers.fair;
  p.most = most;
  if (SMOOTH) p.logits += logits[0] + logits[1];
}

// The parts of a warp's lanes become one.
DEVICE void join(Part &p, bool smooth) {
  const float own = p.most;
  p.most = warp_max_float(own);
  p.sum = warp_sum(p.sum * exp2_fast((own - base_of(p.most)) * LOG2E));
  if (smooth) p.logits = warp_sum(p.logits);
}

// What a stage holds, put there by the warp that fills it.
struct alignas(16) Stage {
  i64 row;
  i32 start, vectors;   // element of the row that its first vector begins with, and how many there are
  i32 hit;              // element that is the target
  float factor;         // of the gradient
  u32 is, pad;
};
#define IGNORED 1u    // the target counts for nothing
#define BAD 2u        // it lies outside the vocabulary
#define HERE 4u       // `hit` is one of this stage's elements
#define BEGINS 8u     // of several pieces the first
#define ENDS 16u      // or the last
#define HEAD_CUT 32u  // its first vector begins before the row
#define TAIL_CUT 64u  // its last one ends behind it
#define HEAD_GONE 128u  // and has not been read, since nothing lies there
#define TAIL_GONE 256u
#define DONE 512u     // no row any more

// Covers what is not the row's in vector `at` of the stage.
DEVICE void cover(const RingArgs &a, const Stage &s, u32 data, i32 at, bool gone) {
  const TX *x = a.row.x + s.row * a.row.ldx;
  const i32 first = s.start + at * N, n = (i32)a.row.cols;
  Vec16 w;
  if (gone) {
    w = load_row(x, first, n, WORD_NEG_INF, false);
  } else {
    w = load_shared(data + at * 16);
#pragma unroll
    for (int q = 0; q < N; q++) {
      const u32 half = X == DT_F32 ? 0xFFFFFFFFu : q & 1 ? 0xFFFF0000u : 0xFFFFu;
      if (first + q < 0 || first + q >= n) w.w[q * 4 / N] = (w.w[q * 4 / N] & ~half) | (WORD_NEG_INF & half);
    }
  }
  store_shared(data + at * 16, w);
}

// The gradient of what lies at `data`.
DEVICE void put_gradient(const RingArgs &ring_args, const Stage &s, u32 data, u32 t, float base, float sum) {
  const Args &a = ring_args.row;
  TX *dx = a.dx + s.row * a.lddx;
  const i32 n = (i32)a.cols;
  if (s.is & IGNORED) {
    const float zeros[N] = {};
#pragma unroll 4
    for (i32 j = (i32)t; j < s.vectors; j += GROUP_THREADS) store_row(dx, s.start + j * N, n, zeros, true);
    return;
  }
  const Powers powers(base);
  const float scale = (s.is & BAD ? NVTE_NAN : s.factor * reciprocal(sum)) * powers.fair;
  const float even = a.smoothing == 0.0f ? 0.0f : a.smoothing * s.factor / (float)a.vocabulary, off = (1.0f - a.smoothing) * s.factor;
#pragma unroll 1
  for (i32 j = (i32)t; j < s.vectors; j += BATCH * GROUP_THREADS) {
    Vec16 v[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; i++)
      if (j + i * GROUP_THREADS < s.vectors) v[i] = load_shared(data + (j + i * GROUP_THREADS) * 16);
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      if (j + i * GROUP_THREADS >= s.vectors) break;
      const i32 first = s.start + (j + i * GROUP_THREADS) * N;
      float f[N];
      unpack<X>(v[i], f);
      powers.prepare(f);
#pragma unroll
      for (int q = 0; q < N; q++) f[q] = __fmaf_rn(powers.of(f[q]), scale, -even);
      if ((u32)(s.hit - first) < N) {
#pragma unroll
        for (int q = 0; q < N; q++)
          if (q == s.hit - first) f[q] -= off;
      }
      store_row(dx, first, n, f, true);
    }
  }
}

// A group's part: rows as they come.
struct Shared {
  u64 full[MAX_STAGES], empty[MAX_STAGES], met[GROUPS][2];
  Stage stage[MAX_STAGES];
  float logit[GROUPS][2];
  Part part[GROUPS][2][32], gathered[GROUPS][2][MAX_CLUSTER];
};

extern __shared__ __align__(128) u8 ring[];

DEVICE void take_stages(const RingArgs &ring_args, Shared &shared, u32 rank) {
  const Args &a = ring_args.row;
  const u32 group = threadIdx.x / GROUP_THREADS, t = threadIdx.x % GROUP_THREADS, lane = t & 31;
  const bool needed = a.lse || a.partial, smooth = a.smoothing != 0.0f;
  // Rows that the group has summed up: what they meet by is there twice, since a warp that is ahead can be in the next row, but no further.
  u32 summed = 0, k = group, parity = 0;
  Part p;
#pragma unroll 1
  while (true) {
    const u32 data = smem_u32(ring) + k * ring_args.slice * 16;
    mbar_wait(smem_u32(&shared.full[k]), parity);
    const Stage s = shared.stage[k];
    if (s.is & DONE) return;
    float base = 0.0f, sum = 0.0f;
    if ((s.is & IGNORED) && !needed) {
      if (a.loss && rank == 0 && (s.is & BEGINS) && t == 0) a.loss[s.row] = 0.0f;
    } else {
      if ((s.is & HEAD_CUT) && t == 0) cover(ring_args, s, data, 0, s.is & HEAD_GONE);
      if ((s.is & TAIL_CUT) && (u32)(s.vectors - 1) % GROUP_THREADS == t) cover(ring_args, s, data, s.vectors - 1, s.is & TAIL_GONE);
      if (a.combined) {
        base = base_of(a.combined[4 * s.row]);
        sum = a.combined[4 * s.row + 1];
      } else {
        if (s.is & BEGINS) p = Part{NEG_INF, 0.0f, 0.0f, 0.0f};
        const i32 n = (i32)a.cols, last = s.start + s.vectors * N, end = last < n ? last : n;
        auto pass = [&](auto smoothed) {
#pragma unroll 1
          for (i32 j = (i32)t; j < s.vectors; j += BATCH * GROUP_THREADS) {
            Vec16 v[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
              v[i] = Vec16{{WORD_NEG_INF, WORD_NEG_INF, WORD_NEG_INF, WORD_NEG_INF}};
              if (j + i * GROUP_THREADS < s.vectors) v[i] = load_shared(data + (j + i * GROUP_THREADS) * 16);
            }
            add_vectors<decltype(smoothed)::value>(p, v, s.start + j * N, GROUP_THREADS * N, end);
          }
        };
        if (smooth) pass(Yes{});
        else pass(No{});
        const u32 odd = summed & 1;
        // By who has covered what is beside it.
        if ((s.is & HERE) && (u32)((s.hit - s.start) / N) % GROUP_THREADS == t)
          shared.logit[group][odd] = Elem<X>::load(*(const TX *)(ring + (data - smem_u32(ring)) + (s.hit - s.start) * (i32)sizeof(TX)));
        if (s.is & ENDS) {
          join(p, smooth);
          if (lane == 0) shared.part[group][odd][t >> 5] = p;
          meet(1 + group);
          p = Part{NEG_INF, 0.0f, 0.0f, 0.0f};
          if (lane < WARPS) p = shared.part[group][odd][lane];
          join(p, smooth);
          // A row in pieces is this block's as a whole.
          p.logit = (s.is & HERE) || (a.blocks == 1 && s.hit >= 0) ? shared.logit[group][odd] : 0.0f;
          if (a.blocks > 1) {
            const u32 bar = smem_u32(&shared.met[group][odd]);
            if (t == 0) mbar_arrive_expect(bar, 16 * a.blocks);
            if (t < a.blocks)
              send16(smem_u32(&shared.gathered[group][odd][rank]), bar, t, Vec16{{bits_of(p.most), bits_of(p.sum), bits_of(p.logit), bits_of(p.logits)}});
            mbar_wait_cluster(bar, summed >> 1 & 1);
            p = Part{NEG_INF, 0.0f, 0.0f, 0.0f};
            if (lane < a.blocks) p = shared.gathered[group][odd][lane];
            join(p, smooth);
            p.logit = warp_sum(p.logit);
          }
          summed++;
          base = base_of(p.most);
          sum = p.sum;
          if (t == 0 && rank == 0) {
            const Target target = {s.hit, (s.is & IGNORED) != 0, (s.is & BAD) != 0};
            put_results(a, s.row, target, p);
          }
        }
      }
    }
    if (a.dx) put_gradient(ring_args, s, data, t, base, sum);
    __syncwarp();
    if (lane == 0) mbar_arrive(smem_u32(&shared.empty[k]));
    k += GROUPS;
    if (k >= ring_args.stages) k = group, parity ^= 1;
  }
}

// The filling warp's part, of which one thread does it: rows in the order of the groups, each with its pieces one after the other.
DEVICE void fill_stages(const RingArgs &ring_args, Shared &shared, u32 rank) {
  const Args &a = ring_args.row;
  const u32 first_row = blockIdx.x / a.blocks, stride = gridDim.x / a.blocks;
  const i32 n = (i32)a.cols;
  const bool needed = a.lse || a.partial;
  u32 k = 0, parity = 1, open = (1u << GROUPS) - 1;
  i64 next = first_row;   // row of the next stage that begins one; its label and factor are asked for a row ahead
  i64 labels[GROUPS];
  float factors[GROUPS];
#pragma unroll
  for (u32 g = 0; g < GROUPS; g++) labels[g] = 0, factors[g] = 0.0f;
  auto ask = [&](u32 g, i64 row) {
    if (row >= a.tokens) return;
    labels[g] = label_of(a, row);
    if (a.dx && a.dloss) factors[g] = a.dloss[row * a.dloss_stride];
  };
#pragma unroll
  for (u32 g = 0; g < GROUPS; g++) ask(g, next + (i64)g * stride);
  const float count = a.dx && a.count ? *a.count : 1.0f;
#pragma unroll 1
  for (; open; next += (i64)GROUPS * stride) {
#pragma unroll 1
    for (u32 piece = 0; piece < ring_args.pieces; piece++) {
#pragma unroll
      for (u32 g = 0; g < GROUPS; g++) {
        const i64 row = next + (i64)g * stride;
        if (open >> g & 1) {
          const u32 bar = smem_u32(&shared.full[k]);
          mbar_wait(smem_u32(&shared.empty[k]), parity);
          Stage s = {};
          s.row = row;
          if (row >= a.tokens) {
            s.is = DONE;
            shared.stage[k] = s;
            mbar_arrive(bar);
            open &= ~(1u << g);
          } else {
            const TX *x = a.x + row * a.ldx;
            const i32 lead = (i32)lead_of(x), vectors = (lead + n + N - 1) / N;
            i32 begin = (i32)((ring_args.pieces > 1 ? piece : rank) * ring_args.slice);
            i32 end = begin + (i32)ring_args.slice < vectors ? begin + (i32)ring_args.slice : vectors;
            if (end < begin) end = begin;
            const Target target = target_of(a, labels[g]);
            s.start = begin * N - lead;
            s.vectors = end - begin;
            s.hit = (i32)target.at;
            s.factor = a.count ? __fdiv_rn(a.dloss ? factors[g] : 1.0f, count) : a.dloss ? factors[g] : 1.0f;
            s.is = (target.ignored ? IGNORED : 0) | (target.bad ? BAD : 0) | (piece == 0 ? BEGINS : 0) | (piece + 1 == ring_args.pieces ? ENDS : 0);
            if (s.hit >= s.start && s.hit < s.start + s.vectors * N && s.hit >= 0) s.is |= HERE;
            u32 dst = smem_u32(ring) + k * ring_args.slice * 16;
            // Neighbours are there except at the tensor's own ends.
            if (lead && begin == 0 && end > 0) {
              s.is |= HEAD_CUT;
              if (row == 0) s.is |= HEAD_GONE, begin++, dst += 16;
            }
            if ((lead + n) % N && end == vectors && s.vectors > 0) {
              s.is |= TAIL_CUT;
              if (row == a.tokens - 1) s.is |= TAIL_GONE, end--;
            }
            shared.stage[k] = s;
            if (end <= begin || (target.ignored && !needed)) {
              mbar_arrive(bar);
            } else {
              const u32 bytes = (u32)(end - begin) * 16;
              bulk_fence();
              mbar_arrive_expect(bar, bytes);
              bulk_load(dst, x - lead + (i64)begin * N, bytes, bar);
            }
            if (piece + 1 == ring_args.pieces) ask(g, row + (i64)GROUPS * stride);
          }
        }
        if (++k == ring_args.stages) k = 0, parity ^= 1;
      }
    }
  }
}
#endif

extern "C" __global__ void __launch_bounds__(GROUPS *GROUP_THREADS + 32, 1) cross_entropy_ring(const __grid_constant__ RingArgs a) {
  after_previous();
#if __CUDA_ARCH__ >= 900
  __shared__ Shared shared;
  const bool cluster = a.row.blocks > 1;
  const u32 rank = cluster ? cluster_rank() : 0;
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (u32 i = 0; i < a.stages; i++) {
      mbar_init(smem_u32(&shared.full[i]), 1);
      mbar_init(smem_u32(&shared.empty[i]), WARPS);
    }
#pragma unroll 1
    for (u32 i = 0; i < 2 * GROUPS; i++) mbar_init(smem_u32(&shared.met[i / 2][i % 2]), 1);
    mbar_init_fence();
    bulk_fence();
  }
  __syncthreads();
  if (cluster) cluster_sync();
  // A block may leave before others of its cluster: all that was sent to it has arrived, which is how it knew its last row.
  if (threadIdx.x < GROUPS * GROUP_THREADS) take_stages(a, shared, rank);
  else if (threadIdx.x == GROUPS * GROUP_THREADS) fill_stages(a, shared, rank);
#endif
}
