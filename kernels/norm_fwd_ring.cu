// LayerNorm (RMS = 0) and RMSNorm (RMS = 1) forward for rows that no block has registers for: as norm_fwd_row.cu, with each row shared out
// among the blocks of a cluster. No residual; everything is aligned for vectors.
//
// One block per multiprocessor stays for the whole pass and walks over rows, with the parameters of its columns in shared memory as f32: of
// rows as long as these, they would come from L2 for every row. It holds groups of `warps` warps, each with its share of a row at a time. A
// thread's vectors of the next `kept` rows come by cp.async into places that nobody else reads, and stay in registers from there to y.
// Every warp sums about a mean of its own and sends what it found to all blocks, where each warp brings all of it to one centre, a lane for each
// that sent: one exchange a row, and no barrier.
//
// Bytes moved per element: sizeof(X) + sizeof(y); once per column and cluster its parameters.
#include "common/ptx_sm90.cuh"
#include "common/norm_fwd.cuh"

// Vectors of a thread, groups of a block at most.
#define SLOTS (32 / N)
#define GROUPS 4
// Warps of a block at most.
#define WARPS 24
#define MAX_CLUSTER 8

// About a pivot: n columns, the sum of x - pivot and of its square.
struct alignas(16) Found { float n, pivot, rest, squares; };

DEVICE Found read_found(u32 at) {
  const Vec16 v = read16(at);
  return {float_of(v.w[0]), float_of(v.w[1]), float_of(v.w[2]), float_of(v.w[3])};
}
// What `count` of them found, from `at` on, together; `inv_n`: 1 / all their columns. All lanes of a warp call it.
DEVICE Found together(u32 at, u32 count, float inv_n) {
  const u32 lane = threadIdx.x & 31;
  Found all = {0.0f, 0.0f, 0.0f, 0.0f};
#if RMS
#pragma unroll 1
  for (u32 i = lane; i < count; i += 32) all.squares += read_found(at + i * 16).squares;
  all.squares = warp_sum(all.squares);
#else
  float sum = 0.0f;
#pragma unroll 1
  for (u32 i = lane; i < count; i += 32) {
    const Found f = read_found(at + i * 16);
    sum += f.n * f.pivot;
  }
  all.pivot = centre_of(warp_sum(sum), inv_n);
#pragma unroll 1
  for (u32 i = lane; i < count; i += 32) {
    const Found f = read_found(at + i * 16);
    const float d = f.pivot - all.pivot, nd = f.n * d;
    all.rest += f.rest + nd;
    all.squares += f.squares + d * (2.0f * f.rest + nd);
  }
  group_sum2(all.rest, all.squares, nullptr, nullptr, nullptr, 1, [] {});
#endif
  return all;
}

DEVICE u32 cluster_size() { u32 n; asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n)); return n; }
// Into block `rank`, at the same offset as here, whose barrier counts the bytes.
DEVICE void put_found(u32 at, u32 bar, u32 rank, const Found &f) {
  asm volatile(
      "{ .reg .b32 there, its; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 its, %1, %2;\n\t"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [its]; }" ::"r"(at), "r"(bar), "r"(rank),
      "f"(f.n), "f"(f.pivot), "f"(f.rest), "f"(f.squares)
      : "memory");
}

// Asks L2 for the block's share of its first rows, and of the parameters (see base.cuh).
DEVICE void ask_ahead(const Args &a) {
  const u32 C = cluster_size(), groups = blockDim.x / (a.warps * 32), vectors = (u32)a.hidden / N, per_block = (vectors + C - 1) / C;
  const u32 first = cluster_rank() * per_block, count = imin(first + per_block, vectors) - (i32)first, t = threadIdx.x;
  const i64 row = (i64)(blockIdx.x / C) * groups + t;
  if (first >= vectors) return;
  if (t < groups && row < a.rows) ask_l2(a.x + row * a.ldx + (i64)first * N, count * 16);
  const void *p = t == 32 ? a.gamma : RMS || t != 64 ? nullptr : a.beta;
  const u32 vector = N * element_size(t == 32 ? a.gamma_dt : a.beta_dt);
  if (p) ask_l2((const u8 *)p + (i64)first * vector, count * vector);
}

// Dynamic shared memory, 16-byte words: kept * SLOTS a thread, and behind them, of one group, 2 (RMSNorm: 1) * SLOTS * N / 4 a thread. X has 16 bits.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) norm_fwd_ring(const Args a) {
  ask_ahead(a);
  after_previous();
  extern __shared__ __align__(128) Vec16 ring[];
  const u32 lane = threadIdx.x & 31, T = a.warps * 32, group = threadIdx.x / T, groups = blockDim.x / T, t = threadIdx.x - group * T, warp = t >> 5;
  alignas(8) __shared__ u64 arrived[2][GROUPS];
  __shared__ Found shares[2][WARPS * MAX_CLUSTER];  // of a group: [block][warp]
  const u32 C = cluster_size(), rank = cluster_rank(), unit = blockIdx.x / C, units = gridDim.x / C;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i)
      for (int g = 0; g < GROUPS; ++g) mbar_init(shared_address(&arrived[i][g]), 1);
    mbar_init_fence();
  }
  __syncthreads();
  cluster_sync();
  // The warp's vectors: at, at + 32, ... below end.
  const u32 vectors = (u32)a.hidden / N, per_block = (vectors + C - 1) / C, per_warp = a.slots * 32, block_end = imin((rank + 1) * per_block, vectors);
  const u32 first = rank * per_block + warp * per_warp, end = imin(first + per_warp, block_end), at = first + lane;
  const float n = first < end ? (float)((end - first) * N) : 0.0f;
  const u32 pitch = blockDim.x * 16, mine = shared_address(ring) + threadIdx.x * 16;
  const i64 step = (i64)units * groups;
  const auto fetch = [&](u32 stage, i64 ahead) {
    if (ahead < a.rows) {
      const TX *x = a.x + ahead * a.ldx + (i64)at * N;
#pragma unroll
      for (int i = 0; i < SLOTS; ++i)
        if (at + i * 32 < end) copy16(mine + (stage * SLOTS + i) * pitch, x + i * 32 * N);
    }
    commit();
  };
  for (int s = 0; s < a.kept; ++s) fetch(s, (i64)unit * groups + group + s * step);
  // Parameters: vector q of slot i of a group's thread t at ((kind * SLOTS + i) * N / 4 + q) * T * 16.
  const auto parameters = [&] { return shared_address(ring) + a.kept * SLOTS * (blockDim.x * 16) + t * 16; };
  if (group == 0) {
    const u32 weights = parameters();
#pragma unroll 1
    for (int kind = 0; kind < (RMS ? 1 : 2); ++kind) {
      const void *p = kind ? a.beta : a.gamma;
      const int dt = kind ? a.beta_dt : a.gamma_dt;
      const float without = kind ? 0.0f : 1.0f, more = kind || !a.zero_centered ? -0.0f : 1.0f;
#pragma unroll 1
      for (int i = 0; i < SLOTS; ++i) {
        if (at + i * 32 >= end) break;
        float f[N];
#pragma unroll
        for (int k = 0; k < N; ++k) f[k] = without;
        if (p) {
          Parameters<N> raw;
          raw.fetch(p, dt, (i64)(at + i * 32) * N);
          raw.widen(dt, f);
#pragma unroll
          for (int k = 0; k < N; ++k) f[k] += more;
        }
#pragma unroll
        for (int q = 0; q < N / 4; ++q) write16(weights + ((kind * SLOTS + i) * (N / 4) + q) * T * 16, &f[4 * q]);
      }
    }
  }
  const u32 place = (rank * a.warps + warp) * 16;  // of what the warp finds
  const float scale = read_scale(a);
  const bool fp8 = is_fp8(a.y_dt);
  float amax = 0.0f;
  __syncthreads();
  u32 stage = 0, turns = 0;
#pragma unroll 1
  for (i64 row = (i64)unit * groups + group; row < a.rows; row += step, ++turns) {
    const u32 turn = turns & 1;
    wait(a.kept);
    float v[SLOTS][N];
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
      Vec16 raw = {{0, 0, 0, 0}};
      if (at + i * 32 < end) raw = read16(mine + (stage * SLOTS + i) * pitch);
      unpack<X>(raw, v[i]);
    }
    // The place is free again.
    fetch(stage, row + a.kept * step);
    stage = stage + 1 == (u32)a.kept ? 0 : stage + 1;
    Found f = {n, 0.0f, 0.0f, 0.0f};
    float squares[2] = {0.0f, 0.0f};
    if (!RMS) {
      float sum[2] = {0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < SLOTS; ++i)
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k & 1] += v[i][k];
      // Of as few columns, f32 has bits to spare for the sum: what the pivot lacks follows from it.
      const float all = warp_sum(sum[0] + sum[1]);
      f.pivot = n > 0.0f ? centre_of(all, __fdividef(1.0f, n)) : 0.0f;
      f.rest = __fmaf_rn(-n, f.pivot, all);
    }
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
      const float c = at + i * 32 < end ? f.pivot : 0.0f;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (!RMS) v[i][k] -= c;
        squares[k & 1] += v[i][k] * v[i][k];
      }
    }
    f.squares = warp_sum(squares[0] + squares[1]);
    const u32 l = t & 31, bar = shared_address(&arrived[turn][group]), theirs = shared_address(&shares[turn][group * a.warps * MAX_CLUSTER]);
    if (l < C) put_found(theirs + place, bar, l, f);
    if (t == 0) mbar_arrive_expect(bar, C * a.warps * sizeof(Found));
    mbar_wait(bar, turns >> 1 & 1);
    const Found all = together(theirs, C * a.warps, a.inv_n);
    const Stats s = finish(all.pivot, all.rest, all.squares, a.inv_n, a.eps);
    if (place == 0 && l == 0) put_stats(a, row, s);
    const float shift = RMS ? 0.0f : ((f.pivot - s.centre) - s.rest) * s.rsigma;
    u8 *y = a.y + (row * a.ldy + (i64)at * N) * element_size(a.y_dt);
    const u32 weights = parameters();
#pragma unroll
    for (int i = 0; i < SLOTS; ++i)
      if (at + i * 32 < end) {
#pragma unroll
        for (int q = 0; q < N / 4; ++q) {
          const Vec16 g = read16(weights + (i * (N / 4) + q) * T * 16);
          Vec16 b = g;
          if (!RMS) b = read16(weights + ((SLOTS + i) * (N / 4) + q) * T * 16);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            float &o = v[i][4 * q + k];
            o = RMS ? o * s.rsigma * float_of(g.w[k]) : (o * s.rsigma + shift) * float_of(g.w[k]) + float_of(b.w[k]);
          }
        }
        if (fp8) {
#pragma unroll
          for (int k = 0; k < N; ++k) amax = max_nan(amax, v[i][k]);
        }
        with_type(a.y_dt, [&](auto type) { store_vector<decltype(type)::value>(y, i * 32 * N, v[i], scale); });
      }
  }
  if (!fp8 || !a.amax) return;
  const u32 most = warp_max(bits_of(amax));
  // The slot only grows, so most warps need no atomic.
  if (lane == 0 && most > *(volatile const u32 *)a.amax) record_amax(a.amax, most);
}
