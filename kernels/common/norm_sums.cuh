// Sums of ROWS rows at once, in a warp whose lanes have a part of each: an exchange halves the rows of a lane, so that four sums take 6 exchanges and
// not 20, and what follows from a sum is worked out for all rows at a time.
#pragma once
#include "common/norm_output.cuh"

// Lanes that have the sums of a row.
#define LANES (32 / ROWS)

// Of each row the sum over the warp, in the lanes of that row.
DEVICE float sum_rows(float (&s)[ROWS]) {
  const u32 lane = threadIdx.x & 31;
#pragma unroll
  for (int n = ROWS / 2, o = 16; n; n /= 2, o /= 2) {
    const bool upper = lane & o;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float mine = upper ? s[j + n] : s[j], other = upper ? s[j] : s[j + n];
      s[j] = mine + __shfl_xor_sync(0xFFFFFFFFu, other, o);
    }
  }
#pragma unroll
  for (int o = LANES / 2; o; o /= 2) s[0] += __shfl_xor_sync(0xFFFFFFFFu, s[0], o);
  return s[0];
}
// What the lanes of row r hold.
DEVICE float of_row(float v, int r) { return __shfl_sync(0xFFFFFFFFu, v, r * LANES); }
