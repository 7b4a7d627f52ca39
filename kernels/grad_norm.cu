// The L2 norm of any number of gradients as one vector, and their multiplication by a factor.
//
//   grad_norm   a grid that fills the device walks over the list's blocks of 16 KiB; every thread has four 16-byte loads under way (2048
//               threads, 128 KiB per multiprocessor). Bytes moved: each gradient once. Two stages: f32 sums per thread, f64 from there on;
//               the last block to end adds the blocks' sums in a fixed order. The same list gives the same bits on the same device.
//   grad_scale  a block per 16 KiB, read and written. Where the factor is 1 nothing is touched.
//
// No square leaves the range of f32: a thread looks at the largest of the 16 or 32 values it has loaded and adds their squares to one of
// three sums, as they are, or times 2^96, or times 2^-96. What is small beside the largest adds nothing that could be seen.
//
// A gradient begins anywhere its element type may: the elements before the first multiple of 16 bytes and behind the last are taken
// one by one, by the first block of the tensor.
#include "common/list.cuh"

#define VECTORS 4                                // per thread
#define CHUNK_VECTORS (LIST_THREADS * VECTORS)   // 16 KiB

// Mirrored by GradEntry in src/ops/grad_norm.rs.
struct GradEntry {
  u32 first, blocks;
  i64 count;
  u32 type, pad[3];
};

// A gradient as vectors of 16 bytes, with single elements before and behind.
struct Stretch {
  char *vectors;
  i64 count;         // of vectors
  char *head, *tail;
  u32 heads, tails;  // elements

  DEVICE Stretch(char *p, i64 elements, u32 size) {
    u32 to_go = (u32)(-(i64)p & 15) / size, per = 16 / size;
    heads = (u32)imin(to_go, elements);
    head = p;
    vectors = p + heads * size;
    count = (elements - heads) / per;
    tail = vectors + count * 16;
    tails = (u32)(elements - heads - count * per);
  }
  // The thread's single element, if it has one: heads, then tails, by the first threads of the first block.
  DEVICE char *single(u32 size) const {
    u32 i = threadIdx.x;
    return i < heads ? head + i * size : i < heads + tails ? tail + (i - heads) * size : 0;
  }
};

DEVICE float load1(u32 type, const char *p) {
  return type == DT_F32 ? *(const float *)p : from_bits16(type, *(const u16 *)p);
}

struct GradNormParams {
  const GradEntry *entries;
  char *const *gradients;
  const u32 *map;
  double *partials;
  u32 *counter;
  const float *grad_scale;       // or null
  float *norm, *clip, *found_inf; // the last two: or null
  double max_norm;
  u32 blocks, pad;
};

DEVICE float max_nan(float a, float b) { float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }

#define BIG 281474976710656.0f        // 2^48
#define SMALL 3.552713678800501e-15f  // 2^-48
#define UP 7.922816251426434e28f      // 2^96
#define DOWN 1.262177448353619e-29f   // 2^-96

// Sums of squares: of values as they are, times 2^96, times 2^-96.
struct Sums {
  float plain[4], up, down;

  template <int N> DEVICE void add(const float (&v)[N]) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) most = max_nan(most, fabsf(v[i]));
    if (most >= SMALL && most < BIG) {
#pragma unroll
      for (int i = 0; i < N; i++) plain[i & 3] = __fmaf_rn(v[i], v[i], plain[i & 3]);
    } else if (most != 0.0f) {
      // NaN comes here too, and goes with the large ones.
      bool low = most < SMALL;
      float factor = low ? UP : DOWN, sum = 0.0f;
#pragma unroll
      for (int i = 0; i < N; i++) {
        float t = v[i] * factor;
        sum = __fmaf_rn(t, t, sum);
      }
      if (low) up += sum;
      else down += sum;
    }
  }
  DEVICE double total() const {
    double p = ((double)plain[0] + (double)plain[1]) + ((double)plain[2] + (double)plain[3]);
    return p + ((double)up * 1.5930919111324523e-58 + (double)down * 6.277101735386681e57);  // 2^-192, 2^192
  }
};

template <int DT> DEVICE void add_vectors(Sums &s, const Stretch &t, i64 at) {
  const int V = 16 / (int)sizeof(typename Elem<DT>::T);
  Vec16 raw[VECTORS];
#pragma unroll
  for (int k = 0; k < VECTORS; k++) {
    i64 i = at + k * LIST_THREADS;
    raw[k] = Vec16{{0, 0, 0, 0}};
    if (i < t.count) raw[k] = ld16_stream(t.vectors + 16 * i);
  }
  // Half of them at a time: fewer registers.
#pragma unroll
  for (int k = 0; k < VECTORS; k += 2) {
    float v[2 * V];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int w = 0; w < 4; w++) {
        if (DT == DT_F32) v[h * V + w] = float_of(raw[k + h].w[w]);
        else unpack2<DT>(raw[k + h].w[w], v[h * V + 2 * w], v[h * V + (DT == DT_F32 ? 0 : 2 * w + 1)]);
      }
    s.add(v);
  }
}

// Adds over the block, in a fixed order; thread 0 gets the sum. Holds barriers.
DEVICE double block_sum(double v) {
  __shared__ double part[LIST_THREADS / 32];
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xFFFFFFFFu, v, o);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll
    for (int w = 1; w < LIST_THREADS / 32; w++) v += part[w];
  }
  __syncthreads();
  return v;
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS, 6) grad_norm(const __grid_constant__ GradNormParams p) {
  after_previous();
  Sums s = {};
  // Whose the next block is, is asked for ahead.
  u32 next = blockIdx.x < p.blocks ? p.map[blockIdx.x] : 0;
#pragma unroll 1
  for (u32 b = blockIdx.x; b < p.blocks; b += gridDim.x) {
    u32 index = next;
    if (p.blocks - b > gridDim.x) next = p.map[b + gridDim.x];
    const GradEntry &e = p.entries[index];
    u32 type = e.type, size = type_bytes(type), block = b - e.first;
    const Stretch t(p.gradients[index], e.count, size);
    if (block == 0) {
      const char *one = t.single(size);
      float v[1] = {one ? load1(type, one) : 0.0f};
      s.add(v);
    }
    i64 at = (i64)block * CHUNK_VECTORS + threadIdx.x;
    if (type == DT_F32) add_vectors<DT_F32>(s, t, at);
    else if (type == DT_BF16) add_vectors<DT_BF16>(s, t, at);
    else add_vectors<DT_F16>(s, t, at);
  }
  double sum = block_sum(s.total());
  __shared__ bool last;
  if (threadIdx.x == 0) {
    p.partials[blockIdx.x] = sum;
    last = last_block(p.counter);
  }
  __syncthreads();
  if (!last) return;
  sum = 0.0;
  for (u32 i = threadIdx.x; i < gridDim.x; i += LIST_THREADS) sum += ((volatile double *)p.partials)[i];
  sum = block_sum(sum);
  if (threadIdx.x) return;
  double norm = __ddiv_rn(__dsqrt_rn(sum), p.grad_scale ? (double)*p.grad_scale : 1.0);
  double clip = __ddiv_rn(p.max_norm, norm + 1e-6);
  *p.norm = __double2float_rn(norm);
  if (p.clip) *p.clip = clip > 1.0 ? 1.0f : __double2float_rn(clip);
  // Finite values have a finite sum of squares in f64.
  if (p.found_inf) *p.found_inf = sum <= 1.7976931348623157e308 ? 0.0f : 1.0f;
}

struct GradScaleParams {
  const GradEntry *entries;
  char *const *gradients;
  const u32 *map;
  const float *factor;
};

template <int DT> DEVICE void scale_vectors(float factor, const Stretch &t, i64 at) {
  Raw raw[VECTORS];
#pragma unroll
  for (int k = 0; k < VECTORS; k++) {
    i64 i = at + k * LIST_THREADS;
    if (i < t.count) raw[k] = ld16_once(t.vectors + 16 * i);
  }
#pragma unroll
  for (int k = 0; k < VECTORS; k++) {
    i64 i = at + k * LIST_THREADS;
    if (i >= t.count) continue;
    Vec16 out;
#pragma unroll
    for (int w = 0; w < 4; w++) {
      if (DT == DT_F32) {
        out.w[w] = bits_of(__fmul_rn(float_of(raw[k].w[w]), factor));
      } else {
        float lo, hi;
        unpack2<DT>(raw[k].w[w], lo, hi);
        out.w[w] = pack2<DT>(__fmul_rn(lo, factor), __fmul_rn(hi, factor));
      }
    }
    st16(t.vectors + 16 * i, out);
  }
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS) grad_scale(const __grid_constant__ GradScaleParams p) {
  after_previous();
  float factor = *p.factor;
  if (factor == 1.0f) return;
  u32 index = p.map[blockIdx.x];
  const GradEntry &e = p.entries[index];
  u32 type = e.type, size = type_bytes(type), block = blockIdx.x - e.first;
  const Stretch t(p.gradients[index], e.count, size);
  i64 at = (i64)block * CHUNK_VECTORS + threadIdx.x;
  if (type == DT_F32) scale_vectors<DT_F32>(factor, t, at);
  else if (type == DT_BF16) scale_vectors<DT_BF16>(factor, t, at);
  else scale_vectors<DT_F16>(factor, t, at);
  char *one = block == 0 ? t.single(size) : 0;
  if (!one) return;
  float v = __fmul_rn(load1(type, one), factor);
  if (type == DT_F32) *(float *)one = v;
  else *(u16 *)one = type == DT_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
}
