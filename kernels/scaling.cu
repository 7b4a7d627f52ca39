// The delayed-scaling update of all slots in one launch (NUMERICS section 4).
//
// live[n], scale[n], format_max[n], optional nonfinite[n] and scale_inv[n]; history element (slot i, age j) at
// base + i*slot_stride + j*step_stride, j = 0 the oldest, `steps` = L-1 of them. Per slot the history is read once and written once,
// shifted by one element: bytes moved 8*(L-1) per slot.
//   scaling_rows  a warp per slot, lanes along the steps, step_stride 1: addresses are constants apart.
//   scaling_any   the same for any strides.
//   scaling_cols  a block of 1024 threads per 32 slots, lanes along the slots: for histories in which slots lie closer than steps.
// All loads of a batch (32 or 16 per thread) are under way before anything is written, so the shift can be in place:
// an element is written only by the thread that read its successor, after everyone involved has read.
//
// Interval counter: its low 20 bits count the updates since scales last changed. Every block reads them, then announces itself in the
// upper 12 bits; the last one writes the new count and clears those. Nobody can see the new count before all have read the old one, the
// word is clean between launches, and a graph can replay the launch as it is.
#include "common/base.cuh"

struct ScalingParams {
  float *live, *scale, *history;
  const float *format_max;
  u32 *nonfinite;
  float *scale_inv;
  u32 *counter;        // null: scales change at every update
  i64 slot_stride, step_stride, steps;
  u32 slots, interval;
  float margin_factor, epsilon;
  u32 power_of_two, most_recent;
};

#define COUNT_BITS 20
#define COUNT_MASK ((1u << COUNT_BITS) - 1u)

// Whether scales change at this update. All threads of the block call it.
DEVICE bool scale_due(const ScalingParams &p) {
  if (!p.counter) return true;
  return (*(volatile u32 *)p.counter & COUNT_MASK) + 1 >= p.interval;
}

// Called once all threads of the block have the answer of scale_due.
DEVICE void count_update(const ScalingParams &p) {
  if (!p.counter) return;
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 old = atomicAdd(p.counter, 1u << COUNT_BITS), count = (old & COUNT_MASK) + 1;
    if (old >> COUNT_BITS == gridDim.x - 1) *(volatile u32 *)p.counter = count >= p.interval ? 0 : count;
  }
}

// What happens to a slot.
DEVICE bool rolls(float live) { return live != 0.0f && (bits_of(live) & 0x7F800000u) != 0x7F800000u; }

// The new values of a slot, by one thread. `window` is the largest of the older amaxes, as bits.
DEVICE void finish_slot(const ScalingParams &p, u32 i, float live, u32 window, float scale, bool due) {
  if (live != 0.0f) {
    p.live[i] = 0.0f;
    if (!rolls(live)) {
      if (p.nonfinite) p.nonfinite[i] += 1;
    } else if (due) {
      float amax = p.most_recent ? live : float_of(umax(window, abs_bits(live)));
      scale = scale_from_amax(amax, p.format_max[i], p.margin_factor, p.epsilon, p.power_of_two != 0, scale);
      p.scale[i] = scale;
    }
  }
  if (p.scale_inv) p.scale_inv[i] = reciprocal(scale);
}

template <bool DENSE> DEVICE void warp_per_slot(const ScalingParams &p) {
  const u32 BATCH = 32;
  const i64 step = DENSE ? 1 : p.step_stride, apart = 32 * step;
  u32 lane = threadIdx.x & 31;
  bool due = scale_due(p);
  for (u32 i = blockIdx.x * 8 + (threadIdx.x >> 5); i < p.slots; i += gridDim.x * 8) {
    float *history = p.history + i * p.slot_stride;
    float live = p.live[i], scale = p.scale[i];
    u32 window = 0;
    bool roll = rolls(live);
    for (i64 base = 0; base < p.steps; base += 32 * BATCH) {
      u32 here = (u32)imin(p.steps - base, 32 * BATCH);
      float *from = history + (base + lane) * step;
      float v[BATCH];
#pragma unroll
      for (u32 k = 0; k < BATCH; k++) {
        v[k] = 32 * k + lane < here ? from[k * apart] : 0.0f;
        window = umax(window, abs_bits(v[k]));
      }
      if (!roll) break;
      __syncwarp();
      from -= step;
#pragma unroll
      for (u32 k = 0; k < BATCH; k++)
        if (32 * k + lane < here && (k > 0 || base + lane > 0)) from[k * apart] = v[k];
      __syncwarp();
    }
    window = warp_max(window);
    if (lane == 0) {
      if (roll && p.steps > 0) history[(p.steps - 1) * step] = live;
      finish_slot(p, i, live, window, scale, due);
    }
  }
  count_update(p);
}

extern "C" __global__ void __launch_bounds__(256) scaling_rows(const __grid_constant__ ScalingParams p) { after_previous(); warp_per_slot<true>(p); }
extern "C" __global__ void __launch_bounds__(256) scaling_any(const __grid_constant__ ScalingParams p) { after_previous(); warp_per_slot<false>(p); }

extern "C" __global__ void __launch_bounds__(1024) scaling_cols(const __grid_constant__ ScalingParams p) {
  after_previous();
  const u32 BATCH = 16;  // 64 registers per thread
  __shared__ u32 part[32][32];
  u32 tx = threadIdx.x & 31, ty = threadIdx.x >> 5;
  bool due = scale_due(p);
  // The bound is the same for all threads of the block: the loop holds barriers.
  for (u32 first = blockIdx.x * 32; first < p.slots; first += gridDim.x * 32) {
    u32 i = first + tx;
    bool mine = i < p.slots;
    float *history = p.history + i * p.slot_stride;
    float live = mine ? p.live[i] : 0.0f, scale = mine ? p.scale[i] : 1.0f;
    bool roll = rolls(live);
    u32 window = 0;
    // Thread row ty takes steps base + 32k + ty.
    for (i64 base = 0; base < p.steps; base += 32 * BATCH) {
      u32 here = (u32)imin(p.steps - base, 32 * BATCH);
      i64 apart = 32 * p.step_stride;
      float *from = history + (base + ty) * p.step_stride;
      float v[BATCH];
#pragma unroll
      for (u32 k = 0; k < BATCH; k++) {
        v[k] = mine && 32 * k + ty < here ? from[k * apart] : 0.0f;
        window = umax(window, abs_bits(v[k]));
      }
      __syncthreads();
      from -= p.step_stride;
#pragma unroll
      for (u32 k = 0; k < BATCH; k++)
        if (roll && 32 * k + ty < here && (k > 0 || base + ty > 0)) from[k * apart] = v[k];
      __syncthreads();
    }
    part[ty][tx] = window;
    __syncthreads();
    if (ty == 0 && mine) {
#pragma unroll
      for (int w = 1; w < 32; w++) window = umax(window, part[w][tx]);
      if (roll && p.steps > 0) history[(p.steps - 1) * p.step_stride] = live;
      finish_slot(p, i, live, window, scale, due);
    }
    __syncthreads();
  }
  count_update(p);
}
