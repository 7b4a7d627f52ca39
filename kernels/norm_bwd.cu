// LayerNorm (RMS = 0) and RMSNorm (RMS = 1) backward where dy, x and dx are of one TYPE and aligned for vectors.
//
//   xhat = (x - mu) * rsigma, g = dy * weight
//   dx = (g - xhat * mean(g * xhat) - mean(g)) * rsigma, plus dsum where there is one; partial sums over rows of dy * xhat and dy      (RMSNorm: no mu, no mean(g), no sum of dy)
//
// dy, x, dx, dsum: [rows, hidden] with row strides; gamma: [hidden] of f32, f16 or bf16, or null; mu, rsigma: [rows] f32;
// partial: f32 [gridDim.x][2 (RMSNorm: 1)][hidden] or null: one row of partial weight gradients per block, summed by norm_param_sum.
//
// One block per multiprocessor stays for the whole pass and walks over rows. It holds groups of `warps` warps, each with a row at a
// time and a barrier of its own. A thread owns the same OCTETS * 8 columns in every row, so it keeps their weight gradients in registers;
// its shares of the next rows come by cp.async into a ring of `stages` rows, which nobody else reads: no barrier guards it.
//
// Instructions count: at 1024 columns a warp has the time of 2700 cycles for its half of a row, and shares its scheduler with three others. So
// what a thread reads again and again lies at constants beside one address, and what no vector of a row fills is 0 in the ring, of which
// the sums need not know.
//
// Bytes moved per element: 3 sizeof(TYPE), 4 with dsum, and 8 per column and block for the partial sums.
#include "common/norm.cuh"
#if CLUSTER
#include "common/ptx_sm90.cuh"
#endif

typedef Elem<TYPE>::T TX;
#define N (Vector<TYPE>::N)
#define SLOTS (OCTETS * 8 / N)
// Whether g and xhat stay in registers from the sums over a row to its dx.
#define KEEP_G (OCTETS + !RMS <= 3 && !CLUSTER)
#define KEEP_X (OCTETS <= 2)
#define CHAIN(k) (CLUSTER ? 0 : (k) & 1)
// Bytes of a warp's share of a row of a tensor, and of f32.
#define SHARE (SLOTS * 512)
#define WIDE_SHARE (SLOTS * N * 128)

struct Args {
  const TX *dy;
  i64 lddy;
  const TX *x;
  i64 ldx;
  const void *gamma;
  const float *mu, *rsigma;
  TX *dx;
  i64 lddx;
  const TX *dsum;
  i64 ld_dsum;
  float *partial;
  i64 rows, hidden;
  int gamma_dt, zero_centered, warps, stages;
  float inv_n;
};

#if CLUSTER
DEVICE u32 umin(u32 a, u32 b) { return a < b ? a : b; }
DEVICE u32 cluster_size() { u32 n; asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n)); return n; }
// Two numbers into block `rank`, at the same offset as here, whose barrier counts their bytes.
DEVICE void put_pair(u32 at, u32 bar, u32 rank, float a, float b) {
  asm volatile(
      "{ .reg .b32 there, its; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 its, %1, %2;\n\t"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, [its]; }" ::"r"(at), "r"(bar), "r"(rank), "f"(a), "f"(b) : "memory");
}
#endif

DEVICE void write4(u32 at, float f) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(f) : "memory"); }

DEVICE float read4(u32 at) { float f; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(f) : "r"(at) : "memory"); return f; }

// Sums over a row of a group of at most 16 warps: each leaves its part at `part`, and finds all of them behind the group's barrier: few by
// reading vectors, for which they are padded with zeros, more by lanes. Two buffers take turns: one barrier a row.
#define FEW 4
template <class Sync> DEVICE void sum_over_group(float &a, float &b, u32 part, u32 warp, u32 warps, Sync barrier) {
  const u32 lane = threadIdx.x & 31;
  if (RMS) {
    a = warp_sum(a);
    if (warps == 1) return;
    if (lane == 0) write4(part + warp * 4, a);
    barrier();
    if (warps > FEW) {
      a = warp_sum(lane < warps ? read4(part + lane * 4) : 0.0f);
    } else {
      const Vec16 v = read16(part);
      a = (float_of(v.w[0]) + float_of(v.w[1])) + (float_of(v.w[2]) + float_of(v.w[3]));
    }
    return;
  }
  // After one exchange the lower half of a warp sums a, the upper half b.
  const bool low = lane < 16;
  const u32 half = part + (low ? 0 : 4), l = lane & 15;
  float mine = low ? a : b, other = low ? b : a;
  mine += __shfl_xor_sync(0xFFFFFFFFu, other, 16);
#pragma unroll
  for (int o = 8; o; o >>= 1) mine += __shfl_xor_sync(0xFFFFFFFFu, mine, o);
  if (warps > 1) {
    if (l == 0) write4(half + warp * 8, mine);
    barrier();
    if (warps <= FEW) {
      Vec16 v = read16(part);
      a = float_of(v.w[0]) + float_of(v.w[2]);
      b = float_of(v.w[1]) + float_of(v.w[3]);
      if (warps <= 2) return;
      v = read16(part + 16);
      a += float_of(v.w[0]) + float_of(v.w[2]);
      b += float_of(v.w[1]) + float_of(v.w[3]);
      return;
    }
    mine = l < warps ? read4(half + l * 8) : 0.0f;
#pragma unroll
    for (int o = 8; o; o >>= 1) mine += __shfl_xor_sync(0xFFFFFFFFu, mine, o);
  }
  other = __shfl_xor_sync(0xFFFFFFFFu, mine, 16);
  a = low ? mine : other;
  b = low ? other : mine;
}

// Asks L2 for the first row of each group.
DEVICE void ask_for_rows(const Args &a) {
#if !CLUSTER && __CUDA_ARCH__ == 900
  const u32 warp = threadIdx.x >> 5, W = a.warps, group = warp / W, row = blockIdx.x * ((blockDim.x >> 5) / W) + group, bytes = (u32)a.hidden * (u32)sizeof(TX);
  if ((threadIdx.x & 31) || warp != group * W || row >= (u32)a.rows) return;
  ask_l2(a.dy + (i64)row * a.lddy, bytes);
  ask_l2(a.x + (i64)row * a.ldx, bytes);
  if (a.dsum) ask_l2(a.dsum + (i64)row * a.ld_dsum, bytes);
#endif
}

// hidden is a multiple of N, at most SLOTS * N * 32 * warps; rows below 2^31. Dynamic shared memory: stages * 2 (with dsum: 3) * SLOTS * 16
// bytes a thread, and behind it 4 bytes a column of one group's threads; at least 8 (RMSNorm: 4) bytes a column of all groups' threads.
extern "C" __global__ void __launch_bounds__(512, 1) norm_bwd_row(const __grid_constant__ Args a) {
  ask_for_rows(a);
  after_previous();
  // Copies come in lines of 128 bytes. Where each lies across two of shared memory, the kernel takes 1 to 4 % longer; but 12,288 columns in three
  // stages (24 columns a thread) are 4 % faster so.
  extern __shared__ __align__(OCTETS == 2 || CLUSTER ? 128 : 16) Vec16 ring[];
  // Of each group, warps and one more where their number is odd.
  alignas(16) __shared__ Pair part[2][20];
  const u32 W = a.warps, T = W * 32, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = warp / W, w = warp - group * W, groups = (blockDim.x >> 5) / W;
#if CLUSTER
  // The blocks of a cluster share a row out; each gathers what all of them found.
  alignas(8) __shared__ u64 arrived[2][4];
  __shared__ Pair found[2][4][8];
  const u32 C = cluster_size(), rank = cluster_rank(), share = ((u32)a.hidden / N + C - 1) / C, begin = rank * share;
  const u32 vectors = begin < (u32)a.hidden / N ? umin(share, (u32)a.hidden / N - begin) : 0, column0 = begin * N, unit = blockIdx.x / C, units = gridDim.x / C;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i)
      for (int g = 0; g < 4; ++g) mbar_init(shared_address(&arrived[i][g]), 1);
    mbar_init_fence();
  }
  __syncthreads();
  cluster_sync();
#else
  const u32 vectors = (u32)a.hidden / N, column0 = 0, unit = blockIdx.x, units = gridDim.x;
#endif
  const u32 stages = a.stages;
  const auto barrier = [&] { sync_some(group + 1, T); };

  // A warp's vectors lie next to each other: slot i of a lane is vector first_vector + i * 32 of the row. In the ring they have a place for each
  // stage, tensor (dy, x, dsum), slot and lane.
  const u32 tensors = a.dsum ? 3 : 2, stage = tensors * SHARE, first_vector = w * SLOTS * 32 + lane;
  const u32 mine = shared_address(ring) + warp * stages * stage + lane * 16, last = mine + (stages - 1) * stage;
  const u32 rows = (u32)a.rows, step = units * groups, first = unit * groups + group;
  const auto there = [&](int i) { return first_vector + i * 32 < vectors; };
#pragma unroll
  for (int i = 0; i < SLOTS; ++i)
    if (!there(i)) {
      const float zeros[4] = {};
      for (u32 at = mine + i * 512; at < last + stage; at += SHARE) write16(at, zeros);
    }
  // Addresses are formed anew for each row: six pointers and strides less to keep. The vectors of a row lie at constants beside one.
  const auto fetch = [&](u32 to, u32 row) {
    if (row < rows) {
      const TX *dy = anew(a.dy + (i64)row * a.lddy + column0 + first_vector * N), *x = anew(a.x + (i64)row * a.ldx + column0 + first_vector * N);
#pragma unroll
      for (int i = 0; i < SLOTS; ++i)
        if (there(i)) {
          copy16(to + i * 512, dy + i * 32 * N);
          copy16(to + SHARE + i * 512, x + i * 32 * N);
        }
      if (a.dsum) {
        const TX *dsum = anew(a.dsum + (i64)row * a.ld_dsum + column0 + first_vector * N);
#pragma unroll
        for (int i = 0; i < SLOTS; ++i)
          if (there(i)) copy16(to + 2 * SHARE + i * 512, dsum + i * 32 * N);
      }
    }
    commit();
  };

  // On their way before anything else is looked at.
  for (u32 i = 0; i + 1 < stages; ++i) fetch(mine + i * stage, first + i * step);
  float next_mu = 0.0f, next_rsigma = 0.0f;
  if (first < rows) {
    if (!RMS) next_mu = a.mu[first];
    next_rsigma = a.rsigma[first];
  }
  // The weight lies behind the ring as f32, from warp of a group, slot, quarter of a vector and lane on: so many sums leave no registers.
  const u32 weights = shared_address(ring) + (blockDim.x >> 5) * stages * stage + w * WIDE_SHARE + lane * 16;
  if (group == 0) {
#if OCTETS < 4
    // Fetched before any of it is used, where it lies on vectors: one latency, for which all groups wait.
    const bool whole = a.gamma && ((u64)a.gamma & 15) == 0;
    const float more = a.zero_centered ? 1.0f : 0.0f;
    const auto column = [&](int i) { return column0 + (first_vector + i * 32) * N; };
    const auto put = [&](int i, const Parameters<N> &raw) {
      float f[N];
#pragma unroll
      for (int k = 0; k < N; ++k) f[k] = 1.0f;
      if (whole && there(i)) {
        raw.widen(a.gamma_dt, f);
#pragma unroll
        for (int k = 0; k < N; ++k) f[k] += more;
      }
#pragma unroll
      for (int q = 0; q < N / 4; ++q) write16(weights + (i * (N / 4) + q) * 512, &f[4 * q]);
      if (a.gamma && !whole && there(i)) {
#pragma unroll 1
        for (int k = 0; k < N; ++k) write4(weights + (i * (N / 4) + k / 4) * 512 + k % 4 * 4, load_as(a.gamma, a.gamma_dt, column(i) + k) + more);
      }
    };
#if OCTETS == 2
    Parameters<N> raw[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; ++i)
      if (whole && there(i)) raw[i].fetch(a.gamma, a.gamma_dt, column(i));
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) put(i, raw[i]);
#else
#pragma unroll 1
    for (int i = 0; i < SLOTS; ++i) {
      Parameters<N> raw;
      if (whole && there(i)) raw.fetch(a.gamma, a.gamma_dt, column(i));
      put(i, raw);
    }
#endif
#else
    // Not so where a thread has the most columns: some devices would spill.
#pragma unroll 1
    for (int i = 0; i < SLOTS; ++i) {
      float f[N];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        f[k] = 1.0f;
        if (a.gamma && there(i)) f[k] = load_as(a.gamma, a.gamma_dt, column0 + (first_vector + i * 32) * N + k) + (a.zero_centered ? 1.0f : 0.0f);
      }
#pragma unroll
      for (int q = 0; q < N / 4; ++q) write16(weights + (i * (N / 4) + q) * 512, &f[4 * q]);
    }
#endif
  }
  if (threadIdx.x < sizeof(part) / sizeof(Pair)) ((Pair *)part)[threadIdx.x] = {0.0f, 0.0f};
  __syncthreads();
  const auto read_weight = [&](int i, float (&f)[N]) {
#pragma unroll
    for (int q = 0; q < N / 4; ++q) {
      const Vec16 v = read16(weights + (i * (N / 4) + q) * 512);
#pragma unroll
      for (int k = 0; k < 4; ++k) f[4 * q + k] = float_of(v.w[k]);
    }
  };

  const u32 parts = shared_address(part) + group * ((W + 1) & ~1u) * 8;
  u32 from = mine, turn = 0;
  float dgamma[SLOTS][N], dbeta[SLOTS][N];
#pragma unroll
  for (int i = 0; i < SLOTS; ++i)
#pragma unroll
    for (int k = 0; k < N; ++k) dgamma[i][k] = dbeta[i][k] = 0.0f;
#if CLUSTER
  u32 parity = 0;
#endif
  for (u32 row = first; row < rows; row += step, turn ^= 1) {
    // The stage before this one was read in the last round, by this thread alone.
    fetch(from == mine ? last : from - stage, row + (stages - 1) * step);
    const float mu = next_mu, rsigma = next_rsigma;
    if (row + step < rows) {
      if (!RMS) next_mu = a.mu[row + step];
      next_rsigma = a.rsigma[row + step];
    }
    if (stages == 2) wait(2);
    else wait(stages);
    // What the second look needs is kept where there are registers for it, and read and formed again where there are not.
    float g[KEEP_G ? SLOTS : 1][N], xhat[KEEP_X ? SLOTS : 1][N];
    const auto read_g = [&](int i, float (&d)[N], float (&g)[N]) {
      float f[N];
      unpack<TYPE>(read16(from + i * 512), d);
      read_weight(i, f);
#pragma unroll
      for (int k = 0; k < N; ++k) g[k] = d[k] * f[k];
    };
    const auto read_xhat = [&](int i, float (&xhat)[N]) {
      unpack<TYPE>(read16(from + SHARE + i * 512), xhat);
#pragma unroll
      for (int k = 0; k < N; ++k) xhat[k] = RMS ? xhat[k] * rsigma : (xhat[k] - mu) * rsigma;
    };
    // Two sums each where registers allow, so that additions need not wait for each other.
    float products[2] = {0.0f, 0.0f}, plain[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
      float d[N], (&gi)[N] = g[KEEP_G ? i : 0], (&xi)[N] = xhat[KEEP_X ? i : 0];
      read_g(i, d, gi);
      read_xhat(i, xi);
      // Or compilers for other devices read so far ahead that they spill.
      if (OCTETS == 4 && !CLUSTER && __CUDA_ARCH__ != 900) __syncwarp();
#pragma unroll
      for (int k = 0; k < N; ++k) {
        products[CHAIN(k)] += gi[k] * xi[k];
        dgamma[i][k] += d[k] * xi[k];
        if (!RMS) {
          plain[CHAIN(k)] += gi[k];
          dbeta[i][k] += d[k];
        }
      }
    }
    float sum = products[0] + products[1], sum0 = plain[0] + plain[1];
    sum_over_group(sum, sum0, parts + turn * (u32)sizeof(part[0]), w, W, barrier);
#if CLUSTER
    const u32 bar = shared_address(&arrived[turn][group]), t = w * 32 + lane;
    if (t < C) put_pair(shared_address(&found[turn][group][rank]), bar, t, sum, sum0);
    if (t == 0) mbar_arrive_expect(bar, C * sizeof(Pair));
    mbar_wait(bar, parity);
    parity ^= turn;
    sum = sum0 = 0.0f;
#pragma unroll 1
    for (u32 r = 0; r < C; ++r) {
      const Pair p = found[turn][group][r];
      sum += p.x;
      if (!RMS) sum0 += p.y;
    }
#endif
    const float m = sum * a.inv_n * rsigma, m0 = RMS ? 0.0f : sum0 * a.inv_n * rsigma;
    TX *dx = anew(a.dx + (i64)row * a.lddx + column0 + first_vector * N);
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
      float d[N], (&gi)[N] = g[KEEP_G ? i : 0], (&xi)[N] = xhat[KEEP_X ? i : 0];
      if (!KEEP_G) read_g(i, d, gi);
      if (!KEEP_X) read_xhat(i, xi);
#pragma unroll
      for (int k = 0; k < N; ++k) d[k] = (gi[k] * rsigma - m0) - xi[k] * m;
      if (a.dsum) {
        float more[N];
        unpack<TYPE>(read16(from + 2 * SHARE + i * 512), more);
#pragma unroll
        for (int k = 0; k < N; ++k) d[k] += more[k];
      }
      if (there(i)) st16(dx + i * 32 * N, pack<TYPE>(d));
    }
    from = from == last ? mine : from + stage;
  }

  if (!a.partial) return;
  // Every group lays its sums where ring and weight were, from kind (0: dgamma, 1: dbeta), group and column on; then all threads add up,
  // group after group.
  const u32 columns = T * (OCTETS * 8), sums = shared_address(ring);
  wait(1);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < SLOTS; ++i)
#pragma unroll
    for (int k = 0; k < N; k += 4) {
      const u32 at = sums + (group * columns + (first_vector + i * 32) * N + k) * 4;
      write16(at, &dgamma[i][k]);
      if (!RMS) write16(at + groups * columns * 4, &dbeta[i][k]);
    }
  __syncthreads();
  float *out = a.partial + (i64)unit * (RMS ? 1 : 2) * a.hidden + column0;
  const u32 quads = vectors * (N / 4);
#pragma unroll 1
  for (u32 c = threadIdx.x; c < (RMS ? quads : 2 * quads); c += blockDim.x) {
    const bool second = !RMS && c >= quads;
    const u32 column = (second ? c - quads : c) * 4, at = sums + ((second ? groups * columns : 0) + column) * 4;
    Vec16 v = read16(at);
#pragma unroll 4
    for (u32 g = 1; g < groups; ++g) {
      const Vec16 more = read16(at + g * columns * 4);
#pragma unroll
      for (int k = 0; k < 4; ++k) v.w[k] = bits_of(float_of(v.w[k]) + float_of(more.w[k]));
    }
    st16(out + (second ? a.hidden : 0) + column, v);
  }
}
