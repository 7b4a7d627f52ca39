// LayerNorm forward for long rows: y = (x - mean) * rsigma * weight + beta. Tensors and statistics: common/norm_fwd.cuh.
//
// One block per multiprocessor stays for the whole pass. It holds groups of `warps` warps, each with a row at a time and a barrier of its
// own; the row lives in registers, OCTETS * 8 columns a thread.
// Rows are fetched by cp.async into a ring of `stages` rows per group, so that enough bytes are under way whatever the arithmetic waits
// for; a thread copies what it alone reads, so no barrier guards the ring. What is fetched for a row beside x, weight and beta, waits in
// shared memory as f32: converted and looked up for each row anew, it took more instructions than the rest.
//
// Bytes moved per element: sizeof(X) + sizeof(y).
#define RMS 0
#include "common/norm_fwd.cuh"

#define SLOTS (OCTETS * 8 / N)
#define PARTS 64
// What a thread has in shared memory lies together, vector after vector, so that addresses are constants beside one register; an odd
// number of vectors from thread to thread meets no bank twice.
#define STAGE ((SLOTS | 1) * 16)
#define BETAS (OCTETS * 8 * 4)
#define WEIGHTS (((OCTETS * 4) | 1) * 16)
// As many threads as leave registers for OCTETS * 8 columns, 96 or 128 each (the vectors of f32 are more, and so are their addresses).
#define ROW_THREADS (OCTETS == 4 && X != DT_F32 ? 640 : 512)

// hidden is a multiple of N, at most SLOTS * N * 32 * warps; everything is aligned for vectors. Dynamic shared memory: stages * STAGE bytes
// a thread, and behind it WEIGHTS bytes for each thread of one group. At most ROW_THREADS threads, all of them in groups.
//
// Columns beyond the row are zeros with weight and beta 0, so that arithmetic knows no branches: only copies and stores ask.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 1) norm_fwd_ring(const Args a) {
  extern __shared__ Vec16 ring[];
  alignas(16) __shared__ float parts[3][PARTS];
  const u32 T = a.warps * 32, group = threadIdx.x / T, groups = blockDim.x / T, t = threadIdx.x - group * T;
  const u32 vectors = (u32)a.hidden / N;
  // The group's partial sums, one a warp, padded with zeros to a multiple of four: at most 48 of them. A warp's place in them; its upper
  // half has one in the next array.
  const u32 part = a.warps == 1 ? 0 : group * ((a.warps + 3) & ~3);
  float *const place = &parts[0][part + (t >> 5)] + (threadIdx.x & 16) * (PARTS / 16);
  const auto barrier = [&] { sync_some(group + 1, T); };

  const u32 stage_bytes = blockDim.x * STAGE, ring_bytes = a.stages * stage_bytes;
  const u32 mine = shared_address(ring) + threadIdx.x * STAGE, weights = shared_address(ring) + ring_bytes + t * WEIGHTS;
  const u32 step = gridDim.x * groups;
  const i64 first = (i64)blockIdx.x * groups + group;
  i64 ahead = first;
  const auto fetch = [&](u32 to) {
    if (ahead < a.rows) {
      const TX *x = a.x + ahead * a.ldx + t * N;
#pragma unroll
      for (int i = 0; i < SLOTS; ++i, x += T * N)
        if (i * T + t < vectors) copy16(to + i * 16, x);
    }
    ahead += step;
    commit();
  };
#pragma unroll 1
  for (int s = 0; s + 1 < a.stages; ++s) fetch(mine + s * stage_bytes);
  const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
  for (u32 i = 0; i < SLOTS; ++i)
    if (i * T + t >= vectors) {
#pragma unroll 1
      for (int s = 0; s < a.stages; ++s) write16(mine + s * stage_bytes + i * 16, zeros);
    }

#pragma unroll 1
  for (u32 i = group; i < SLOTS; i += groups) {
    const u32 at = i * T + t;
    float w[N], b[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      w[k] = at < vectors ? 1.0f : 0.0f;
      b[k] = 0.0f;
    }
    if (a.gamma && at < vectors) {
      Parameters<N> p;
      p.fetch(a.gamma, a.gamma_dt, at * N);
      p.widen(a.gamma_dt, w);
#pragma unroll
      for (int k = 0; k < N; ++k) w[k] += a.zero_centered ? 1.0f : 0.0f;
    }
    if (a.beta && at < vectors) {
      Parameters<N> p;
      p.fetch(a.beta, a.beta_dt, at * N);
      p.widen(a.beta_dt, b);
    }
#pragma unroll
    for (int q = 0; q < N / 4; ++q) {
      write16(weights + (i * N + 4 * q) * 4, &w[4 * q]);
      write16(weights + BETAS + (i * N + 4 * q) * 4, &b[4 * q]);
    }
  }
  for (u32 i = threadIdx.x; i < 3 * PARTS; i += blockDim.x) parts[0][i] = 0.0f;
  __syncthreads();

  const float inv_n = 1.0f / (float)a.hidden, scale = read_scale(a);
  float amax = 0.0f;
  u32 from = mine;
  for (i64 row = first; row < a.rows; row += step) {
    // The stage before this one was read in the last round, by this thread alone.
    fetch((from == mine ? from + ring_bytes : from) - stage_bytes);
    wait(a.stages);
    // Two sums each, of even and odd columns, so that additions need not wait for each other.
    float v[SLOTS][N], sum[2] = {0.0f, 0.0f}, squares[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
      unpack<X>(read16(from + i * 16), v[i]);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k & 1] += v[i][k];
    }
    // Two barriers a row keep the buffers apart.
    const float centre = group_sum(sum[0] + sum[1], place, parts[0] + part, a.warps, barrier) * inv_n;
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
      const float c = i * T + t < vectors ? centre : 0.0f;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        v[i][k] -= c;
        sum[k & 1] += v[i][k];
        squares[k & 1] += v[i][k] * v[i][k];
      }
    }
    sum[0] += sum[1];
    squares[0] += squares[1];
    group_sum2(sum[0], squares[0], place + PARTS, parts[1] + part, parts[2] + part, a.warps, barrier);
    const Stats s = finish(centre, sum[0], squares[0], inv_n, a.eps);
    if (t == 0) put_stats(a, row, s);
    const float shift = -s.rest * s.rsigma;
    with_type(a.y_dt, [&](auto type) {
      constexpr int DT = decltype(type)::value;
      typedef typename Elem<DT>::T TY;
      TY *y = (TY *)a.y + row * a.ldy + t * N;
      // Hidden from the compiler, which would keep its products with the sizes of all types from row to row.
      u32 jump = T * N;
      asm volatile("" : "+r"(jump));
#pragma unroll
      for (int i = 0; i < SLOTS; ++i) {
#pragma unroll
        for (int q = 0; q < N / 4; ++q) {
          const u32 at = weights + (i * N + 4 * q) * 4;
          const Vec16 w = read16(at), b = read16(at + BETAS);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            float &e = v[i][4 * q + k];
            e = (e * s.rsigma + shift) * float_of(w.w[k]) + float_of(b.w[k]);
            if (DT >= DT_E4M3) amax = max_nan(amax, e);
          }
        }
        if (i * T + t < vectors) store_vector<DT>(y, 0, v[i], scale);
        y += jump;
      }
    });
    from += stage_bytes;
    if (from == mine + ring_bytes) from = mine;
  }
  put_amax(a, bits_of(amax), (u32 *)parts[0]);
}
