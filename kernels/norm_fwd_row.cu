// LayerNorm (RMS = 0) and RMSNorm (RMS = 1) forward where everything is aligned for vectors and a row fits the registers of a block:
// y = (x - mean) * rsigma * weight + beta, of x or, with a residual, of x + residual, which is written too. Tensors and statistics:
// common/norm_fwd.cuh; the row: common/norm_row.cuh.
//
// One warp per row and four rows per block, or one block of `warps` warps per row. What is under way comes from many blocks a
// multiprocessor, whose barriers hide behind the loads of others; a block has no second row, whose loop would cost registers and so blocks.
// At the rate of memory, a warp has about 900 instructions' time for 32 columns a lane, bf16 to bf16; LayerNorm takes about 600.
//
// Bytes moved per element: sizeof(X) + sizeof(y); 2 sizeof(X) more with a residual.
#include "common/norm_row.cuh"

// f(Type<dt>()) for a type of y.
template <class F> DEVICE void with_output(int dt, F f) {
  if constexpr (FP8) {
    if (dt == DT_E4M3) f(Type<DT_E4M3>());
    else f(Type<DT_E5M2>());
  } else {
    if (dt == X) f(Type<X>());
    else if (dt == DT_F32) f(Type<DT_F32>());
    else if (dt == DT_BF16) f(Type<DT_BF16>());
    else f(Type<DT_F16>());
  }
}

// hidden is a multiple of N, at most SLOTS * N * 32 * warps; everything is aligned for vectors. Four warps a block where `warps` is 1.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS) norm_fwd_row(const Args a) {
  after_previous();
  alignas(16) __shared__ float parts[3][32];
  const bool alone = a.warps == 1;  // no barrier is met
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const Share own = share_of(a, alone ? 0 : warp);
  const i64 row = alone ? (i64)blockIdx.x * (blockDim.x >> 5) + warp : blockIdx.x;
  put_scale_inv(a);
  if (row >= a.rows) return;
  Vec16 raw[SLOTS];
  load_row<X == DT_F32 || !KEEP && FP8 ? 2 : KEEP ? SLOTS : 4>(a, row, own, raw);
  // With x, so that nobody waits for them at the end; where registers are short, the second one anew then.
  const float scale = FP8 && a.scale ? *a.scale : 1.0f;
  const u32 early = KEEP ? read_amax(a) : 0;
  // Parts of warps that are not there; the first barrier of a sum stands between this and whoever reads them.
  if (threadIdx.x >= a.warps && threadIdx.x < 32) {
#pragma unroll
    for (int k = 0; k < 3; ++k) parts[k][threadIdx.x] = 0.0f;
  }
  float v[KEEP ? SLOTS : 1][N];
  const Stats s = row_stats(a, own, raw, v, &parts[0][warp], &parts[1 + ((lane & 16) >> 4)][warp], parts[0], parts[1], parts[2],
                            [] { __syncthreads(); });
  if (lane == 0 && (alone || warp == 0)) put_stats(a, row, s);
  u8 *y = a.y + (row * a.ldy + own.at * N) * element_size(a.y_dt);
  const u64 past = store_policy(!a.again && beyond_cache(a.rows, a.hidden, element_size(a.y_dt)));
  float amax = 0.0f;
  finish_row(a, own, s, raw, v, [&](int i, const float (&w)[N]) {
    if (FP8) {
#pragma unroll
      for (int k = 0; k < N; ++k) amax = max_nan(amax, w[k]);
    }
    with_output(a.y_dt, [&](auto type) { store_vector<decltype(type)::value>(y, i * 32 * N, w, scale, past); });
  });
  put_warp_amax(a, amax, KEEP ? early : read_amax(a));
}
