// Casts to FP8: q = encode(f32(x) * scale), row-wise, transposed, or both, with the amax of x; and column sums of x beside it.
//
// x: [rows, cols] of IN with row stride ldx; q: [rows, cols], qt: [cols, rows] of OUT. Defines: IN, OUT, DBIAS (1: column sums),
// HALO (1: columns of qt that begin at no multiple of 32; see tile.cuh).
// One block of 256 threads per 128 x 128 tile, or, where that makes few blocks, of 128 threads per 64 x 128: x is read once, codes go
// out row-wise from registers and transposed through shared memory. Bytes moved per element: sizeof(IN) + 1 per layout; column sums add
// 4/128.
//   cast_tile  16-byte accesses: base and row stride of x are multiples of 16 bytes (row-wise codes: of 8), cols of the load.
//              Eight 16-byte loads per thread (f32: sixteen) are issued before anything waits: 128 KiB in flight per multiprocessor. L2 is
//              asked for tiles ahead of that (CastParams::early, ahead; see tile.cuh).
//   cast_any   every other stride and alignment, by way of quads.cuh.
//   cast_low   small tensors, in tiles of 32 rows; with a transposed layout, rows in multiples of eight.
//   cast_held  current scaling of what the chip holds, in one launch; 16-byte accesses.
// With column sums, where shared memory is large (STAGED): x waits there, in slots of 16 bytes which the thread that asked for them reads
// again, so that no barrier is needed. Registers then hold no raw data, and 160 KiB are under way per multiprocessor.
// A contiguous tensor cast row-wise only arrives as rows of 128 (CastParams::last and ::tail take what is left over).
//
// Scale: read from a slot; or, for current scaling, made by every block from the partial amaxes that the amax kernel left. That costs a
// block one round trip which overlaps its loads, and saves a launch. Tiles are then walked backwards, since what the amax kernel read last is
// still in the cache. A tensor of which the cache holds all leaves it first as it is read, and so do its codes.
#include "common/tile.cuh"
#include "common/dbias.cuh"
#include "common/ptx_mma.cuh"

typedef Elem<IN>::T In;
#define V TileVec<IN>::V
#define STAGED (DBIAS && IN != DT_F32 && (__CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000))
#define ROOM (STAGED ? 2 * TILE * TILE : TILE * TILE + HALO * HALO_BYTES)  // bytes of shared memory: the transposed tile, or before it the slots

struct CastParams {
  const In *x;
  u8 *q, *qt;
  float *scale, *scale_inv, *amax;
  float *kept;          // receives the scale that was used
  const u32 *skip;      // not 0 there: nothing is written
  const u32 *partials;  // current scaling: partial amaxes as bits; else null
  float *sums;          // [row tiles, cols]
  void *dbias;          // not null: there is one row of tiles, and the sums go here, of type dbias_dtype
  i64 ldx, ldq, ldqt, rows, cols;
  i64 last;             // columns of the last row
  u32 col_tiles, partial_count;
  u32 tail;             // elements behind the last row
  u32 power_of_two, empty;
  float margin_factor, epsilon;
  u32 dbias_dtype, accumulate;
  u32 tiles;            // of the tensor, for cast_held
  u32 early, ahead;     // what is asked for: the first tiles, before their blocks' turn; by each block, the tile so many after its own (0: none)
  u32 cached;           // current scaling: the cache holds x as a whole
};

// Current scaling: the scale that the amax with these bits gives. One thread of the launch, `first`, writes the slots.
template <int O> DEVICE float scale_for(const CastParams &p, u32 bits, bool first) {
  float amax = float_of(bits > 0x7F800000u ? 0x7FFFFFFFu : bits);
  float scale = p.empty ? 1.0f : scale_from_amax(amax, FP8_MAX(O), p.margin_factor, p.epsilon, p.power_of_two != 0, 1.0f);
  if (first) {
    if (p.amax) *p.amax = amax;
    if (p.scale) *p.scale = scale;
    if (p.scale_inv) *p.scale_inv = reciprocal(scale);
    if (p.kept) *p.kept = scale;
  }
  return scale;
}

// The scale that is given.
DEVICE float given_scale(const CastParams &p, bool first) {
  float scale = p.scale ? *p.scale : 1.0f;
  if (first && p.scale_inv) *p.scale_inv = reciprocal(scale);
  if (first && p.kept) *p.kept = scale;
  return scale;
}

// The scale of this tensor, for all threads of block `block`. Block 0 writes the slots. Holds barriers.
template <int O> DEVICE float scale_of(const CastParams &p, u32 block) {
  bool first = block == 0 && threadIdx.x == 0;
  if (!p.partials) return given_scale(p, first);
  __shared__ float shared_scale;
  u32 bits = 0;
  for (u32 i = threadIdx.x; i < p.partial_count; i += blockDim.x) bits = umax(bits, p.partials[i]);
  bits = block_max<TILE_THREADS>(bits);
  if (threadIdx.x == 0) shared_scale = scale_for<O>(p, bits, first);
  __syncthreads();
  return shared_scale;
}

// Recording takes one atomic per block: warps leave their maxima before the block's last barrier, thread 0's warp reduces them behind it.
DEVICE bool records_amax(const CastParams &p) { return p.amax && !p.partials; }
DEVICE void leave_amax(u32 (&part)[TILE_THREADS / 32], u32 amax) {
  amax = warp_max(amax);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = amax;
}
DEVICE void finish_amax(const CastParams &p, const u32 (&part)[TILE_THREADS / 32]) {
  if (threadIdx.x >= 32) return;
  u32 amax = warp_max(threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0u);
  if (threadIdx.x == 0 && amax) record_amax(p.amax, amax);
}

DEVICE u32 tile_index(const CastParams &p, u32 block, u32 blocks) { return p.partials ? blocks - 1 - block : block; }

#if DBIAS
// The sum of column `col` over the rows of one row of tiles.
DEVICE void leave_sum(const CastParams &p, i64 row_tile, i64 col, float sum) {
  if (p.dbias) store_sum(p.dbias, p.dbias_dtype, col, sum, p.accumulate != 0);
  else p.sums[row_tile * p.cols + col] = sum;
}
#endif

// Asks L2 for a tile of x.
DEVICE void ask_for(const CastParams &p, u32 index) {
  const u32 height = blockDim.x / 2, down = index / p.col_tiles;
  const i64 row = (i64)down * height, col = (i64)(index - down * p.col_tiles) * TILE, end = row + height < p.rows ? p.cols : p.last;
  const int size = sizeof(In);
  ask_for_tile<TILE * size>(p.x + row * p.ldx + col, p.ldx * size, (u32)imin(height, p.rows - row), (u32)imin(TILE, end - col) * size);
}

// One tile, to codes of format O: block `block` of the `blocks` that share this tensor. SUMS: column sums beside it.
template <int O, bool SUMS> DEVICE void cast_block(const CastParams &p, u32 block, u32 blocks, Vec16 *shared, u32 (&part)[TILE_THREADS / 32]) {
  // Current scaling: the kernel before leaves partial amaxes and nothing else. It waits for what was enqueued before it and only then lets
  // this one begin, so that x can be asked for ahead of the wait.
  const bool current = p.partials != 0;
  if (p.skip && *p.skip) {
    if (current) after_previous();
    return;
  }
  u8 *tile = (u8 *)shared;
  u32 index = tile_index(p, block, blocks);
  const u32 height = blockDim.x / 2;
  i64 row0 = (i64)(index / p.col_tiles) * height, col0 = (i64)(index % p.col_tiles) * TILE, row = row0 + tile_row();
  const int N = 8 / V;  // loads per row
  const bool WAITS = SUMS && STAGED;
  u8 *mine = (u8 *)shared + threadIdx.x * 16;
  Vec16 raw[8][N];
  u32 rows_here[N];     // of the thread's eight rows, those in which the load lies inside the tensor
  const In *x = p.x + row * p.ldx + col0;
  // Where the cache just holds all that the amax kernel read, x may go as soon as it is read again, and codes should not push it out; unless
  // neighbouring tiles read parts of the same lines or write parts of the same sectors. Later architectures have room for both.
  const bool lines = (((u32)(u64)p.x | (u32)p.ldx * (u32)sizeof(In)) & 127) == 0;
  const bool passing = __CUDA_ARCH__ < 1000 && p.cached && lines && whole_sectors(p.q, p.ldq) && whole_sectors(p.qt, p.ldqt);
  const u64 policy = passing ? FIRST_LINES : NORMAL_LINES;
#pragma unroll
  for (int n = 0; n < N; n++) {
    i64 c = col0 + tile_col<V>(n);
    i64 below = c >= p.cols ? 0 : (c < p.last ? p.rows : p.rows - 1) - row;
    rows_here[n] = below < 0 ? 0 : (u32)imin(below, 8);
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
      if (WAITS) {
        cp_async16(smem_u32(mine) + i * TILE_THREADS * 16, x + i * p.ldx + tile_col<V>(n), i < rows_here[n] ? 16 : 0);
        if (i == 3 || i == 7) cp_async_commit();
        continue;
      }
      raw[i][n] = Vec16{{0, 0, 0, 0}};
      if (i < rows_here[n]) raw[i][n] = ld16_policy(x + i * p.ldx + tile_col<V>(n), policy);
    }
  }
#if !HALO
  if (p.ahead && block + p.ahead < blocks) ask_for(p, tile_index(p, block + p.ahead, blocks));
#endif
#if HALO
  const bool halo = p.qt && !whole_sectors(p.qt, p.ldqt);
  Vec16 above[4] = {};  // of 16-bit types the lower half
  if (halo && row0 && col0 + halo_col() < p.cols) {
    const In *from = p.x + (row0 + halo_row()) * p.ldx + col0 + halo_col();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (sizeof(In) == 4) {
        above[i] = ld16_stream(from + i * p.ldx);
      } else {
        const Vec8 four = ld8(from + i * p.ldx);
        above[i].w[0] = four.w[0], above[i].w[1] = four.w[1];
      }
    }
  }
#endif
  if (current) after_previous();
  float scale = scale_of<O>(p, block);
  u32 amax = 0, code[8][2];
  float sum[8] = {};
  u8 *q = p.q + row * p.ldq + col0;
  if (!p.q) {
#pragma unroll
    for (int n = 0; n < N; n++) rows_here[n] = 0;  // of the row-wise codes
  }
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    if (WAITS) {
      if (i == 0) cp_async_wait<1>();
      if (i == 4) cp_async_wait<0>();
      raw[i][0] = *(const Vec16 *)(mine + i * TILE_THREADS * 16);
    }
    float v[8];
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int w = 0; w < 4; w++) {
        if (V == 8) unpack2<IN>(raw[i][n].w[w], v[2 * w], v[2 * w + 1]);
        else v[4 * n + w] = float_of(raw[i][n].w[w]);
      }
#pragma unroll
    for (int j = 0; j < 8; j++) {
      amax = umax(amax, abs_bits(v[j]));
      if (SUMS) sum[j] += v[j];
    }
    code[i][0] = f32x4_to_fp8x4<O>(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
    code[i][1] = f32x4_to_fp8x4<O>(v[4] * scale, v[5] * scale, v[6] * scale, v[7] * scale);
    if (V == 8) {
      if (i < rows_here[0]) st8(q + i * p.ldq + tile_col<V>(0), Vec8{{code[i][0], code[i][1]}}, policy);
    } else {
#pragma unroll
      for (int n = 0; n < N; n++)
        if (i < rows_here[n]) st4(q + i * p.ldq + tile_col<V>(n), code[i][n]);
    }
  }
  if (p.q && index == blocks - 1 && threadIdx.x < p.tail) {
    i64 at = (p.rows - 1) * TILE + p.last + threadIdx.x;
    float v = Elem<IN>::load(p.x[at]);
    amax = umax(amax, abs_bits(v));
    p.q[at] = f32_to_fp8<O>(v * scale);
  }
#if DBIAS
  // Sixteen row groups per column: two meet in a shuffle, the eight warps in shared memory.
  __shared__ float sums[TILE_THREADS / 32][TILE];
  if (SUMS) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      sum[j] += __shfl_xor_sync(0xFFFFFFFFu, sum[j], 16);
      if ((threadIdx.x & 16) == 0) sums[threadIdx.x >> 5][tile_col<V>(j >> 2) + (j & 3)] = sum[j];
    }
  }
#endif
  bool record = records_amax(p);
  if (record) leave_amax(part, amax);
  if (WAITS && p.qt) __syncthreads();  // the slots have been read
  if (p.qt) tile_put<V>(tile, code);
#if HALO
  if (halo) {
    u32 codes[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float v[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        if (V == 4) v[j] = float_of(above[i].w[j]);
        else if (j % 2 == 0) unpack2<IN>(above[i].w[j / 2], v[j], v[j + 1]);
      }
      codes[i] = f32x4_to_fp8x4<O>(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
    }
    halo_put(tile, codes);
  }
#endif
  __syncthreads();
#if DBIAS
  i64 col = col0 + threadIdx.x;
  if (SUMS && threadIdx.x < TILE && col < p.cols) {
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < TILE_THREADS / 32; w++) total += sums[w][threadIdx.x];
    leave_sum(p, row0 / TILE, col, total);
  }
#endif
  if (record) finish_amax(p, part);
#if HALO
  if (halo) return halo_store<V>(tile, p.qt, p.ldqt, row0, col0, p.rows, p.cols, policy);
#endif
  if (p.qt) tile_store_transposed<V>(tile, p.qt, p.ldqt, row0, col0, p.rows, p.cols, policy, height);
}

// What fits the registers without spilling; the compilers for 10.x and 12.x want a few more.
#define BLOCKS_PER_PROCESSOR (IN == DT_F32 ? 2 : (DBIAS ? 3 : 4) - (__CUDA_ARCH__ >= 1000))
#define TILE_BLOCKS (STAGED ? 5 - (__CUDA_ARCH__ >= 1000) - HALO : BLOCKS_PER_PROCESSOR)

extern "C" __global__ void __launch_bounds__(TILE_THREADS, TILE_BLOCKS) cast_tile(const __grid_constant__ CastParams p) {
  if (blockIdx.x < p.early) ask_for(p, blockIdx.x);
  if (!p.partials) after_previous();
  __shared__ Vec16 shared[ROOM / 16];
  __shared__ u32 part[TILE_THREADS / 32];
  cast_block<OUT, DBIAS != 0>(p, blockIdx.x, gridDim.x, shared, part);
}

#if !HALO
// Two tensors in one launch, an input or a gradient with a weight, which is always E4M3: the first `blocks` blocks take the first.
struct CastPair {
  CastParams first, second;
  u32 blocks, pad;
};

extern "C" __global__ void __launch_bounds__(TILE_THREADS, BLOCKS_PER_PROCESSOR) cast_pair(const __grid_constant__ CastPair p) {
  if (blockIdx.x < p.first.early && blockIdx.x < p.blocks) ask_for(p.first, blockIdx.x);
  after_previous();
  __shared__ Vec16 shared[ROOM / 16];
  __shared__ u32 part[TILE_THREADS / 32];
  if (blockIdx.x < p.blocks) cast_block<OUT, DBIAS != 0>(p.first, blockIdx.x, p.blocks, shared, part);
  else cast_block<DT_E4M3, false>(p.second, blockIdx.x - p.blocks, gridDim.x - p.blocks, shared, part);
}
#endif

#if !DBIAS && !HALO
// A small tensor with a given scale: a matrix, or whole rows of 128. A quarter of the code of cast_tile.
extern "C" __global__ void __launch_bounds__(TILE_THREADS, IN == DT_F32 || __CUDA_ARCH__ != 900 ? 5 : 8) cast_low(const __grid_constant__ CastParams p) {
  const LowTile at(p.rows, p.cols, p.col_tiles);
  const In *const x = p.x + at.row * p.ldx + at.col;
  at.ask(x, p.ldx);
  after_previous();
  if (p.skip && *p.skip) return;
  __shared__ u32 words[LOW_WORDS];
  __shared__ u32 part[TILE_THREADS / 32];
  u32 raw[4][sizeof(In)];
  low_load(x, p.ldx, at.here, raw);
  const float scale = given_scale(p, blockIdx.x == 0 && threadIdx.x == 0);
  u32 amax = 0, code[4];
  u8 *q = p.q + at.row * p.ldq + at.col;
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    float v[4];
    low_unpack<IN>(raw[i], v);
#pragma unroll
    for (int j = 0; j < 4; j++) amax = umax(amax, abs_bits(v[j]));
    code[i] = f32x4_to_fp8x4<OUT>(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
    if (p.q && i < at.here) st4(q + i * p.ldq, code[i]);
  }
  low_put(words, code);
  const bool record = records_amax(p);
  if (record) leave_amax(part, amax);
  __syncthreads();
  if (record) finish_amax(p, part);
  if (p.qt) low_store(words, p.qt, p.ldqt, at.row0, at.col0, p.rows, p.cols);
}
#endif

#if !DBIAS && !HALO && __CUDA_ARCH__ == 900  // where it was measured
// Current scaling of a tensor that fits the chip, in one launch, which reads it once: each block holds its tiles in shared memory, and those
// that find no room there in registers, from their amax until all blocks have met and the scale is known.
//
// A cooperative launch of one block a multiprocessor. Two groups of 256 threads take tiles in turn, 32 KiB each: 128 rows of 16 vectors. A
// thread asks for all that it will hold at once. One warp more sees to the meeting. All warps of a multiprocessor do the same at the same
// time, so that each instruction is felt: 100 of them take 0.2 us.
#define GROUPS 2
#define GROUP_THREADS 256
#define WORKERS (GROUPS * GROUP_THREADS)
#define HELD_THREADS (WORKERS + 32)
#define SLOTS 7  // tiles in shared memory; each group holds one more in registers
#define SLOT_VECTORS (8 * GROUP_THREADS)
#define VECTOR (16 / (int)sizeof(In))
#define HELD_WIDTH (16 * VECTOR)
#define ABSENT 0xFFFFFFFFu  // no amax

DEVICE void bar_sync(u32 id, u32 threads) { asm volatile("barrier.cta.sync.aligned %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
DEVICE void bar_arrive(u32 id, u32 threads) { asm volatile("barrier.cta.arrive.aligned %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
#define BAR_AMAX 1   // the workers' amaxes are there
#define BAR_SCALE 2  // the scale is
#define BAR_GROUP 3  // of each group

// All blocks meet, by the word that the driver gives each cooperative launch for that, the one behind cooperative groups: launches on different
// streams share nothing, and nothing need be zeroed. Its top bit turns, the others return to what they were.
DEVICE void meet() {
  u32 *word, old, now;
  asm("{ .reg .b64 space; mov.b64 space, {%%envreg2, %%envreg1}; add.u64 %0, space, 4; }" : "=l"(word));
  const u32 count = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(word), "r"(count) : "memory");
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
  while (((now ^ old) & 0x80000000u) == 0);
}

// The warp that meets those of the other blocks. Amaxes of blocks lie in words of the workspace, which holds anything before. So the words are
// cleared, and all blocks meet, while x is on its way; from then on each word tells by itself when its amax is there.
DEVICE void find_scale(const CastParams &p, const u32 *part, float *scale) {
  const u32 lane = threadIdx.x & 31;
  u32 *words = (u32 *)p.partials;
  if (lane == 0) {
    st_relaxed(words + blockIdx.x, ABSENT);
    meet();
  }
  __syncwarp();
  bar_sync(BAR_AMAX, HELD_THREADS);
  u32 bits = warp_max(lane < WORKERS / 32 ? part[lane] : 0u);
  if (lane == 0) st_relaxed(words + blockIdx.x, bits);
#pragma unroll 1
  for (u32 i = lane; i < gridDim.x; i += 4 * 32) {
    u32 v[4];
    do {
#pragma unroll
      for (u32 k = 0; k < 4; k++) v[k] = i + 32 * k < gridDim.x ? ld_relaxed(words + i + 32 * k) : 0u;
    } while (umax(umax(v[0], v[1]), umax(v[2], v[3])) == ABSENT);
    bits = umax(bits, umax(umax(v[0], v[1]), umax(v[2], v[3])));
  }
  bits = warp_max(bits);
  if (lane == 0) *scale = scale_for<OUT>(p, bits, blockIdx.x == 0);
  bar_sync(BAR_SCALE, HELD_THREADS);
}

// The tiles of a group of threads: every so many from one on. Divisions are long: one tile's place follows from that of the one before.
struct HeldTiles {
  u32 group, thread, row, col;  // the thread's corner in a tile
  u32 n;
  u32 first_down, first_across, stride_down, stride_across, down, across;
  // The tile's corner and the thread's, and of its eight rows those that are there.
  i64 row0, col0;
  u32 rows_here;
  DEVICE HeldTiles(const CastParams &p) {
    group = threadIdx.x / GROUP_THREADS, thread = threadIdx.x % GROUP_THREADS;
    row = thread / 16 * 8, col = thread % 16 * VECTOR;
    const u32 stride = GROUPS * gridDim.x, first = blockIdx.x + group * gridDim.x;
    n = first < p.tiles ? (p.tiles - first - 1) / stride + 1 : 0;
    first_down = first / p.col_tiles, first_across = first - first_down * p.col_tiles;
    stride_down = stride / p.col_tiles, stride_across = stride - stride_down * p.col_tiles;
    begin();
  }
  DEVICE void begin() { down = first_down, across = first_across; }
  DEVICE void next(const CastParams &p) {
    row0 = (i64)down * TILE + row, col0 = (i64)across * HELD_WIDTH + col;
    i64 below = col0 >= p.cols ? 0 : (col0 < p.last ? p.rows : p.rows - 1) - row0;
    rows_here = below < 0 ? 0 : (u32)imin(below, 8);
    down += stride_down, across += stride_across;
    if (across >= p.col_tiles) across -= p.col_tiles, down++;
  }
};

extern "C" __global__ void __launch_bounds__(HELD_THREADS, 1) cast_held(const __grid_constant__ CastParams p) {
  HeldTiles at(p);
  after_previous();
  if (p.skip && *p.skip) return;
  extern __shared__ __align__(1024) u8 held[];
  __shared__ u32 part[WORKERS / 32];
  __shared__ float shared_scale;
  if (threadIdx.x >= WORKERS) {
    find_scale(p, part, &shared_scale);
    return;
  }
  const u32 group = at.group, thread = at.thread, room = (SLOTS - group + GROUPS - 1) / GROUPS;
  Vec16 *const slots = (Vec16 *)held + group * SLOT_VECTORS;
  Vec16 kept[8];
  const u64 once = evict_first();
  const u32 in_slots = at.n < room ? at.n : room;
#pragma unroll 1
  for (u32 s = 0; s < in_slots; s++) {
    at.next(p);
    const In *x = p.x + at.row0 * p.ldx + at.col0;
    const u32 to = smem_u32(slots + s * (GROUPS * SLOT_VECTORS) + thread);
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
      cp_async16(to + i * GROUP_THREADS * 16, x, i < at.rows_here ? 16 : 0, once);
      x += p.ldx;
    }
    cp_async_commit();
  }
  if (at.n > room) {
    at.next(p);
    const In *x = p.x + at.row0 * p.ldx + at.col0;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
      kept[i] = Vec16{{0, 0, 0, 0}};
      if (i < at.rows_here) kept[i] = ld16_policy(x, once);
      x += p.ldx;
    }
  }
  Largest<IN> largest;
#pragma unroll 1
  for (u32 s = 0; s < in_slots; s++) {
    u32 behind = in_slots - s - 1;
    if (behind >= 3) cp_async_wait<3>();
    else if (behind == 2) cp_async_wait<2>();
    else if (behind == 1) cp_async_wait<1>();
    else cp_async_wait<0>();
    const Vec16 *from = slots + s * (GROUPS * SLOT_VECTORS) + thread;
#pragma unroll
    for (u32 i = 0; i < 8; i++) largest.take(from[i * GROUP_THREADS]);
  }
  if (at.n > room) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) largest.take(kept[i]);
  }
  const u32 bits = warp_max(largest.bits());
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = bits;
  __syncwarp();
  bar_arrive(BAR_AMAX, HELD_THREADS);
  bar_sync(BAR_SCALE, HELD_THREADS);
  const float scale = shared_scale;
  const u64 policy = evict_normal();
  at.begin();
#pragma unroll 1
  for (u32 s = 0; s < at.n; s++) {
    at.next(p);
    Vec16 *const from = slots + (s < room ? s : 0) * (GROUPS * SLOT_VECTORS);
    if (s == room) {
      if (p.qt) bar_sync(BAR_GROUP + group, GROUP_THREADS);  // the tile that was there has been stored
#pragma unroll
      for (u32 i = 0; i < 8; i++) from[thread + i * GROUP_THREADS] = kept[i];
    }
    u32 code[8][VECTOR / 4];
    u8 *q = p.q + at.row0 * p.ldq + at.col0;
    const u32 rows_here = p.q ? at.rows_here : 0;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
      Vec16 raw = from[thread + i * GROUP_THREADS];
      float v[VECTOR];
#pragma unroll
      for (int w = 0; w < 4; w++) {
        if constexpr (VECTOR == 8) unpack2<IN>(raw.w[w], v[2 * w], v[2 * w + 1]);
        else v[w] = float_of(raw.w[w]);
      }
#pragma unroll
      for (int h = 0; h < VECTOR / 4; h++) code[i][h] = f32x4_to_fp8x4<OUT>(v[4 * h] * scale, v[4 * h + 1] * scale, v[4 * h + 2] * scale, v[4 * h + 3] * scale);
      if (i < rows_here) {
        if constexpr (VECTOR == 8) st8(q, Vec8{{code[i][0], code[i][1]}}, policy);
        else st4(q, code[i][0]);
      }
      q += p.ldq;
    }
    if (p.qt) {
      bar_sync(BAR_GROUP + group, GROUP_THREADS);  // the slot has been read
      tile_put<VECTOR>((u8 *)from, code, thread / 16);
      bar_sync(BAR_GROUP + group, GROUP_THREADS);
      tile_store_transposed<VECTOR>((u8 *)from, p.qt, p.ldqt, at.row0 - at.row, at.col0 - at.col, p.rows, p.cols, policy, TILE, thread, GROUP_THREADS, HELD_WIDTH);
    }
  }
}
#endif

// Rows of cast_any whose loads are under way together.
#define FLIGHT 4
#define W ((int)sizeof(In))

// Warp w takes sixteen rows from 16w on, a lane four columns.
extern "C" __global__ void __launch_bounds__(TILE_THREADS, 5 - DBIAS) cast_any(const __grid_constant__ CastParams p) {
  after_previous();
  if (p.skip && *p.skip) return;
  __shared__ Vec16 shared[TILE * TILE / 16];
  __shared__ u32 part[TILE_THREADS / 32];
  u8 *tile = (u8 *)shared;
  const u32 index = tile_index(p, blockIdx.x, gridDim.x), height = blockDim.x / 2, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 row0 = (i64)(index / p.col_tiles) * height, col0 = (i64)(index % p.col_tiles) * TILE, col = col0 + 4 * lane;
  const float scale = scale_of<OUT>(p, blockIdx.x);
  u32 amax = 0;
#if DBIAS
  float sum[4] = {};
#endif
#pragma unroll 1
  for (u32 r = 16 * warp; r < 16 * warp + 16; r += FLIGHT) {
    i64 row = row0 + r;
    if (row >= p.rows) break;
    // Rows of a matrix; a row of 128 that a contiguous tensor was cut into is as good.
    const bool inner = row > 0 && row + FLIGHT < p.rows && col0 + TILE <= p.cols;
    Quad<W> raw[FLIGHT];
    const u8 *from = (const u8 *)(p.x + row * p.ldx + col);
    u8 *to = p.q + row * p.ldq + col;
    u32 n[FLIGHT], code[FLIGHT];
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) n[i] = 4;
    if (inner) {
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) raw[i].load(true, from + i * p.ldx * W, 4);
    } else {
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) {
        n[i] = row + i >= p.rows ? 0 : quad_size(row + i == p.rows - 1 ? p.last : p.cols, col);
        raw[i].load(false, from + i * p.ldx * W, n[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) {
      u32 w[W];
      float v[4];
      raw[i].get(w, inner, from + i * p.ldx * W);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        if (W == 4) v[j] = float_of(w[j % W]);
        else if (j % 2 == 0) unpack2<IN>(w[j / 2], v[j], v[j + 1]);
      }
#pragma unroll
      for (int j = 0; j < 4; j++) {
        amax = umax(amax, abs_bits(v[j]));
#if DBIAS
        sum[j] += v[j];
#endif
      }
      code[i] = f32x4_to_fp8x4<OUT>(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
    }
    if (p.q) {
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) {
        u32 word[1] = {code[i]};
        quad_put<1>(inner, to + i * p.ldq, word, n[i]);
      }
    }
    if (p.qt) {
      transpose4(code[0], code[1], code[2], code[3]);
#pragma unroll
      for (u32 j = 0; j < 4; j++)
        *(u32 *)(tile + (4 * lane + j) * TILE + ((r / 8) ^ tile_key<4>(4 * lane)) * 8 + (r & 4)) = code[j];
    }
  }
#if DBIAS
  {
    __shared__ float sums[TILE_THREADS / 32][TILE];
#pragma unroll
    for (u32 j = 0; j < 4; j++) sums[warp][4 * lane + j] = sum[j];
    __syncthreads();
    i64 c = col0 + threadIdx.x;
    if (threadIdx.x < TILE && c < p.cols) {
      float total = 0.0f;
#pragma unroll
      for (u32 w = 0; w < TILE_THREADS / 32; w++) total += sums[w][threadIdx.x];
      leave_sum(p, row0 / TILE, c, total);
    }
  }
#endif
  bool record = records_amax(p);
  if (record) leave_amax(part, amax);
  __syncthreads();
  if (record) finish_amax(p, part);
  if (p.qt) tile_store_transposed<4>(tile, p.qt, p.ldqt, row0, col0, p.rows, p.cols, false, height);
}
