// AdamW over any number of tensors in one launch (NUMERICS section 8), optionally with FP8 copies of the new weights.
//
// Per element: gradient read; weight, or f32 master, read and written (beside a master the weight is only written); two moments read and
// written. Types are those of each tensor, known at run time: blocks do not mix tensors, so no warp diverges. Bytes moved per element:
// 28 with bf16 weights and gradients and f32 master and moments, 28 with everything f32; each FP8 layout adds 1.
//   flat  a block of 256 threads per 4096 elements of a tensor's memory. Every thread first asks for two groups of four elements of all
//         streams (f32: 16 bytes each), then computes: 112 bytes per thread, 112 KiB per multiprocessor in flight.
//   tile  (TILES) a block per 128 x 128 elements of a tensor with FP8 codes: row by row as above, codes by way of shared memory as in
//         cast.cu. The codes are those of the weight as written, so that they equal a cast of it.
// Tensors that are not aligned to four elements take the same way with single elements, neighbouring lanes side by side.
//
// All arithmetic is single IEEE operations (no fused ones), the same as on the CPU: bits are equal everywhere. Dividing and taking roots
// exactly costs about 40 instructions per element, of which the memory leaves room for 200.
//
// What all elements share follows from the step counter: thread 0 of each block works it out while the other warps' loads are under
// way, and then takes a number. Whoever has the last one knows that every block has read the old count, and writes the new one when it
// ends. Nothing else is passed between blocks, so that no fence is needed, and the number is long there when it is looked at.
#include "common/list.cuh"

#define CHUNK 4096

// Mirrored by AdamwEntry in src/ops/adamw.rs.
struct AdamwEntry {
  u32 first, blocks;
  void *weight;
  float *master;           // or null
  void *exp_avg, *exp_avg_sq;
  u8 *q, *qt;              // FP8 codes, or null
  const float *scale;
  float *scale_inv, *amax;
  i64 rows, cols;          // flat: one row
  i64 ldq, ldqt;
  u32 types;               // of weight, gradient, moments and codes, four bits each; bit 16: tiles
  u32 col_tiles;
  u64 pad;
};

// Mirrored by `Params` in src/backend/cuda/adamw.rs.
struct AdamwParams {
  const AdamwEntry *entries;
  const void *const *gradients;
  const u32 *map;
  u32 *counter;
  float *step;             // steps taken
  const float *lr_ptr;     // or null: lr
  const float *found_inf, *grad_scale, *clip;
  double lr, beta1, beta2, weight_decay;
  float b1, b1_rest, b2, b2_rest, eps;
  u32 blocks;
  u32 decoupled, bias_correction;
};

// What all elements share.
struct Step {
  float size;    // lr / (1 - beta1^t)
  float root;    // 1 / sqrt(1 - beta2^t)
  float decay;   // lr * weight_decay; L2: weight_decay
  float factor;  // of gradients
};

// beta^n by squaring, the same multiplications as on the CPU.
DEVICE double power(double beta, u32 n) {
  double r = 1.0;
#pragma unroll 1
  for (; n; n >>= 1) {
    if (n & 1) r = __dmul_rn(r, beta);
    beta = __dmul_rn(beta, beta);
  }
  return r;
}

DEVICE Step make_step(const AdamwParams &p) {
  float taken = *p.step, clip = p.clip ? *p.clip : 1.0f, scale = p.grad_scale ? *p.grad_scale : 1.0f;
  double lr = p.lr_ptr ? (double)*p.lr_ptr : p.lr;
  double bias1 = 1.0, bias2 = 1.0;
  if (p.bias_correction) {
    u32 n = __float2uint_rz(taken);
    n = (n > 0x7FFFFFFFu ? 0x7FFFFFFFu : n) + 1;
    bias1 = __dadd_rn(1.0, -power(p.beta1, n));
    bias2 = __dadd_rn(1.0, -power(p.beta2, n));
  }
  Step s;
  s.size = __double2float_rn(__ddiv_rn(lr, bias1));
  s.root = __double2float_rn(__ddiv_rn(1.0, __dsqrt_rn(bias2)));
  s.decay = __double2float_rn(p.decoupled ? __dmul_rn(lr, p.weight_decay) : p.weight_decay);
  s.factor = __fmul_rn(clip, reciprocal(scale));
  return s;
}

DEVICE void update(const AdamwParams &p, const Step &s, float &w, float g, float &m, float &v) {
  g = __fmul_rn(g, s.factor);
  float decayed = __fmul_rn(s.decay, w);
  if (!p.decoupled) g = __fadd_rn(g, decayed);
  m = __fadd_rn(__fmul_rn(p.b1, m), __fmul_rn(p.b1_rest, g));
  v = __fadd_rn(__fmul_rn(p.b2, v), __fmul_rn(__fmul_rn(p.b2_rest, g), g));
  float bound = __fadd_rn(__fmul_rn(__fsqrt_rn(v), s.root), p.eps);
  float change = __fmul_rn(s.size, __fdiv_rn(m, bound));
  if (p.decoupled) change = __fadd_rn(change, decayed);
  w = __fsub_rn(w, change);
}

// A tensor, as the block's threads hold it.
struct Tensor {
  void *weight;
  float *master;
  void *exp_avg, *exp_avg_sq;
  const void *gradient;
  u32 weight_type, gradient_type, moment_type;

  DEVICE Tensor(const AdamwEntry &e, const void *g)
      : weight(e.weight), master(e.master), exp_avg(e.exp_avg), exp_avg_sq(e.exp_avg_sq), gradient(g), weight_type(e.types & 15),
        gradient_type(e.types >> 4 & 15), moment_type(e.types >> 8 & 15) {}

  DEVICE bool vectors() const {
    return vector_base(weight_type, weight) && vector_base(DT_F32, master) && vector_base(moment_type, exp_avg) &&
           vector_base(moment_type, exp_avg_sq) && vector_base(gradient_type, gradient);
  }
  // Where the weights are read from.
  DEVICE const void *source() const { return master ? (const void *)master : weight; }
  DEVICE u32 source_type() const { return master ? (u32)DT_F32 : weight_type; }
};

// Four elements of all streams, under way.
struct Group {
  Raw w, g, m, v;
};

template <bool VEC, int STEP> DEVICE Group ask(const Tensor &t, i64 at, u32 n) {
  Group x;
  x.w = load4<VEC, STEP>(t.source_type(), t.source(), at, n);
  x.g = load4<VEC, STEP>(t.gradient_type, t.gradient, at, n);
  x.m = load4<VEC, STEP>(t.moment_type, t.exp_avg, at, n);
  x.v = load4<VEC, STEP>(t.moment_type, t.exp_avg_sq, at, n);
  return x;
}

// Updates and writes them; returns the new weights as they lie in memory.
template <bool VEC, int STEP> DEVICE Raw answer(const AdamwParams &p, const Step &s, const Tensor &t, const Group &x, i64 at, u32 n) {
  float w[4], g[4], m[4], v[4];
  unpack4<VEC>(t.source_type(), x.w, w);
  unpack4<VEC>(t.gradient_type, x.g, g);
  unpack4<VEC>(t.moment_type, x.m, m);
  unpack4<VEC>(t.moment_type, x.v, v);
#pragma unroll
  for (int j = 0; j < 4; j++) update(p, s, w[j], g[j], m[j], v[j]);
  store4<VEC, STEP>(t.moment_type, t.exp_avg, at, n, pack4<VEC>(t.moment_type, m));
  store4<VEC, STEP>(t.moment_type, t.exp_avg_sq, at, n, pack4<VEC>(t.moment_type, v));
  if (t.master) store4<VEC, STEP>(DT_F32, t.master, at, n, pack4<VEC>(DT_F32, w));
  Raw written = pack4<VEC>(t.weight_type, w);
  store4<VEC, STEP>(t.weight_type, t.weight, at, n, written);
  return written;
}

// Block `block` of a tensor's memory. Holds a barrier, behind which `step` is there.
template <bool VEC> DEVICE void flat(const AdamwParams &p, const Tensor &t, i64 count, u32 block, const Step &step) {
  const int STEP = VEC ? 1 : LIST_THREADS, APART = 4 * LIST_THREADS;
  i64 begin = (i64)block * CHUNK, at = begin + (VEC ? 4 : 1) * threadIdx.x;
  Group x[2];
  u32 n[2];
#pragma unroll 1
  for (u32 i = 0; i < CHUNK / (2 * APART); i++, at += 2 * APART) {
    if (begin + 2 * APART * i >= count) break;
#pragma unroll
    for (int k = 0; k < 2; k++) {
      i64 left = count - (at + k * APART);
      if (VEC) n[k] = left >= 4 ? 4 : 0;
      else n[k] = left <= 0 ? 0 : (u32)imin(4, (left + LIST_THREADS - 1) / LIST_THREADS);
      x[k] = ask<VEC, STEP>(t, at + k * APART, n[k]);
    }
    if (i == 0) __syncthreads();
#pragma unroll
    for (int k = 0; k < 2; k++) answer<VEC, STEP>(p, step, t, x[k], at + k * APART, n[k]);
  }
  // What is left behind the last vector.
  u32 rest = VEC ? (u32)(count & 3) : 0;
  if (VEC && count - begin <= CHUNK && threadIdx.x < rest) {
    i64 last = count - rest + threadIdx.x;
    answer<false, 1>(p, step, t, ask<false, 1>(t, last, 1), last, 1);
  }
}

#if TILES
DEVICE float weight_value(u32 type, bool vec, const Raw &raw, int j) {
  if (type == DT_F32) return float_of(raw.w[j]);
  u32 bits = !vec ? raw.w[j] : j & 1 ? raw.w[j >> 1] >> 16 : raw.w[j >> 1] & 0xFFFFu;
  return from_bits16(type, bits);
}

// Where the code of row r, column c lies in the transposed tile.
DEVICE u32 code_at(u32 c, u32 r) { return c * TILE + ((r >> 3) ^ tile_key<4>(c)) * 8 + (r & 7); }

// Block `block` of a tensor with FP8 codes. Holds barriers, behind the first of which `step` is there.
template <bool VEC> DEVICE void tile(const AdamwParams &p, const AdamwEntry &e, const Tensor &t, u32 block, const Step &step, u8 *codes, u32 *part) {
  const i64 rows = e.rows, cols = e.cols, ldq = e.ldq, ldqt = e.ldqt;
  u8 *q = e.q, *qt = e.qt;
  const bool e5m2 = (e.types >> 12 & 15) == DT_E5M2, words = ((u64)q & 3) == 0 && (ldq & 3) == 0;
  i64 row0 = (i64)(block / e.col_tiles) * TILE, col0 = (i64)(block % e.col_tiles) * TILE;
  float scale = e.scale ? *e.scale : 1.0f;
  if (block == 0 && threadIdx.x == 0 && e.scale_inv) *e.scale_inv = reciprocal(scale);
  u32 amax = 0, n[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    i64 left = cols - (col0 + tile_col<4>(h));
    n[h] = left <= 0 ? 0 : left >= 4 ? 4 : (u32)left;
  }
  // Codes go into the transposed tile of tile.cuh one by one. Neighbouring row groups begin with opposite halves of their rows: then the
  // lanes of a warp touch every bank once.
#pragma unroll 1
  for (u32 i = 0; i < 8; i++) {
    u32 r = tile_row() + (i + 4 * (threadIdx.x >> 4 & 1) & 7);
    i64 row = row0 + r;
    Group x[2];
    u32 here[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      here[h] = row < rows ? n[h] : 0;
      x[h] = ask<VEC, 1>(t, row * cols + col0 + tile_col<4>(h), here[h]);
    }
    if (i == 0) __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32 c0 = tile_col<4>(h);
      Raw written = answer<VEC, 1>(p, step, t, x[h], row * cols + col0 + c0, here[h]);
      float v[4];
#pragma unroll
      for (u32 j = 0; j < 4; j++) {
        v[j] = j < here[h] ? weight_value(t.weight_type, VEC, written, j) : 0.0f;
        amax = umax(amax, abs_bits(v[j]));
      }
      u32 code = e5m2 ? f32x4_to_fp8x4<DT_E5M2>(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale)
                      : f32x4_to_fp8x4<DT_E4M3>(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
      if (q && here[h]) {
        u8 *to = q + row * ldq + col0 + c0;
        if (words && here[h] == 4) {
          st4(to, code);
        } else {
#pragma unroll
          for (u32 j = 0; j < 4; j++)
            if (j < here[h]) to[j] = (u8)(code >> 8 * j);
        }
      }
      if (qt) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) codes[code_at(c0 + j, r)] = (u8)(code >> 8 * j);
      }
    }
  }
  amax = warp_max(amax);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = amax;
  __syncthreads();
  if (e.amax && threadIdx.x < 32) {
    amax = warp_max(threadIdx.x < LIST_THREADS / 32 ? part[threadIdx.x] : 0u);
    if (threadIdx.x == 0 && amax) record_amax(e.amax, amax);
  }
  if (qt) tile_store_transposed<4>(codes, qt, ldqt, row0, col0, rows, cols);
}
#endif

// What fits the registers without spilling; the compilers for 10.x and 12.x want a few more.
#define BLOCKS_PER_PROCESSOR (TILES || __CUDA_ARCH__ >= 1000 ? 2 : 4)

extern "C" __global__ void __launch_bounds__(LIST_THREADS, BLOCKS_PER_PROCESSOR) adamw(const __grid_constant__ AdamwParams p) {
  after_previous();
  if (p.found_inf && *p.found_inf != 0.0f) return;
  __shared__ Step step;
#if TILES
  __shared__ Vec16 codes[TILE * TILE / 16];
  __shared__ u32 part[LIST_THREADS / 32];
#endif
  u32 number = 0;
  if (threadIdx.x == 0) {
    step = make_step(p);
    number = atomicAdd(p.counter, 1u);
  }
  // A launch for a list with no blocks only counts the step.
  if (blockIdx.x < p.blocks) {
    u32 index = p.map[blockIdx.x];
    const AdamwEntry &e = p.entries[index];
    const Tensor t(e, p.gradients[index]);
    u32 block = blockIdx.x - e.first;
#if TILES
    if (e.types >> 16 & 1) {
      if ((e.cols & 3) == 0 && t.vectors()) tile<true>(p, e, t, block, step, (u8 *)codes, part);
      else tile<false>(p, e, t, block, step, (u8 *)codes, part);
    } else
#endif
    if (t.vectors()) flat<true>(p, t, e.cols, block, step);
    else flat<false>(p, t, e.cols, block, step);
  }
  if (threadIdx.x == 0 && number == gridDim.x - 1) {
    *p.counter = 0;
    *p.step = __fadd_rn(*p.step, 1.0f);
  }
}
