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

// Asks L2 for the rows of one of the first blocks. (With 64 columns a thread there is no register for it.)
DEVICE void ask_for_rows(const Args &a) {
#if KEEP && __CUDA_ARCH__ == 900
  if (blockIdx.x >= a.early || (threadIdx.x & 31)) return;
  const bool alone = a.warps == 1;
  const u32 warp = threadIdx.x >> 5, bytes = (u32)a.hidden * (u32)sizeof(TX);
  if (warp && !alone) return;
  const i64 row = alone ? (i64)blockIdx.x * (blockDim.x >> 5) + warp : blockIdx.x;
  ask_l2(a.x + row * a.ldx, bytes);
  if (a.residual) ask_l2(a.residual + row * a.ld_residual, bytes);
#endif
}

// hidden is a multiple of N, at most SLOTS * N * 32 * warps; everything is aligned for vectors. Four warps a block where `warps` is 1.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS) norm_fwd_row(const Args a) {
  ask_for_rows(a);
  after_previous();
  const bool alone = a.warps == 1;
  const i64 row = alone ? (i64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5) : blockIdx.x;
  put_scale_inv(a);
  if (row >= a.rows) return;
  forward_row(a, row, [&] { return store_policy(FP8 && !a.again && beyond_cache(a.rows, a.hidden, element_size(a.y_dt))); });
}
