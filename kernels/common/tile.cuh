// A 128 x 128 tile of a matrix shared out over 256 threads, and its transpose by way of shared memory.
//
// Thread t owns rows 8g .. 8g+7 of the tile, g = t / 16, and eight of its columns. How the columns lie depends on V, the elements that
// one load takes from a row: V = 8 (16-bit types and FP8 codes): columns 8l .. 8l+7, l = t % 16; V = 4 (f32): 4l .. 4l+3 and
// 64+4l .. 64+4l+3. Either way sixteen lanes read 256 (FP8: 128) consecutive bytes, and codes are made in words of four columns.
//
// The transposed tile lies in 16 KiB of shared memory: column c at byte 128c, its rows in sixteen chunks of eight bytes, chunk k at
// position k ^ key(c). With that, the eight-byte writes of a half warp (one k, sixteen keys) and the sixteen-byte reads of a quarter
// warp (one column) touch every bank once.
#pragma once
#include "common/quads.cuh"

#define TILE 128
#define TILE_THREADS 256

// ---------------------------------------------------------------- access
DEVICE Vec8 ld8_policy(const void *p, u64 policy) { Vec8 v; asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%0,%1}, [%2], %3;" : "=r"(v.w[0]), "=r"(v.w[1]) : "l"(p), "l"(policy)); return v; }
DEVICE Vec8 ld8_stream(const void *p) { return ld8_policy(p, NORMAL_LINES); }
DEVICE u32 ld4_stream(const void *p) { u32 v; asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(v) : "l"(p), "l"(NORMAL_LINES)); return v; }
DEVICE void st4(void *p, u32 v) { asm volatile("st.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }

// ---------------------------------------------------------------- amax
// The largest |x| of the vectors that were given, as bits. Types of 16 bits: of each half, with a sign that means nothing.
template <int DT> struct Largest {
  u32 v = 0;
  DEVICE void take(const Vec16 &x) {
#pragma unroll
    for (int w = 0; w < 4; w++) {
      if (DT == DT_F32) v = umax(v, x.w[w] & 0x7FFFFFFFu);
#if __CUDA_ARCH__ >= 860
      if (DT == DT_F16) asm("max.NaN.xorsign.abs.f16x2 %0, %0, %1;" : "+r"(v) : "r"(x.w[w]));
      if (DT == DT_BF16) asm("max.NaN.xorsign.abs.bf16x2 %0, %0, %1;" : "+r"(v) : "r"(x.w[w]));
#else
      if (DT == DT_F16) asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(v) : "r"(x.w[w] & 0x7FFF7FFFu));
      if (DT == DT_BF16) asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(v) : "r"(x.w[w] & 0x7FFF7FFFu));
#endif
    }
  }
  DEVICE u32 bits() const {
    if (DT == DT_F32) return v;
    float low, high;
    unpack2<DT>(v, low, high);
    return umax(abs_bits(low), abs_bits(high));
  }
};

// ---------------------------------------------------------------- which elements are whose
// Elements per load.
template <int DT> struct TileVec { static const int V = sizeof(typename Elem<DT>::T) == 4 ? 4 : 8; };
// First of the thread's eight rows.
DEVICE u32 tile_row() { return (threadIdx.x >> 4) * 8; }
// First column of the thread's word h (0 or 1) of four columns; with V = 8 the load starts at word 0.
template <int V> DEVICE u32 tile_col(u32 h) {
  u32 l = threadIdx.x & 15;
  return V == 8 ? 8 * l + 4 * h : 64 * h + 4 * l;
}

// ---------------------------------------------------------------- what will be read
// Asks L2 for a tile: `rows` rows of `bytes`, at most WIDTH, each; a thread asks for a line of 128 bytes at a time.
//
// The first blocks of a kernel do that for their own tiles ahead of after_previous, which keeps memory busy from one kernel to the next. Nothing is
// read by it, and what the kernel before still writes, it writes in L2. Later each block does it for the tile 4 MB after its own: every block
// reads first and writes then, and with some reads ahead of their blocks memory always has both to do. At 16 MB, much has left L2 before it is read.
template <u32 WIDTH> DEVICE void ask_for_tile(const void *x, i64 row_bytes, u32 rows, u32 bytes) {
#if __CUDA_ARCH__ == 900
  const u32 lines = WIDTH / 128;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < rows * lines; i += blockDim.x) {
    const u32 at = i % lines * 128;
    if (at < bytes) ask_for_line((const u8 *)x + i / lines * row_bytes + at);
  }
#endif
}

// ---------------------------------------------------------------- transpose
// 4 x 4 bytes: word r holds row r; afterwards word c holds column c.
DEVICE void transpose4(u32 &a, u32 &b, u32 &c, u32 &d) {
  u32 p = __byte_perm(a, b, 0x5140), q = __byte_perm(a, b, 0x7362);
  u32 r = __byte_perm(c, d, 0x5140), s = __byte_perm(c, d, 0x7362);
  a = __byte_perm(p, r, 0x5410);
  b = __byte_perm(p, r, 0x7632);
  c = __byte_perm(q, s, 0x5410);
  d = __byte_perm(q, s, 0x7632);
}

template <int V> DEVICE u32 tile_key(u32 c) { return (c / V) & 15; }

// Puts the thread's codes, code[row][word] of the rows from 8 k on, into the transposed tile. One word: a tile of 16 V columns.
template <int V, int WORDS> DEVICE void tile_put(u8 *tile, const u32 (&code)[8][WORDS], u32 k = threadIdx.x >> 4) {
#pragma unroll
  for (u32 h = 0; h < WORDS; h++) {
    u32 lo[4], hi[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) lo[i] = code[i][h], hi[i] = code[i + 4][h];
    transpose4(lo[0], lo[1], lo[2], lo[3]);
    transpose4(hi[0], hi[1], hi[2], hi[3]);
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      u32 c = tile_col<V>(h) + j;
      Vec8 v;
      v.w[0] = lo[j], v.w[1] = hi[j];
      *(Vec8 *)(tile + c * TILE + (k ^ tile_key<V>(c)) * 8) = v;
    }
  }
}

// Puts four rows of the thread's codes into the transposed tile: rows 4 * half .. 4 * half + 3 of its eight, which begin at 8 k. Neighbouring
// row groups must write opposite halves at a time; then the four-byte writes of a warp touch every bank once.
template <int W> DEVICE void tile_put_half(u8 *tile, const u32 (&code)[4][2], u32 half, u32 k = threadIdx.x >> 4) {
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    u32 t[4] = {code[0][h], code[1][h], code[2][h], code[3][h]};
    transpose4(t[0], t[1], t[2], t[3]);
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      u32 c = tile_col<W>(h) + j;
      *(u32 *)(tile + c * TILE + (k ^ tile_key<W>(c)) * 8 + 4 * half) = t[j];
    }
  }
}

// Eight codes of column c: rows 8k .. 8k+7.
template <int V> DEVICE Vec8 tile_get8(const u8 *tile, u32 c, u32 k) { return *(const Vec8 *)(tile + c * TILE + (k ^ tile_key<V>(c)) * 8); }

// Sixteen codes of column c: rows 16k .. 16k+15.
template <int V> DEVICE Vec16 tile_get16(const u8 *tile, u32 c, u32 k) {
  u32 key = tile_key<V>(c);
  Vec16 v = *(const Vec16 *)(tile + c * TILE + (k ^ (key >> 1)) * 16);
  Vec16 swapped = {{v.w[2], v.w[3], v.w[0], v.w[1]}};
  return key & 1 ? swapped : v;
}

// Whether rows of codes begin at whole sectors. If not, neighbouring blocks each write a part of a sector, which had better not leave the
// cache in between.
DEVICE bool whole_sectors(const u8 *p, i64 ld) { return !p || (((u32)(u64)p | (u32)ld) & 31) == 0; }

// Writes the transposed tile, after a barrier: element (r, c) of the tile whose corner is (row0, col0) goes to out[(col0+c)*ld + row0+r].
// `height`: rows of the tile that are used, a power of two from 16 on; at least twice as many threads take part: this one is number `thread`
// of `threads`. Where `out` and `ld` are multiples of 16 a warp writes four segments of 128 bytes at a time, elsewhere one column.
template <int V, class Past = bool>
DEVICE void tile_store_transposed(const u8 *tile, u8 *out, i64 ld, i64 row0, i64 col0, i64 rows, i64 cols, Past past = Past(), u32 height = TILE,
                                  u32 thread = threadIdx.x, u32 threads = blockDim.x, u32 most = TILE) {
  const u32 width = (u32)imin(most, cols - col0), here = (u32)imin(height, rows - row0);
  out += col0 * ld + row0;
  if (((u32)(u64)out | (u32)ld) & 15) {
    // Four rows to a lane.
    const u32 lanes = height / 4, l = thread & (lanes - 1), columns = threads / lanes;
    u8 *to = out + (thread / lanes) * ld + 4 * l;
    auto word = [&](u32 c) { return *(const u32 *)(tile + c * TILE + ((l >> 1) ^ tile_key<V>(c)) * 8 + (l & 1) * 4); };
    if (here == TILE) {
#pragma unroll 4
      for (u32 c = thread / lanes; c < width; c += columns, to += columns * ld) {
        u32 own[1] = {word(c)};
        quad_put_whole<1>(to, own);
      }
    } else {
      const u32 n = quad_size(here, 4 * l), next = quad_size(here, 4 * l + 4);
#pragma unroll 2
      for (u32 i = 0; i < width; i += columns, to += columns * ld) {
        u32 c = i + thread / lanes, own[1] = {word(c)};
        bool exists = c < width;
        quad_put<1>(to, own, exists ? n : 0, exists ? next : 0, lanes);
      }
    }
    return;
  }
  u32 chunks = height / 16, k = thread & (chunks - 1), r = 16 * k;
  if (r >= here) return;
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    u32 c = (thread + i * threads) / chunks;
    if (c >= width) break;
    u8 *to = out + c * ld + r;
    if (r + 16 <= here) {
      st16(to, tile_get16<V>(tile, c, k), past);
    } else {
      u32 n = here - r, key = tile_key<V>(c);
#pragma unroll 1
      for (u32 b = 0; b < n; b++) to[b] = tile[c * TILE + ((2 * k + (b >> 3)) ^ key) * 8 + (b & 7)];
    }
  }
}

// ---------------------------------------------------------------- small tensors
// A pass over a small tensor is over when a block has run its code once, so that code is what it takes: tiles of 32 x 128, of which each of eight
// warps has four rows, a lane four columns. All addresses of loads are there before the wait for the kernel before. Columns are put together in
// shared memory: word w of column c (rows 4w .. 4w+3) lies at 8c + (w ^ key), with key = (c / 4) % 8, so that the reads of a warp touch every bank
// once.
#define LOW_ROWS 32
#define LOW_WORDS (TILE * LOW_ROWS / 4)

// The block's tile, and the thread's part of it.
struct LowTile {
  i64 row0, col0, row, col;
  u32 rows, here;  // of the warp's rows those that exist, and those in which the thread has its columns
  u32 width;       // columns of the tile
  DEVICE LowTile(i64 all_rows, i64 cols, u32 col_tiles) {
    const u32 down = blockIdx.x / col_tiles;
    row0 = (i64)down * LOW_ROWS, col0 = (i64)(blockIdx.x - down * col_tiles) * TILE;
    row = row0 + 4 * (threadIdx.x >> 5), col = col0 + 4 * (threadIdx.x & 31);
    rows = row < all_rows ? (u32)imin(4, all_rows - row) : 0;
    here = col < cols ? rows : 0;
    width = (u32)imin(TILE, cols - col0);
  }
  // Asks L2 for the warp's rows; x: the thread's first element.
  template <class T> DEVICE void ask(const T *x, i64 ld) const {
    const u32 lane = threadIdx.x & 31, lines = sizeof(T), r = lane / lines, at = lane % lines * (128 / (u32)sizeof(T));
    if (r < rows && at < width) ask_for_line(x + r * ld + at - 4 * lane);
  }
};

// Four elements of each of the thread's rows; zeros where there are none.
template <class T> DEVICE void low_load(const T *x, i64 ld, u32 here, u32 (&raw)[4][sizeof(T)]) {
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
#pragma unroll
    for (u32 w = 0; w < sizeof(T); w++) raw[i][w] = 0;
    if (i >= here) continue;
    if constexpr (sizeof(T) == 2) {
      const Vec8 v = ld8_stream(x + i * ld);
      raw[i][0] = v.w[0], raw[i][1] = v.w[1];
    } else {
      const Vec16 v = ld16_stream(x + i * ld);
#pragma unroll
      for (u32 w = 0; w < sizeof(T); w++) raw[i][w] = v.w[w];
    }
  }
}
template <int DT, int WORDS> DEVICE void low_unpack(const u32 (&raw)[WORDS], float (&v)[4]) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if constexpr (WORDS == 4) v[j] = float_of(raw[j]);
    else if (j % 2 == 0) unpack2<DT>(raw[j / 2], v[j], v[j + 1]);
  }
}

DEVICE void low_put(u32 *words, u32 (&code)[4]) {
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  transpose4(code[0], code[1], code[2], code[3]);
#pragma unroll
  for (u32 j = 0; j < 4; j++) words[(4 * lane + j) * (LOW_ROWS / 4) + (warp ^ (lane & 7))] = code[j];
}

// As tile_store_transposed; a thread has sixteen rows of a column. `rows`, `out` and `ld` are multiples of eight.
DEVICE void low_store(const u32 *words, u8 *out, i64 ld, i64 row0, i64 col0, i64 rows, i64 cols) {
  const u32 c = threadIdx.x / 2, k = threadIdx.x % 2;
  const i64 r = row0 + 16 * k;
  if (col0 + c >= cols || r >= rows) return;
  Vec16 v;
#pragma unroll
  for (u32 i = 0; i < 4; i++) v.w[i] = words[c * (LOW_ROWS / 4) + ((4 * k + i) ^ (c / 4 & 7))];
  u8 *to = out + (col0 + c) * ld + r;
  const bool whole = r + 16 <= rows;
  if (whole && (((u32)(u64)out | (u32)ld) & 15) == 0) {
    st16(to, v);
  } else {
    st8(to, Vec8{{v.w[0], v.w[1]}});
    if (whole) st8(to + 8, Vec8{{v.w[2], v.w[3]}});
  }
}

// ---------------------------------------------------------------- transpose to anywhere
// Where columns of the transposed layout begin at no multiple of 32, a tile writes what of each column lies in whole sectors: from up to 31
// rows above its own, its halo, which it reads as well, to as many above its end. Sectors that two tiles write a part of each cost more than that.
#define HALO_ROWS 32
#define HALO_BYTES ((4 * TILE + TILE / 4) * 8)  // of shared memory, behind the tile

// Where eight codes of column c lie: rows 8k .. 8k+7, those of the halo from k = -4 on.
template <int V> DEVICE u32 halo_at(u32 c, i32 k) {
  return k < 0 ? TILE * TILE + (4 * c + (c >> 2) + (u32)(k + 4)) * 8 : c * TILE + (((u32)k ^ tile_key<V>(c)) & 15) * 8;
}

// The halo is shared out differently: thread t has rows 4g - 32 .. 4g - 29, g = t / 32, of columns 4l .. 4l+3, l = t % 32.
DEVICE i32 halo_row() { return 4 * (i32)(threadIdx.x >> 5) - HALO_ROWS; }
DEVICE u32 halo_col() { return 4 * (threadIdx.x & 31); }
DEVICE void halo_put(u8 *tile, u32 (&code)[4]) {
  transpose4(code[0], code[1], code[2], code[3]);
  const u32 g = threadIdx.x >> 5;
  u8 *to = tile + halo_at<4>(halo_col(), (i32)(g >> 1) - 4) + (g & 1) * 4;
#pragma unroll
  for (u32 j = 0; j < 4; j++) *(u32 *)(to + 32 * j) = code[j];
}

// As tile_store_transposed, by a block of 256 threads, with the halo where there is one (row0 > 0). Eight lanes take a column.
template <int V, class Past> DEVICE void halo_store(const u8 *tile, u8 *out, i64 ld, i64 row0, i64 col0, i64 rows, i64 cols, Past past) {
  const u32 width = (u32)imin(TILE, cols - col0);
  const bool last = rows - row0 <= TILE;
  const i32 begin = row0 ? -HALO_ROWS : 0, end = last ? (i32)(rows - row0) : TILE;
  out += col0 * ld + row0;
  // The last tile of a column writes to the column's end.
#pragma unroll 1
  for (u32 j = threadIdx.x & 7; j < (last ? 16 : 8); j += 8) {
    u32 c = threadIdx.x >> 3;
    u8 *to = out + c * ld;
#pragma unroll 2
    for (u32 i = 0; i < 4; i++, c += 32, to += 32 * ld) {
      if (c >= width) break;
      const i32 r = (i32)(16 * j) - (i32)((u32)(u64)to & 31);
      if (r + 16 <= begin || r >= end) continue;
      u32 w[6];
#pragma unroll
      for (int h = 0; h < 3; h++) {
        const Vec8 v = *(const Vec8 *)(tile + halo_at<V>(c, (r >> 3) + h));
        w[2 * h] = v.w[0], w[2 * h + 1] = v.w[1];
      }
      if (r & 4) {
#pragma unroll
        for (int h = 0; h < 5; h++) w[h] = w[h + 1];
      }
      Vec16 v;
#pragma unroll
      for (int h = 0; h < 4; h++) v.w[h] = __funnelshift_r(w[h], w[h + 1], 8 * (r & 3));
      u8 *at = to + r;
      if (r >= begin && r + 16 <= end) {
        st16(at, v, past);
      } else {
#pragma unroll
        for (i32 b = 0; b < 16; b++)
          if (r + b >= begin && r + b < end) at[b] = (u8)(v.w[b / 4] >> 8 * (b & 3));
      }
    }
  }
}
