// What the norms' forward kernels do besides y's elements where FP8 says whether y is: its scale, its amax, its type.
#pragma once
#include "common/norm_fwd.cuh"

// The scale of FP8 codes; one thread of the grid writes its reciprocal.
DEVICE void put_scale_inv(const Args &a, float scale) {
  if (FP8 && blockIdx.x == 0 && threadIdx.x == 0 && a.scale_inv) *a.scale_inv = reciprocal(scale);
}
DEVICE void put_scale_inv(const Args &a) {
  if (FP8 && blockIdx.x == 0 && threadIdx.x == 0 && a.scale_inv) *a.scale_inv = reciprocal(a.scale ? *a.scale : 1.0f);
}
// Warps record their amax, `recorded` being what the slot held at some time before: it only grows, so most need no atomic.
DEVICE u32 read_amax(const Args &a) { return FP8 && a.amax ? *(volatile const u32 *)a.amax : 0; }
DEVICE void put_warp_amax(const Args &a, float amax, u32 recorded) {
  if (!FP8 || !a.amax) return;
  const u32 most = warp_max(bits_of(amax));
  if ((threadIdx.x & 31) == 0 && most > recorded) record_amax(a.amax, most);
}

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
