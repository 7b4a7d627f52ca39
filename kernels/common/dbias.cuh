// Where a bias gradient ends.
#pragma once
#include "common/base.cuh"

// out[col] (+)= sum, out of type dt.
DEVICE void store_sum(void *out, u32 dt, i64 col, float sum, bool accumulate) {
  if (dt == DT_F32) {
    float *to = (float *)out + col;
    *to = accumulate ? sum + *to : sum;
  } else if (dt == DT_BF16) {
    Elem<DT_BF16>::T *to = (Elem<DT_BF16>::T *)out + col;
    *to = Elem<DT_BF16>::store(accumulate ? sum + Elem<DT_BF16>::load(*to) : sum);
  } else {
    Elem<DT_F16>::T *to = (Elem<DT_F16>::T *)out + col;
    *to = Elem<DT_F16>::store(accumulate ? sum + Elem<DT_F16>::load(*to) : sum);
  }
}
