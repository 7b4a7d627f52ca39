// Casts of any number of tensors to FP8 in one launch, with the bits of cast.cu: q = encode(f32(x) * scale), row-wise, transposed or both.
//
//   multi_cast  a block of 256 threads per 128 x 128 elements of a tensor. Types are those of each tensor, known at run time: blocks do not
//               mix tensors, so no warp diverges. Every thread has eight 16-byte loads under way: 128 KiB per multiprocessor. f32 comes
//               in two halves of four rows. Bytes moved per element: sizeof(input) + 1 per layout.
//   multi_amax  before it, for current scaling: the amax of each tensor, by atomic maxima into one word each. The cast then walks
//               backwards, so that what was read last is still in the cache.
//   multi_current  both for long lists whose tensors fit the cache: the amax of a block is taken `lag` blocks ahead of its cast, which
//               finds the block in the cache (asked to keep it, then to let it go), so that memory is read once. As many blocks as the
//               device holds take items of work in order. A cast waits for the amaxes of its tensor, which come before it in that
//               order: whoever took them works on them, or on what comes before them, and so all of it ends.
// Tensors whose base or stride is not a multiple of the vector take the same tiles with single elements, neighbouring lanes side by side.
#include "common/list.cuh"

// Mirrored by CastEntry in src/ops/multi_cast.rs.
struct CastEntry {
  u32 first, blocks;
  const char *x;
  u8 *q, *qt;              // or null
  float *scale, *scale_inv, *amax;
  i64 ldx, ldq, ldqt, rows, cols;
  u32 types;               // of input and codes, four bits each
  u32 col_tiles;
  u64 pad[3];
};

// Mirrored by `Params` in src/backend/cuda/multi_cast.rs.
struct MultiCastParams {
  const CastEntry *entries;
  const u32 *map;
  u32 *amaxes;             // current scaling: one word per tensor, as bits, 0 before; else null
  const u32 *skip;         // not 0 there: nothing is written
  u32 power_of_two;
  float margin_factor, epsilon;
  u32 blocks, lag;         // multi_current: blocks of the list; how far amaxes are ahead. `amaxes` then has a word for each block (its
  u32 pad;                 // amax, with the top bit when it is there) and one more, the next item of work; all 0 before
};
#define AMAX_THERE 0x80000000u

// Where a block is.
struct Place {
  i64 row0, col0;

  DEVICE Place(const CastEntry &e, u32 block) {
    u32 down = block / e.col_tiles;
    row0 = (i64)down * TILE;
    col0 = (i64)(block - down * e.col_tiles) * TILE;
  }
};

// Whether the input can be read, and the row-wise codes written, by vectors.
DEVICE bool aligned(const CastEntry &e, bool outputs) {
  u32 size = type_bytes(e.types & 15), per = 16 / size;
  u64 in = (u64)e.x | (u64)e.ldx * size, row = e.q ? (u64)e.q | (u64)e.ldq : 0;
  bool good = (in & 15) == 0 && e.cols % per == 0;
  return good && (!outputs || (row & (per - 1)) == 0);
}

template <int DT> DEVICE void unpack_vector(const Vec16 &raw, float *v) {
#pragma unroll
  for (int w = 0; w < 4; w++) {
    if (DT == DT_F32) v[w] = float_of(raw.w[w]);
    else unpack2<DT>(raw.w[w], v[2 * w], v[DT == DT_F32 ? 0 : 2 * w + 1]);
  }
}

// The scale of a tensor from its amax as bits; `first` writes what the call has to.
DEVICE float scale_from_bits(const MultiCastParams &p, const CastEntry &e, u32 bits, bool first) {
  float amax = float_of(bits > 0x7F800000u ? 0x7FFFFFFFu : bits), scale = 1.0f;
  if (e.rows != 0 && e.cols != 0) {
    float largest = (e.types >> 4 & 15) == DT_E5M2 ? FP8_MAX(DT_E5M2) : FP8_MAX(DT_E4M3);
    scale = scale_from_amax(amax, largest, p.margin_factor, p.epsilon, p.power_of_two != 0, 1.0f);
  }
  if (first) {
    if (e.amax) *e.amax = amax;
    if (e.scale) *e.scale = scale;
    if (e.scale_inv) *e.scale_inv = reciprocal(scale);
  }
  return scale;
}

// The scale of a tensor; block 0 of it writes what it has to. AHEAD: when all amaxes of the tensor are there; holds barriers then.
#define GIVEN 0
#define MEASURED 1
#define AHEAD 2
template <int SCALE> DEVICE float scale_of(const MultiCastParams &p, const CastEntry &e, u32 index, bool first) {
  if (SCALE == AHEAD) {
    __shared__ float shared_scale;
    u32 bits = 0;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < e.blocks; i += LIST_THREADS) {
      u32 word;
      do word = ld_relaxed(p.amaxes + e.first + i);
      while (!(word & AMAX_THERE));
      bits = umax(bits, word & ~AMAX_THERE);
    }
    bits = block_max<LIST_THREADS>(bits);
    if (threadIdx.x == 0) shared_scale = scale_from_bits(p, e, bits, first);
    __syncthreads();
    return shared_scale;
  }
  if (SCALE == MEASURED) return scale_from_bits(p, e, p.amaxes[index], first);
  float scale = e.scale ? *e.scale : 1.0f;
  if (first && e.scale_inv) *e.scale_inv = reciprocal(scale);
  return scale;
}

DEVICE u32 codes4(bool e5m2, const float *v, float scale) {
  return e5m2 ? f32x4_to_fp8x4<DT_E5M2>(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale)
              : f32x4_to_fp8x4<DT_E4M3>(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
}

// One tile by vectors. Returns the thread's amax; leaves the transposed codes in `codes`, not yet behind a barrier.
template <int DT, int SCALE> DEVICE u32 cast_vectors(const MultiCastParams &p, const CastEntry &e, u32 index, u32 block, u8 *codes, u64 past) {
  typedef typename Elem<DT>::T In;
  const int V = TileVec<DT>::V, N = 8 / V;
  const bool BOTH = V == 8;  // both halves of the rows are asked for at once
  const Place at(e, block);
  const i64 row = at.row0 + tile_row();
  u32 here[N];                // of the thread's eight rows, those in which the load lies inside the tensor
#pragma unroll
  for (int n = 0; n < N; n++) {
    i64 below = at.col0 + tile_col<V>(n) < e.cols ? e.rows - row : 0;
    here[n] = below < 0 ? 0 : (u32)imin(below, 8);
  }
  auto ask = [&](Vec16(&raw)[4][N], u32 first) {
    const i64 ldx = e.ldx;
    const In *x = (const In *)e.x + (row + first) * ldx + at.col0;
#pragma unroll
    for (u32 i = 0; i < 4; i++, x += ldx)
#pragma unroll
      for (int n = 0; n < N; n++) {
        raw[i][n] = Vec16{{0, 0, 0, 0}};
        if (first + i < here[n]) raw[i][n] = SCALE == AHEAD ? ld16_policy(x + tile_col<V>(n), past) : ld16_stream(x + tile_col<V>(n));
      }
  };
  // Neighbouring row groups begin with opposite halves of their rows: see tile_put_half.
  u32 half = (threadIdx.x >> 4) & 1, amax = 0;
  Vec16 raw[4][N], later[4][N];
  if (BOTH) ask(raw, 4 * half);
  if (BOTH && SCALE == AHEAD) ask(later, 4 * (half ^ 1));
  // Between the loads, where registers are free.
  const float scale = scale_of<SCALE>(p, e, index, block == 0 && threadIdx.x == 0);
  if (BOTH && SCALE != AHEAD) ask(later, 4 * (half ^ 1));
#pragma unroll 1
  for (u32 pass = 0; pass < 2; pass++, half ^= 1) {
    const u32 first = 4 * half;
    if (!BOTH) ask(raw, first);
    const bool e5m2 = (e.types >> 4 & 15) == DT_E5M2;
    const i64 ldq = e.ldq;
    u8 *q = e.q;
    const u32 end = q ? 8 : 0;
    q += (row + first) * ldq + at.col0;
    u32 code[4][2];
#pragma unroll
    for (u32 i = 0; i < 4; i++, q += ldq) {
      float v[8];
#pragma unroll
      for (int n = 0; n < N; n++) unpack_vector<DT>(raw[i][n], v + V * n);
#pragma unroll
      for (int j = 0; j < 8; j++) amax = umax(amax, abs_bits(v[j]));
      code[i][0] = codes4(e5m2, v, scale);
      code[i][1] = codes4(e5m2, v + 4, scale);
      if (V == 8) {
        if (first + i < min(here[0], end)) st8(q + tile_col<V>(0), Vec8{{code[i][0], code[i][1]}}, past);
      } else {
#pragma unroll
        for (int n = 0; n < N; n++)
          if (first + i < min(here[n], end)) st4(q + tile_col<V>(n), code[i][n]);
      }
    }
    if (e.qt) tile_put_half<V>(codes, code, half);
    if (BOTH) {
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) raw[i][n] = later[i][n];
    }
  }
  return amax;
}

// Tile of 128 rows x 64 columns at a time: thread t takes column t % 64 of every fourth row.
#define ANY_COLS 64
#define ANY_PITCH (ANY_COLS + 4)  // 17 words: reads down a column touch every bank once

// One tile by single elements, all of it. Returns the thread's amax. Holds barriers.
template <int SCALE> DEVICE u32 cast_any(const MultiCastParams &p, const CastEntry &e, u32 index, u32 block, u8 *codes) {
  const Place at(e, block);
  const u32 type = e.types & 15, tx = threadIdx.x & 63, ty = threadIdx.x >> 6;
  const bool e5m2 = (e.types >> 4 & 15) == DT_E5M2;
  float scale = scale_of<SCALE>(p, e, index, block == 0 && threadIdx.x == 0);
  u32 amax = 0;
#pragma unroll 1
  for (u32 side = 0; side < TILE; side += ANY_COLS) {
    i64 left = at.col0 + side, col = left + tx;
    if (left >= e.cols) break;
    i64 rows_here = imin(TILE, (col < e.cols ? e.rows : 0) - at.row0);
#pragma unroll 1
    for (u32 r = ty; r < TILE; r += 32) {
      float v[8];
#pragma unroll
      for (u32 i = 0; i < 8; i++) {
        i64 from = (at.row0 + r + 4 * i) * e.ldx + col;
        v[i] = 0.0f;
        if (r + 4 * i < rows_here) v[i] = type == DT_F32 ? ((const float *)e.x)[from] : from_bits16(type, ((const u16 *)e.x)[from]);
      }
#pragma unroll
      for (u32 i = 0; i < 8; i++) {
        amax = umax(amax, abs_bits(v[i]));
        u8 code = e5m2 ? f32_to_fp8<DT_E5M2>(v[i] * scale) : f32_to_fp8<DT_E4M3>(v[i] * scale);
        codes[(r + 4 * i) * ANY_PITCH + tx] = code;
        if (e.q && r + 4 * i < rows_here) e.q[(at.row0 + r + 4 * i) * e.ldq + col] = code;
      }
    }
    __syncthreads();
    if (e.qt) {
      u32 r = threadIdx.x & (TILE - 1);
      i64 width = imin(ANY_COLS, e.cols - left);
      if (at.row0 + r < e.rows)
        for (u32 c = threadIdx.x / TILE; c < width; c += 2) e.qt[(left + c) * e.ldqt + at.row0 + r] = codes[r * ANY_PITCH + c];
    }
    __syncthreads();
  }
  return amax;
}

// What fits the registers without spilling; the compilers for 10.x and 12.x want a few more.
#define BLOCKS_PER_PROCESSOR (3 - (__CUDA_ARCH__ >= 1000))
// With given scales sm_90 has room for one more, which is 6 % faster.
#define CAST_BLOCKS (__CUDA_ARCH__ == 900 ? 4 : __CUDA_ARCH__ == 890 ? 2 : BLOCKS_PER_PROCESSOR)

// A block writes 16 or 32 KiB.
DEVICE bool beyond_cache() { return gridDim.x > 1024; }

// Block `b` of the list, all of it.
template <int SCALE> DEVICE void cast_block(const MultiCastParams &p, u32 b, u8 *codes, u64 past) {
  __shared__ u32 part[LIST_THREADS / 32];
  const u32 index = p.map[b];
  const CastEntry &e = p.entries[index];
  const u32 block = b - e.first, type = e.types & 15;
  const bool vectors = aligned(e, true), record = SCALE == GIVEN && e.amax;
  u32 amax;
  if (!vectors) amax = cast_any<SCALE>(p, e, index, block, codes);
  else if (type == DT_F32) amax = cast_vectors<DT_F32, SCALE>(p, e, index, block, codes, past);
  else if (type == DT_BF16) amax = cast_vectors<DT_BF16, SCALE>(p, e, index, block, codes, past);
  else amax = cast_vectors<DT_F16, SCALE>(p, e, index, block, codes, past);
  if (record) {
    amax = warp_max(amax);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = amax;
  }
  __syncthreads();
  if (record && threadIdx.x < 32) {
    amax = warp_max(threadIdx.x < LIST_THREADS / 32 ? part[threadIdx.x] : 0u);
    if (threadIdx.x == 0 && amax) record_amax(e.amax, amax);
  }
  if (!vectors || !e.qt) return;
  const Place at(e, block);
  if (type == DT_F32) tile_store_transposed<4>(codes, e.qt, e.ldqt, at.row0, at.col0, e.rows, e.cols, past);
  else tile_store_transposed<8>(codes, e.qt, e.ldqt, at.row0, at.col0, e.rows, e.cols, past);
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS, CAST_BLOCKS) multi_cast(const __grid_constant__ MultiCastParams p) {
  after_previous();
  if (p.skip && *p.skip) return;
  __shared__ Vec16 shared[TILE * TILE / 16];
  cast_block<GIVEN>(p, blockIdx.x, (u8 *)shared, store_policy(beyond_cache()));
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS, BLOCKS_PER_PROCESSOR) multi_measured(const __grid_constant__ MultiCastParams p) {
  after_previous();
  if (p.skip && *p.skip) return;
  __shared__ Vec16 shared[TILE * TILE / 16];
  cast_block<MEASURED>(p, gridDim.x - 1 - blockIdx.x, (u8 *)shared, store_policy(beyond_cache()));
}

template <int DT, bool KEEP> DEVICE u32 amax_vectors(const CastEntry &e, u32 block) {
  typedef typename Elem<DT>::T In;
  const int V = TileVec<DT>::V, N = 8 / V;
  const Place at(e, block);
  i64 row = at.row0 + tile_row();
  const u64 keep = evict_last();
  Vec16 raw[8][N];
#pragma unroll
  for (int n = 0; n < N; n++) {
    i64 c = at.col0 + tile_col<V>(n), rows_here = c < e.cols ? e.rows : 0;
    const In *from = (const In *)e.x + row * e.ldx + c;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      raw[i][n] = Vec16{{0, 0, 0, 0}};
      if (row + i < rows_here) raw[i][n] = KEEP ? ld16_policy(from + i * e.ldx, keep) : ld16_stream(from + i * e.ldx);
    }
  }
  u32 amax = 0;
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int n = 0; n < N; n++) {
      float v[V];
      unpack_vector<DT>(raw[i][n], v);
#pragma unroll
      for (int j = 0; j < V; j++) amax = umax(amax, abs_bits(v[j]));
    }
  return amax;
}

DEVICE u32 amax_any(const CastEntry &e, u32 block) {
  const Place at(e, block);
  const u32 type = e.types & 15, tx = threadIdx.x & 127, ty = threadIdx.x >> 7;
  i64 col = at.col0 + tx, rows_here = imin(TILE, (col < e.cols ? e.rows : 0) - at.row0);
  u32 amax = 0;
#pragma unroll 8
  for (u32 r = ty; r < TILE; r += 2) {
    i64 from = (at.row0 + r) * e.ldx + col;
    if (r < rows_here) amax = umax(amax, abs_bits(type == DT_F32 ? ((const float *)e.x)[from] : from_bits16(type, ((const u16 *)e.x)[from])));
  }
  return amax;
}

// The amax of block `b` of the list, for thread 0.
template <bool KEEP> DEVICE u32 amax_block(const CastEntry &e, u32 b) {
  const u32 block = b - e.first, type = e.types & 15;
  u32 amax;
  if (!aligned(e, false)) amax = amax_any(e, block);
  else if (type == DT_F32) amax = amax_vectors<DT_F32, KEEP>(e, block);
  else if (type == DT_BF16) amax = amax_vectors<DT_BF16, KEEP>(e, block);
  else amax = amax_vectors<DT_F16, KEEP>(e, block);
  return block_max<LIST_THREADS>(amax);
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS, 3) multi_amax(const __grid_constant__ MultiCastParams p) {
  after_previous();
  if (p.skip && *p.skip) return;
  u32 index = p.map[blockIdx.x], amax = amax_block<false>(p.entries[index], blockIdx.x);
  if (threadIdx.x == 0 && amax) atomicMax(p.amaxes + index, amax);
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS, BLOCKS_PER_PROCESSOR) multi_current(const __grid_constant__ MultiCastParams p) {
  after_previous();
  if (p.skip && *p.skip) return;
  __shared__ Vec16 shared[TILE * TILE / 16];
  __shared__ u32 items[2];
  u32 *counter = p.amaxes + p.blocks;
  const u32 behind = p.blocks - p.lag;  // casts that take turns with amaxes
  if (threadIdx.x == 0) items[0] = atomicAdd(counter, 1u);
  __syncthreads();
  u32 item = items[0], turn = 1;
  // Items: `lag` amaxes; an amax and a cast in turns; the last `lag` casts.
#pragma unroll 1
  for (; item < 2 * p.blocks; turn ^= 1) {
    u32 next;
    if (threadIdx.x == 0) next = atomicAdd(counter, 1u);  // asked for early: its round trip is not waited for
    const u32 r = item - p.lag;
    const bool in_turns = item >= p.lag && r < 2 * behind;
    if (item < p.lag || (in_turns && (r & 1) == 0)) {
      const u32 b = in_turns ? p.lag + r / 2 : item;
      u32 amax = amax_block<true>(p.entries[p.map[b]], b);
      if (threadIdx.x == 0) st_relaxed(p.amaxes + b, amax | AMAX_THERE);
    } else {
      cast_block<AHEAD>(p, in_turns ? r / 2 : r - behind, (u8 *)shared, evict_first());
    }
    if (threadIdx.x == 0) items[turn] = next;
    __syncthreads();
    item = items[turn];
  }
}
