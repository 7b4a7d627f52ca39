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
// Bytes moved per element: 3 sizeof(TYPE), 4 with dsum, and 8 per column and block for the partial sums.
#include "common/norm.cuh"
#if CLUSTER
#include "common/ptx_sm90.cuh"
#endif

typedef Elem<TYPE>::T TX;
#define N (Vector<TYPE>::N)
#define SLOTS (OCTETS * 8 / N)
// Whether g and xhat stay in registers from the sums over a row to its dx.
#define KEEP_G (OCTETS + !RMS <= 3)
#define KEEP_X (OCTETS <= 2)

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

// hidden is a multiple of N, at most SLOTS * N * 32 * warps. Dynamic shared memory: stages * 2 (with dsum: 3) * SLOTS * 16 bytes a
// thread, and behind it 4 bytes a column of one group's threads; at least 8 (RMSNorm: 4) bytes a column of all groups' threads.
extern "C" __global__ void __launch_bounds__(512, 1) norm_bwd_row(const Args a) {
  after_previous();
  extern __shared__ Vec16 ring[];
  __shared__ Pair part[2][16];
  const u32 T = a.warps * 32, group = threadIdx.x / T, groups = blockDim.x / T, t = threadIdx.x - group * T;
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
  const auto barrier = [&] { sync_some(group + 1, T); };

  // The thread's part of the ring: slot i of tensor w (0: dy, 1: x, 2: dsum) of stage s lies at ((s * tensors + w) * SLOTS + i) * pitch.
  const u32 tensors = a.dsum ? 3 : 2, pitch = blockDim.x * 16, mine = shared_address(ring) + threadIdx.x * 16;
  const i64 step = (i64)units * groups, first = (i64)unit * groups + group;
  // The next row to fetch. Addresses are formed anew for each row: six pointers and strides less to keep.
  i64 ahead = first;
  const auto fetch = [&](u32 stage) {
    if (ahead < a.rows) {
      const u32 to = mine + stage * (tensors * SLOTS) * pitch;
      const TX *dy = a.dy + ahead * a.lddy + column0 + t * N, *x = a.x + ahead * a.ldx + column0 + t * N;
#pragma unroll
      for (int i = 0; i < SLOTS; ++i)
        if (i * T + t < vectors) {
          copy16(to + i * pitch, dy + i * T * N);
          copy16(to + (SLOTS + i) * pitch, x + i * T * N);
        }
      if (a.dsum) {
        const TX *dsum = a.dsum + ahead * a.ld_dsum + column0 + t * N;
#pragma unroll
        for (int i = 0; i < SLOTS; ++i)
          if (i * T + t < vectors) copy16(to + (2 * SLOTS + i) * pitch, dsum + i * T * N);
      }
    }
    ahead += step;
    commit();
  };

  // On their way before anything else is looked at.
  for (int s = 0; s + 1 < a.stages; ++s) fetch(s);
  float next_mu = 0.0f, next_rsigma = 0.0f;
  if (first < a.rows) {
    if (!RMS) next_mu = a.mu[first];
    next_rsigma = a.rsigma[first];
  }
  const bool past = beyond_cache(a.rows, a.hidden, sizeof(TX));
  // The weight lies behind the ring, vector q of slot i of a group's thread t at (i * N / 4 + q) * T * 16: so many sums leave no registers.
  float dgamma[SLOTS][N], dbeta[SLOTS][N];
  const u32 weights = mine + (a.stages * (tensors * SLOTS)) * pitch - (threadIdx.x - t) * 16;
#pragma unroll
  for (int i = 0; i < SLOTS; ++i) {
    float w[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const u32 c = (i * T + t) * N + k;
      w[k] = 1.0f;
      if (a.gamma && c < vectors * N) w[k] = load_as(a.gamma, a.gamma_dt, column0 + c) + (a.zero_centered ? 1.0f : 0.0f);
      dgamma[i][k] = dbeta[i][k] = 0.0f;
    }
    if (group == 0) {
#pragma unroll
      for (int q = 0; q < N / 4; ++q) write16(weights + (i * (N / 4) + q) * T * 16, &w[4 * q]);
    }
  }
  __syncthreads();
  const auto read_weight = [&](int i, float (&w)[N]) {
#pragma unroll
    for (int q = 0; q < N / 4; ++q) {
      const Vec16 v = read16(weights + (i * (N / 4) + q) * T * 16);
#pragma unroll
      for (int k = 0; k < 4; ++k) w[4 * q + k] = float_of(v.w[k]);
    }
  };

  const float inv_n = 1.0f / (float)a.hidden;
  u32 stage = 0, turn = 0;
#if CLUSTER
  u32 parity = 0;
#endif
  for (i64 row = first; row < a.rows; row += step, turn ^= 1) {
    // The stage before this one was read in the last round, by this thread alone.
    fetch(stage ? stage - 1 : a.stages - 1);
    const float mu = next_mu, rsigma = next_rsigma;
    if (row + step < a.rows) {
      if (!RMS) next_mu = a.mu[row + step];
      next_rsigma = a.rsigma[row + step];
    }
    wait(a.stages);
    const u32 from = mine + stage * (tensors * SLOTS) * pitch;
    // What the second look needs is kept where there are registers for it, and read and formed again where there are not.
    float g[KEEP_G ? SLOTS : 1][N], xhat[KEEP_X ? SLOTS : 1][N], products = 0.0f, plain = 0.0f;
    const auto read_g = [&](int i, float (&d)[N], float (&g)[N]) {
      float w[N];
      unpack<TYPE>(read16(from + i * pitch), d);
      read_weight(i, w);
#pragma unroll
      for (int k = 0; k < N; ++k) g[k] = d[k] * w[k];
    };
    const auto read_xhat = [&](int i, float (&xhat)[N]) {
      unpack<TYPE>(read16(from + (SLOTS + i) * pitch), xhat);
#pragma unroll
      for (int k = 0; k < N; ++k) xhat[k] = RMS ? xhat[k] * rsigma : (xhat[k] - mu) * rsigma;
    };
#pragma unroll
    for (int i = 0; i < SLOTS; ++i)
      if (i * T + t < vectors) {
        float d[N], (&gi)[N] = g[KEEP_G ? i : 0], (&xi)[N] = xhat[KEEP_X ? i : 0];
        read_g(i, d, gi);
        read_xhat(i, xi);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          products += gi[k] * xi[k];
          dgamma[i][k] += d[k] * xi[k];
          if (!RMS) {
            plain += gi[k];
            dbeta[i][k] += d[k];
          }
        }
      }
    // One barrier a row: two buffers take turns.
    if (RMS) products = row_sum(products, (float *)(part[turn] + group * a.warps), t >> 5, a.warps, barrier);
    else row_sum2_16(products, plain, part[turn] + group * a.warps, t >> 5, a.warps, barrier);
#if CLUSTER
    const u32 bar = shared_address(&arrived[turn][group]);
    if (t < C) put_pair(shared_address(&found[turn][group][rank]), bar, t, products, plain);
    if (t == 0) mbar_arrive_expect(bar, C * sizeof(Pair));
    mbar_wait(bar, parity);
    parity ^= turn;
    products = plain = 0.0f;
#pragma unroll 1
    for (u32 r = 0; r < C; ++r) {
      const Pair p = found[turn][group][r];
      products += p.x;
      if (!RMS) plain += p.y;
    }
#endif
    const float m = products * inv_n * rsigma, m0 = RMS ? 0.0f : plain * inv_n * rsigma;
    TX *dx = a.dx + row * a.lddx + column0 + t * N;
#pragma unroll
    for (int i = 0; i < SLOTS; ++i)
      if (i * T + t < vectors) {
        float d[N], (&gi)[N] = g[KEEP_G ? i : 0], (&xi)[N] = xhat[KEEP_X ? i : 0];
        if (!KEEP_G) read_g(i, d, gi);
        if (!KEEP_X) read_xhat(i, xi);
#pragma unroll
        for (int k = 0; k < N; ++k) d[k] = (gi[k] * rsigma - m0) - xi[k] * m;
        if (a.dsum) {
          float more[N];
          unpack<TYPE>(read16(from + (2 * SLOTS + i) * pitch), more);
#pragma unroll
          for (int k = 0; k < N; ++k) d[k] += more[k];
        }
        st16(dx + i * T * N, pack<TYPE>(d), past);
      }
    stage = stage + 1 == a.stages ? 0 : stage + 1;
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
      const u32 at = sums + (group * columns + (i * T + t) * N + k) * 4;
      write16(at, &dgamma[i][k]);
      if (!RMS) write16(at + groups * columns * 4, &dbeta[i][k]);
    }
  __syncthreads();
  float *out = a.partial + (i64)unit * (RMS ? 1 : 2) * a.hidden + column0;
#pragma unroll 1
  for (u32 kind = 0; kind < (RMS ? 1u : 2u); ++kind, out += a.hidden)
#pragma unroll 1
    for (u32 c = threadIdx.x * 4; c < vectors * N; c += blockDim.x * 4) {
      const u32 at = sums + (kind * groups * columns + c) * 4;
      Vec16 v = read16(at);
#pragma unroll 1
      for (u32 g = 1; g < groups; ++g) {
        const Vec16 more = read16(at + g * columns * 4);
#pragma unroll
        for (int k = 0; k < 4; ++k) v.w[k] = bits_of(float_of(v.w[k]) + float_of(more.w[k]));
      }
      st16(out + c, v);
    }
}
