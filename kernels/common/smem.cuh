// Shared-memory addresses and small vector types.
#pragma once
#include "common/base.cuh"

struct alignas(8) F2 { float x, y; };
struct alignas(16) F4 { float x, y, z, w; };

// The 32-bit address that PTX instructions on shared memory take.
DEVICE u32 smem_u32(const void *p) { return (u32)__cvta_generic_to_shared(p); }
