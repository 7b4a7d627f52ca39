// LayerNorm (RMS = 0) and RMSNorm (RMS = 1) forward to FP8 in both layouts, in one pass: y = (x - mean) * rsigma * weight + beta, of x or, with a
// residual, of x + residual, which is written too. X has 16 bits. Tensors: common/norm_fwd.cuh; y or yt may be null.
//
// A cluster of blocks takes TILE_ROWS rows, each block GROUPS * 256 of their columns, which wait in shared memory until the rows' statistics are
// known. A warp has 16 rows of 256 columns, a thread eight columns of these rows: the parameters are read and unpacked once for 16 rows,
// and four codes of a column make a word of the transposed layout.
//
// Statistics come from the tensor cores: the product of the warp's rows with ones is their sums, the diagonal of that with the rows
// themselves their sums of squares. Products of 16-bit values are exact in f32, additions lose less than 2^-20 of a sum of 256. Where that
// would be felt (LayerNorm: mean^2 > 4 * variance) squares of x - mean are summed up instead. Each warp sends its sums to the block that
// finishes the row, and this one sends the statistics to all.
//
// Bytes moved per element: 4; 4 more with a residual.
#include "common/ptx_mma.cuh"
#include "common/ptx_sm90.cuh"
#include "common/norm_fwd.cuh"
#include "common/tile.cuh"

#define TILE_ROWS (GROUPS < 3 ? 64 : 32)
#define WARP_ROWS 16
#define WARP_COLS 256
#define ROW_BYTES (WARP_COLS * 2)
#define GROUP_BYTES (TILE_ROWS * ROW_BYTES)
#define GROUP_THREADS (TILE_ROWS / WARP_ROWS * 32)
#define WARPS (TILE_ROWS / WARP_ROWS * GROUPS)
#define THREADS (WARPS * 32)
// What shared memory holds, but where the compiler would want a few more registers; that of 12.x is less than half as large.
#if __CUDA_ARCH__ >= 1200
#define BLOCKS (GROUPS == 1 ? 2 : 1)
#else
#define BLOCKS ((GROUPS == 1 ? 6 : GROUPS == 3 ? 4 : 3 - (RMS && GROUPS == 4)) - (__CUDA_ARCH__ >= 1000))
#endif
#define MOST_BLOCKS 16  // of a cluster
#define AT_ONCE (RMS ? 8 : 4)  // rows of a residual: what there are registers for

// Two rows are sent together, 8 apart: those of unit u.
#define UNITS (TILE_ROWS / 2)
DEVICE u32 unit_row(u32 u, u32 half) { return u / 8 * WARP_ROWS + half * 8 + u % 8; }

struct alignas(8) RowStats { float mean, rsigma; };
struct alignas(16) Shared {
  RowStats stats[TILE_ROWS];
  // Of the rows that this block finishes: [unit][chunk][row of the unit], of LayerNorm {sum, squares}, of RMSNorm squares.
  Vec16 parts[(UNITS + MOST_BLOCKS) * GROUPS];
  u64 parts_here, stats_here;
};

DEVICE i64 imax(i64 a, i64 b) { return a > b ? a : b; }
// Read each time: no register keeps them.
DEVICE u32 cluster_id() { u32 n; asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(n)); return n; }
DEVICE u32 rank_anew() { u32 n; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(n)); return n; }
DEVICE u32 cluster_size() { u32 n; asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n)); return n; }
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// A chunk of a row is the columns of one warp: how many, and the reciprocal.
struct Chunk { float n, inv_n; };
DEVICE Chunk chunk_of(const Args &a, u32 c) {
  const i32 n = (i32)a.hidden - (i32)(c * WARP_COLS);
  if (n >= WARP_COLS) return {WARP_COLS, 1.0f / WARP_COLS};
  return n > 0 ? Chunk{(float)n, __frcp_rn((float)n)} : Chunk{0.0f, 0.0f};
}

// The warp's sums for row lane / 4 and the one 8 below; squares only in lanes that `hold` them. Squares: of x (RMS), of x less the chunk's centre.
struct Sums { float sum[2], squares[2]; };
DEVICE Sums sums_of(u32 warp_x, u32 own, bool mine, Chunk chunk, bool hold) {
  const u32 lane = threadIdx.x & 31, ones = X == DT_BF16 ? 0x3F803F80u : 0x3C003C00u;
  const u32 at = warp_x + (lane & 15) * ROW_BYTES + (((lane >> 4) ^ (lane & 7)) << 4);
  float sum[2][4] = {}, upper[2][4] = {}, lower[2][4] = {};
#pragma unroll
  for (int k = 0; k < WARP_COLS / 16; ++k) {
    u32 rows[4];
    ldmatrix_x4(rows, at ^ (k << 5));
    if (!RMS) mma_m16n8k16<X>(sum[k & 1], rows, ones, ones);
    mma_m16n8k16<X>(upper[k & 1], rows, rows[0], rows[2]);
    mma_m16n8k16<X>(lower[k & 1], rows, rows[1], rows[3]);
  }
  const bool odd = lane & 4;
#pragma unroll
  for (int k = 0; k < 4; ++k) sum[0][k] += sum[1][k], upper[0][k] += upper[1][k], lower[0][k] += lower[1][k];
  Sums s = {{sum[0][0], sum[0][2]}, {odd ? upper[0][1] : upper[0][0], odd ? lower[0][3] : lower[0][2]}};
  if (RMS) return s;
  float centre[2];
  bool far = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    centre[h] = centre_of(s.sum[h], chunk.inv_n);
    s.squares[h] -= centre[h] * __fmaf_rn(-chunk.n, centre[h], 2.0f * s.sum[h]);
    // NaN too.
    far |= !(chunk.n * centre[h] * centre[h] <= 4.0f * s.squares[h]);
  }
  if (!__any_sync(0xFFFFFFFFu, hold && far)) return s;
#pragma unroll 1
  for (u32 i = 0; i < WARP_ROWS; ++i) {
    const float all = __shfl_sync(0xFFFFFFFFu, i < 8 ? centre[0] : centre[1], 4 * (i & 7)), c = mine ? all : 0.0f;
    float v[N], squares = 0.0f;
    unpack<X>(read16(own + i * ROW_BYTES ^ (i & 7) << 4), v);
#pragma unroll
    for (int k = 0; k < N; ++k) squares += (v[k] - c) * (v[k] - c);
    squares = warp_sum(squares);
    if (lane >> 2 == (i & 7)) (i < 8 ? s.squares[0] : s.squares[1]) = squares;
  }
  return s;
}

// As send16.
DEVICE void send8(u32 place, u32 bar, u32 rank, float a, float b) {
  asm volatile("{ .reg .b32 there, b; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 b, %1, %2;"
               "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, [b]; }"
               :: "r"(place), "r"(bar), "r"(rank), "f"(a), "f"(b) : "memory");
}

// The statistics of the rows of the units that this block finishes from `first` on, `lanes` (4, 8 or 16) lanes a row, from the parts of all
// chunks; sent to all blocks, which wait for it. `last`: the chunk behind those that are whole.
DEVICE void finish_rows(const Args &a, Shared &shared, i64 tile_row, u32 first, u32 units, u32 lanes, u32 C, u32 rank, Chunk last) {
  const u32 lane = threadIdx.x & 31, u = first + lane / (2 * lanes), half = lane / lanes & 1, q = lane & (lanes - 1), chunks = u < units ? C * GROUPS : 0;
  const u32 in_tile = unit_row(u * C + rank, half);
  const auto over_lanes = [&](float v) {
    v += __shfl_xor_sync(0xFFFFFFFFu, v, 1);
    v += __shfl_xor_sync(0xFFFFFFFFu, v, 2);
    if (lanes > 4) v += __shfl_xor_sync(0xFFFFFFFFu, v, 4);
    if (lanes > 8) v += __shfl_xor_sync(0xFFFFFFFFu, v, 8);
    return v;
  };
  const u32 whole = (u32)a.hidden / WARP_COLS;  // chunks
  Stats s;
  if (RMS) {
    const float *part = (const float *)shared.parts + u * (C * GROUPS) * 2 + half;
    float squares = 0.0f;
    for (u32 c = q; c < chunks; c += lanes) squares += part[2 * c];
    s = finish(0.0f, 0.0f, over_lanes(squares), a.inv_n, a.eps);
  } else {
    const F2 *part = (const F2 *)shared.parts + u * (C * GROUPS) * 2 + half;
    float sum = 0.0f, squares = 0.0f;
    for (u32 c = q; c < chunks; c += lanes) sum += part[2 * c].x;
    sum = over_lanes(sum);
    const float centre = centre_of(sum, a.inv_n);
    // From squares about a chunk's centre to those about the row's.
    for (u32 c = q; c < chunks; c += lanes) {
      const F2 p = part[2 * c];
      const Chunk chunk = c < whole ? Chunk{WARP_COLS, 1.0f / WARP_COLS} : c == whole ? last : Chunk{0.0f, 0.0f};
      const float own = centre_of(p.x, chunk.inv_n), e = own - centre, rest = __fmaf_rn(-chunk.n, own, p.x);
      squares += __fmaf_rn(e, __fmaf_rn(chunk.n, e, 2.0f * rest), p.y);
    }
    s = finish_16_bit(centre, sum, over_lanes(squares), a);
  }
  if (chunks == 0) return;
  for (u32 block = q; block < C; block += lanes) send8(smem_u32(&shared.stats[in_tile]), smem_u32(&shared.stats_here), block, s.centre + s.rest, s.rsigma);
  if (q == 0 && tile_row + in_tile < a.rows) put_stats(a, tile_row + in_tile, s);
}

// x + residual, written, takes the place of x.
DEVICE void add_residual(const Args &a, i64 row, i64 col, u32 own, bool mine) {
  const TX *residual = a.residual + row * a.ld_residual + col;
  TX *sum = a.sum + row * a.ld_sum + col;
#pragma unroll 1
  for (u32 i = 0; i < WARP_ROWS; i += AT_ONCE) {
    Vec16 more[AT_ONCE];
#pragma unroll
    for (u32 k = 0; k < AT_ONCE; ++k, residual += a.ld_residual)
      if (mine) more[k] = ld16_stream(residual);
    if (i == 0) cp_async_wait<0>();
#pragma unroll
    for (u32 k = 0; k < AT_ONCE; ++k, sum += a.ld_sum)
      if (mine) {
        const u32 at = own + (i + k) * ROW_BYTES ^ ((i + k) & 7) << 4;
        const Vec16 v = add<X>(read16(at), more[k]);
        st16(sum, v);
        asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
      }
  }
}

// The rows and columns of a thread, its warp, its group and its block.
struct Place {
  u32 lane, warp, group, warp_row, chunk;
  i64 tile_row, group_col;
};
DEVICE Place place_of(u32 thread, u32 rank) {
  const u32 warp = thread >> 5, group = warp % GROUPS, chunk = rank * GROUPS + group;
  return {thread & 31, warp, group, warp / GROUPS * WARP_ROWS, chunk, (i64)cluster_id() * TILE_ROWS, (i64)chunk * WARP_COLS};
}

// The transposed tile takes the place of x: columns of TILE_ROWS bytes, whose 16-byte parts are kept apart within
// lines as those of x are.
DEVICE void store_transposed(const Args &a, u8 *held, const u32 (&column)[8][4], const Place &p) {
  u8 *tile = held + p.group * GROUP_BYTES;
  sync_some(1 + p.group, GROUP_THREADS);
#pragma unroll
  for (u32 k = 0; k < 8; ++k)
    *(Vec16 *)(tile + ((8 * p.lane + k) * TILE_ROWS + p.warp_row ^ (p.lane & 7) << 4)) = Vec16{{column[k][0], column[k][1], column[k][2], column[k][3]}};
  sync_some(1 + p.group, GROUP_THREADS);
  const u32 thread = p.warp / GROUPS * 32 + p.lane, part = thread % (TILE_ROWS / 16) * 16;
  if (p.tile_row + part < a.rows) {
    const u32 columns = (u32)imax(0, imin(WARP_COLS, a.hidden - p.group_col));
    u32 c = thread / (TILE_ROWS / 16);
    u8 *yt = a.yt + (p.group_col + c) * a.ldyt + p.tile_row + part;
    const i64 step = a.ldyt * (GROUP_THREADS / (TILE_ROWS / 16));
#pragma unroll 4
    for (; c < columns; c += GROUP_THREADS / (TILE_ROWS / 16), yt += step)
      st16(yt, *(const Vec16 *)(tile + (c * TILE_ROWS + part ^ (c >> 3 & 7) << 4)));
  }
}

// Asks L2 for the warp's x, two lines a lane (see tile.cuh).
DEVICE void ask_for(const Args &a) {
  const Place p = place_of(threadIdx.x, cluster_rank());
  const i64 row = p.tile_row + p.warp_row + (p.lane >> 2), col = p.group_col + (p.lane & 3) * 64;
  if (col >= a.hidden) return;
  const TX *x = a.x + row * a.ldx + col;
  if (row < a.rows) ask_for_line(x);
  if (row + 8 < a.rows) ask_for_line(x + 8 * a.ldx);
}

// Grid: a cluster for each TILE_ROWS rows. Rows are a multiple of 16, columns of 8; x and yt are aligned to 16 bytes, y to 8.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) norm_fwd_tile(const __grid_constant__ Args a) {
  if (blockIdx.x < a.early) ask_for(a);
  after_previous();
  extern __shared__ __align__(1024) u8 held[];
  __shared__ Shared shared;
  const u32 C = cluster_size(), rank = cluster_rank();
  const Place p = place_of(threadIdx.x, rank);
  const u32 lane = p.lane, warp_row = p.warp_row;
  const i64 row = p.tile_row + warp_row, col = p.group_col + lane * 8;
  const bool here = row < a.rows, mine = col < a.hidden;
  // Vectors of a row are kept apart from those of the rows above and below: eight rows of a column touch every bank once.
  const u32 warp_x = smem_u32(held) + p.group * GROUP_BYTES + warp_row * ROW_BYTES, own = warp_x + (lane << 4);
  const u32 units = (UNITS - rank + C - 1) / C;  // whose rows this block finishes
  const u32 parts_here = smem_u32(&shared.parts_here), stats_here = smem_u32(&shared.stats_here);
  if (threadIdx.x == 0) {
    mbar_init(parts_here, 1);
    mbar_init(stats_here, 1);
    mbar_init_fence();
    mbar_arrive_expect(parts_here, units * C * GROUPS * (RMS ? 8 : 16));
    mbar_arrive_expect(stats_here, TILE_ROWS * (u32)sizeof(RowStats));
  }
  {
    const TX *x = a.x + row * a.ldx + col;
#pragma unroll
    for (u32 i = 0; i < WARP_ROWS; ++i, x += a.ldx) cp_async16(own + i * ROW_BYTES ^ (i & 7) << 4, x, here && mine ? 16 : 0);
    cp_async_commit();
  }
  __syncthreads();
  // No block sends before all have set up their barriers.
  cluster_arrive();
  const float scale = read_scale(a);
  if (a.residual) add_residual(a, row, col, own, here && mine);
  else cp_async_wait<0>();
  __syncwarp();
  {
    const bool hold = (lane & 3) == lane >> 3;
    const Sums s = sums_of(warp_x, own, mine, chunk_of(a, p.chunk), hold);
    const u32 unit = warp_row / 2 + (lane >> 2), place = smem_u32(shared.parts) + (unit / C * (C * GROUPS) + p.chunk) * (RMS ? 8 : 16);
    cluster_wait();
    if (hold) {
      if (RMS) send8(place, parts_here, unit % C, s.squares[0], s.squares[1]);
      else send16(place, parts_here, unit % C, Vec16{{bits_of(s.sum[0]), bits_of(s.squares[0]), bits_of(s.sum[1]), bits_of(s.squares[1])}});
    }
  }
  Parameters<8> raw_gamma, raw_beta;
  const bool has_gamma = mine && a.gamma, has_beta = !RMS && mine && a.beta;
  if (has_gamma) raw_gamma.fetch(a.gamma, a.gamma_dt, col);
  if (has_beta) raw_beta.fetch(a.beta, a.beta_dt, col);
  // All blocks wait for this: a unit to a warp where there are no more of them.
  const Chunk last = RMS ? Chunk{} : chunk_of(a, (u32)a.hidden / WARP_COLS);
  const u32 together = units <= WARPS ? 1 : units <= 2 * WARPS ? 2 : 4;
#pragma unroll 1
  for (u32 u = p.warp * together; u < units; u += WARPS * together) {
    mbar_wait_cluster(parts_here, 0);
    finish_rows(a, shared, p.tile_row, u, units, 16 / together, C, rank, last);
  }
  float gamma[8], beta[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) gamma[k] = 1.0f, beta[k] = 0.0f;
  if (has_gamma) {
    raw_gamma.widen(a.gamma_dt, gamma);
#pragma unroll
    for (int k = 0; k < 8; ++k) gamma[k] = a.zero_centered ? 1.0f + gamma[k] : gamma[k];
  }
  if (has_beta) raw_beta.widen(a.beta_dt, beta);
  // The scale joins the parameters, which 16 rows share, unless that could take a value out of the range of f32.
  float largest = 0.0f;
#pragma unroll
  for (int k = 0; k < 8; ++k) largest = max_nan(largest, max_nan(gamma[k], beta[k]));
  const bool join = scale >= 0x1p-16f && scale <= 0x1p40f && __all_sync(0xFFFFFFFFu, largest < 0x1p60f);
  if (join) {
#pragma unroll
    for (int k = 0; k < 8; ++k) gamma[k] *= scale, beta[k] *= scale;
  }
  mbar_wait_cluster(stats_here, 0);
  // (x - mean) * rsigma is one instruction where the rounding of mean * rsigma is that of the mean: not in rows of one value, which lie on it.
  bool quick = join;
  if (!RMS) {
    const RowStats s = shared.stats[warp_row + (lane & (WARP_ROWS - 1))];
    quick = __all_sync(0xFFFFFFFFu, join && fabsf(s.mean * s.rsigma) <= 32.0f);
  }
  float amax[2] = {0.0f, 0.0f};
  u32 column[8][4];  // of words of four codes
  const bool row_wise = mine && a.y;
  const auto codes = [&](auto type, auto fast) {
    const float factor = !RMS && join ? 1.0f : scale;
    u8 *y = a.y + row * a.ldy + col;
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      u32 code[2][4];
#pragma unroll
      for (u32 i = 0; i < 4; ++i, y += a.ldy) {
        const u32 r = 4 * j + i;
        const RowStats s = shared.stats[warp_row + r];
        float v[N];
        unpack<X>(read16(own + r * ROW_BYTES ^ (r & 7) << 4), v);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          if (RMS) v[k] = v[k] * s.rsigma * gamma[k];
          else if (decltype(fast)::value) v[k] = __fmaf_rn(__fmaf_rn(v[k], s.rsigma, -s.mean * s.rsigma), gamma[k], beta[k]);
          else v[k] = (v[k] - s.mean) * s.rsigma * gamma[k] + beta[k];
          amax[k & 1] = max_nan(amax[k & 1], v[k]);
          if (!decltype(fast)::value) v[k] *= factor;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h)
          code[h][i] = f32x4_to_fp8x4<decltype(type)::value>(v[4 * h], v[4 * h + 1], v[4 * h + 2], v[4 * h + 3]);
        if (row_wise) st8(y, Vec8{{code[0][i], code[1][i]}});
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        transpose4(code[h][0], code[h][1], code[h][2], code[h][3]);
#pragma unroll
        for (int k = 0; k < 4; ++k) column[4 * h + k][j] = code[h][k];
      }
    }
  };
  const auto codes_of = [&](auto fast) {
    if (a.y_dt == DT_E4M3) codes(Type<DT_E4M3>(), fast);
    else codes(Type<DT_E5M2>(), fast);
  };
  if (here) {
    if (quick) codes_of(Type<1>());
    else codes_of(Type<0>());
  }
  if (join) amax[0] = max_nan(amax[0], amax[1]) * reciprocal(scale), amax[1] = 0.0f;
  const u32 most = warp_max(bits_of(mine ? max_nan(amax[0], amax[1]) : 0.0f)), recorded = a.amax ? *(volatile const u32 *)a.amax : 0;
  if (a.yt) store_transposed(a, held, column, place_of(anew(threadIdx.x), rank_anew()));
  if (a.amax && (threadIdx.x & 31) == 0 && most > recorded) record_amax(a.amax, most);
}
