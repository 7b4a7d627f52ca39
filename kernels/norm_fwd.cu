// LayerNorm (RMS = 0) and RMSNorm (RMS = 1) forward: y = (x - mean) * rsigma * weight + beta, one row after the other.
//
// x: [rows, hidden] of X with row stride ldx; gamma, beta: [hidden] of f32, f16 or bf16, or null; y: [rows, hidden] of any type; yt:
// [hidden, rows] of FP8; mu, rsigma: [rows] f32 or null.
// Statistics: a first mean is rounded to f32 (`centre`), and the pass over x - centre sums both the squares and what the first mean lacks
// (`rest`), so neither the variance nor x - mean suffers where the mean is large beside the deviations.
//
//   norm_fwd_row        the row lives in registers, OCTETS * 8 columns a thread. One block per multiprocessor stays for the whole pass; it
//                       holds groups of `warps` warps, each with a row at a time and a barrier of its own. x is read once.
//   norm_fwd_loop_vec   one block per row, of any length; x is read again for each pass, from L1 or L2 then
//   norm_fwd_loop       the same element by element, for any length and alignment
//   norm_fwd_transposed FP8, transposed only: one block per 64 rows; statistics, then tiles of 64 x 64 through shared memory. (Both
//                       layouts: the codes of one of the other kernels are transposed by transpose.cu.)
//
// Bytes moved per element: sizeof(X) + sizeof(y); the transposed kernel reads x twice (three times for LayerNorm), in part from L2.
//
// KERNEL chooses: 0 the first, 1 the loops, 2 the transposed one, so that only what is needed is compiled.
#include "common/norm.cuh"

typedef Elem<X>::T TX;
#define N (Vector<X>::N)
#define TILE 64

struct Args {
  const TX *x;
  i64 ldx;
  const void *gamma, *beta;
  u8 *y;
  i64 ldy;
  u8 *yt;
  i64 ldyt;
  float *mu, *rsigma;
  const float *scale;
  float *scale_inv, *amax;
  i64 rows, hidden;
  float eps;
  int gamma_dt, beta_dt, y_dt, zero_centered, warps, stages;
};

struct Stats { float centre, rest, rsigma; };

// From the sum of squares (RMS), or of x - centre and its square.
DEVICE Stats finish(float centre, float sum, float squares, float inv_n, float eps) {
  if (RMS) return {0.0f, 0.0f, __frsqrt_rn(squares * inv_n + eps)};
  float rest = sum * inv_n, variance = (squares - sum * rest) * inv_n;
  // A NaN passes on.
  if (variance < 0.0f) variance = 0.0f;
  return {centre, rest, __frsqrt_rn(variance + eps)};
}
DEVICE float normalised(float x, const Stats &s) { return RMS ? x * s.rsigma : ((x - s.centre) - s.rest) * s.rsigma; }

DEVICE void put_stats(const Args &a, i64 row, const Stats &s) {
  // An infinite mean is one, although nothing can be centred on it.
  if (!RMS && a.mu) a.mu[row] = abs_bits(s.centre) == 0x7F800000u ? s.centre : s.centre + s.rest;
  if (a.rsigma) a.rsigma[row] = s.rsigma;
}
DEVICE float read_scale(const Args &a) {
  float scale = a.scale ? *a.scale : 1.0f;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0 && a.scale_inv) *a.scale_inv = reciprocal(scale);
  return scale;
}
// All threads of the block call it; `part` holds 32 words that nobody uses any more.
DEVICE void put_amax(const Args &a, u32 amax, u32 *part) {
  if (!a.amax) return;
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  amax = warp_max(amax);
  __syncthreads();
  if (lane == 0) part[warp] = amax;
  __syncthreads();
  if (warp == 0) {
    amax = warp_max(lane < blockDim.x >> 5 ? part[lane] : 0u);
    if (lane == 0 && amax) record_amax(a.amax, amax);
  }
}

// W elements of the output from column i on: 1, or a vector. Both parameters are on their way before either is waited for.
template <int W> DEVICE void affine(const Args &a, float (&v)[W], i64 i) {
  Parameters<W> gamma, beta;
  if (a.gamma) gamma.fetch(a.gamma, a.gamma_dt, i);
  if (!RMS && a.beta) beta.fetch(a.beta, a.beta_dt, i);
  float p[W];
  if (a.gamma) {
    gamma.widen(a.gamma_dt, p);
#pragma unroll
    for (int k = 0; k < W; ++k) v[k] *= a.zero_centered ? 1.0f + p[k] : p[k];
  }
  if (!RMS && a.beta) {
    beta.widen(a.beta_dt, p);
#pragma unroll
    for (int k = 0; k < W; ++k) v[k] += p[k];
  }
}
DEVICE u32 element_size(int dt) { return dt == DT_F32 ? 4 : is_fp8(dt) ? 1 : 2; }

#if KERNEL == 0
// ---------------------------------------------------------------- the row in registers
// Rows are fetched by cp.async into a ring of `stages` rows per group, so that enough bytes are under way whatever the arithmetic waits
// for; a thread copies what it alone reads, so no barrier guards the ring. What is fetched for a row beside x, weight and beta, waits in
// shared memory as f32: converted and looked up for each row anew, it took more instructions than the rest.
#define SLOTS (OCTETS * 8 / N)
#define PARTS 64
// What a thread has in shared memory lies together, vector after vector, so that addresses are constants beside one register; an odd
// number of vectors from thread to thread meets no bank twice.
#define STAGE ((SLOTS | 1) * 16)
#define BETAS (OCTETS * 8 * 4)
#define WEIGHTS (((OCTETS * (RMS ? 2 : 4)) | 1) * 16)
// As many threads as leave registers for OCTETS * 8 columns, 96 or 128 each (the vectors of f32 are more, and so are their addresses).
#define ROW_THREADS (OCTETS == 4 && X != DT_F32 ? 640 : 512)

template <int DT> struct Type { static const int value = DT; };

// hidden is a multiple of N, at most SLOTS * N * 32 * warps; everything is aligned for vectors. Dynamic shared memory: stages * STAGE bytes
// a thread, and behind it WEIGHTS bytes for each thread of one group. At most ROW_THREADS threads, all of them in groups.
//
// Columns beyond the row are zeros with weight and beta 0, so that arithmetic knows no branches: only copies and stores ask.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 1) norm_fwd_row(const Args a) {
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
    if (!RMS && a.beta && at < vectors) {
      Parameters<N> p;
      p.fetch(a.beta, a.beta_dt, at * N);
      p.widen(a.beta_dt, b);
    }
#pragma unroll
    for (int q = 0; q < N / 4; ++q) {
      write16(weights + (i * N + 4 * q) * 4, &w[4 * q]);
      if (!RMS) write16(weights + BETAS + (i * N + 4 * q) * 4, &b[4 * q]);
    }
  }
  for (u32 i = threadIdx.x; i < 3 * PARTS; i += blockDim.x) parts[0][i] = 0.0f;
  __syncthreads();

  const float inv_n = 1.0f / (float)a.hidden, scale = read_scale(a);
  float amax = 0.0f;
  u32 from = mine, turn = 0;
  for (i64 row = first; row < a.rows; row += step, turn ^= 1) {
    // The stage before this one was read in the last round, by this thread alone.
    fetch((from == mine ? from + ring_bytes : from) - stage_bytes);
    wait(a.stages);
    // Two sums each, of even and odd columns, so that additions need not wait for each other.
    float v[SLOTS][N], sum[2] = {0.0f, 0.0f}, squares[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
      unpack<X>(read16(from + i * 16), v[i]);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (RMS) squares[k & 1] += v[i][k] * v[i][k];
        else sum[k & 1] += v[i][k];
      }
    }
    Stats s;
    if (RMS) {
      // One barrier a row: two buffers take turns.
      s = finish(0.0f, 0.0f, group_sum(squares[0] + squares[1], place + turn * PARTS, parts[turn] + part, a.warps, barrier), inv_n, a.eps);
    } else {
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
      s = finish(centre, sum[0], squares[0], inv_n, a.eps);
    }
    if (t == 0) put_stats(a, row, s);
    const float shift = -s.rest * s.rsigma;
    const auto emit = [&](auto type) {
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
          const Vec16 w = read16(at);
          Vec16 b;
          if (!RMS) b = read16(at + BETAS);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            float &e = v[i][4 * q + k];
            e = RMS ? e * s.rsigma * float_of(w.w[k]) : (e * s.rsigma + shift) * float_of(w.w[k]) + float_of(b.w[k]);
            if (DT >= DT_E4M3) amax = max_nan(amax, e);
          }
        }
        if (i * T + t < vectors) {
          if constexpr (DT >= DT_E4M3) store_codes<DT>(y, 0, v[i], scale);
          else if constexpr (DT == DT_F32) store_floats(y, 0, v[i]);
          else store_halves<DT>(y, 0, v[i]);
        }
        y += jump;
      }
    };
    switch (a.y_dt) {
      case DT_F32: emit(Type<DT_F32>()); break;
      case DT_F16: emit(Type<DT_F16>()); break;
      case DT_BF16: emit(Type<DT_BF16>()); break;
      case DT_E4M3: emit(Type<DT_E4M3>()); break;
      default: emit(Type<DT_E5M2>());
    }
    from += stage_bytes;
    if (from == mine + ring_bytes) from = mine;
  }
  put_amax(a, bits_of(amax), (u32 *)parts[0]);
}

#else
// ---------------------------------------------------------------- rows of any length
// f(values, column) for every vector or element that thread t of T owns.
template <bool VEC, int UNROLL = 4, class F> DEVICE void each(const TX *x, i64 n, u32 t, u32 T, F f) {
  if constexpr (VEC) {
#pragma unroll UNROLL
    for (i64 i = (i64)t * N; i < n; i += (i64)T * N) {
      float v[N];
      unpack<X>(*(const Vec16 *)(x + i), v);
      f(v, i);
    }
  } else {
#pragma unroll UNROLL
    for (i64 i = t; i < n; i += T) {
      float v[1] = {Elem<X>::load(x[i])};
      f(v, i);
    }
  }
}
// The same for sums: values come in vectors either way, the last few elements one by one. With a sum for each place in the vector,
// additions do not wait for each other, and the error of a long row stays that of a shorter one.
#define LANES 8
template <bool VEC, class F> DEVICE void each_to_sum(const TX *x, i64 n, u32 t, u32 T, F f) {
  if constexpr (VEC) {
    each<true>(x, n, t, T, [&](auto &v, i64) { f(v); });
  } else {
    i64 i = t;
#pragma unroll 1
    for (; i + (LANES - 1) * (i64)T < n; i += LANES * (i64)T) {
      float v[LANES];
#pragma unroll
      for (int k = 0; k < LANES; ++k) v[k] = Elem<X>::load(x[i + k * (i64)T]);
      f(v);
    }
#pragma unroll 1
    for (; i < n; i += T) {
      float v[1] = {Elem<X>::load(x[i])};
      f(v);
    }
  }
}
DEVICE float total(const float (&s)[LANES]) { return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])); }

// Statistics of a row by T threads; buffers as for row_sum, with `turn` changing from row to row.
template <bool VEC, class Sync>
DEVICE Stats row_stats(const TX *x, i64 hidden, float eps, u32 t, u32 T, float (*part)[32], Pair *part2, u32 turn, Sync barrier) {
  const float inv_n = 1.0f / (float)hidden;
  float sums[LANES] = {};
  each_to_sum<VEC>(x, hidden, t, T, [&](auto &v) {
#pragma unroll
    for (u32 k = 0; k < sizeof(v) / 4; ++k) sums[k] += RMS ? v[k] * v[k] : v[k];
  });
  float sum = row_sum(total(sums), part[RMS ? turn : 0], t >> 5, T >> 5, barrier);
  if (RMS) return finish(0.0f, 0.0f, sum, inv_n, eps);
  const float centre = sum * inv_n;
  float rests[LANES] = {}, squares[LANES] = {};
  each_to_sum<VEC>(x, hidden, t, T, [&](auto &v) {
#pragma unroll
    for (u32 k = 0; k < sizeof(v) / 4; ++k) {
      float d = v[k] - centre;
      rests[k] += d;
      squares[k] += d * d;
    }
  });
  float rest = total(rests), square = total(squares);
  row_sum2(rest, square, part2, t >> 5, T >> 5, barrier);
  return finish(centre, rest, square, inv_n, eps);
}

#if KERNEL == 1
template <bool VEC> DEVICE void loop(const Args &a) {
  __shared__ float part[2][32];
  __shared__ Pair part2[32];
  const float scale = read_scale(a);
  const bool fp8 = is_fp8(a.y_dt);
  const i64 y_stride = a.ldy * element_size(a.y_dt);
  u32 amax = 0, turn = 0;
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
    const TX *x = a.x + row * a.ldx;
    const Stats s = row_stats<VEC>(x, a.hidden, a.eps, threadIdx.x, blockDim.x, part, part2, turn, [] { __syncthreads(); });
    if (threadIdx.x == 0) put_stats(a, row, s);
    u8 *y = a.y + row * y_stride;
    each<VEC, VEC ? 1 : 4>(x, a.hidden, threadIdx.x, blockDim.x, [&](auto &v, i64 i) {
      constexpr int W = VEC ? N : 1;
#pragma unroll
      for (int k = 0; k < W; ++k) v[k] = normalised(v[k], s);
      affine<W>(a, v, i);
      if (fp8) {
#pragma unroll
        for (int k = 0; k < W; ++k) amax = umax(amax, abs_bits(v[k]));
      }
      if constexpr (VEC) store_as<N>(y, a.y_dt, i, v, scale);
      else if (fp8) y[i] = encode_as(a.y_dt, v[0] * scale);
      else store_as(y, a.y_dt, i, v[0]);
    });
  }
  put_amax(a, amax, (u32 *)part[0]);
}

// hidden is a multiple of N; everything is aligned for vectors.
extern "C" __global__ void __launch_bounds__(512, 1) norm_fwd_loop_vec(const Args a) { loop<true>(a); }
extern "C" __global__ void __launch_bounds__(512, 1) norm_fwd_loop(const Args a) { loop<false>(a); }

#else
// ---------------------------------------------------------------- transposed only
// Grid: 64 rows along x, shares of the columns along y. a.warps is 1 where rows can be read as vectors.
extern "C" __global__ void __launch_bounds__(256) norm_fwd_transposed(const Args a) {
  __shared__ Stats stats[TILE];
  __shared__ u8 tile[TILE][TILE + 4];
  __shared__ u32 part[32];
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const float scale = read_scale(a);
  const i64 row0 = (i64)blockIdx.x * TILE;
  for (u32 r = warp; r < TILE && row0 + r < a.rows; r += 8) {
    const TX *x = a.x + (row0 + r) * a.ldx;
    const auto nothing = [] {};
    const Stats s = a.warps ? row_stats<true>(x, a.hidden, a.eps, lane, 32, nullptr, nullptr, 0, nothing)
                            : row_stats<false>(x, a.hidden, a.eps, lane, 32, nullptr, nullptr, 0, nothing);
    if (lane == 0) {
      stats[r] = s;
      if (blockIdx.y == 0) put_stats(a, row0 + r, s);
    }
  }
  __syncthreads();
  const u32 tx = threadIdx.x & 63, ty = threadIdx.x >> 6;
  u32 amax = 0;
  for (i64 col0 = (i64)blockIdx.y * TILE; col0 < a.hidden; col0 += (i64)gridDim.y * TILE) {
    const i64 col = col0 + tx;
    if (col < a.hidden) {
#pragma unroll 4
      for (u32 r = ty; r < TILE; r += 4) {
        const i64 row = row0 + r;
        if (row >= a.rows) break;
        float v[1] = {normalised(Elem<X>::load(a.x[row * a.ldx + col]), stats[r])};
        affine<1>(a, v, col);
        amax = umax(amax, abs_bits(v[0]));
        tile[r][tx] = encode_as(a.y_dt, v[0] * scale);
      }
    }
    __syncthreads();
    const i64 row = row0 + tx;
    if (row < a.rows) {
      for (u32 c = ty; c < TILE && col0 + c < a.hidden; c += 4) a.yt[(col0 + c) * a.ldyt + row] = tile[tx][c];
    }
    __syncthreads();
  }
  put_amax(a, amax, part);
}
#endif
#endif
