// PTX of sm_80 and later: cp.async, ldmatrix, mma.sync. One wrapper per instruction.
#pragma once
#include "common/smem.cuh"

// 16 bytes from global to shared memory, past L1. Only the first `bytes` (0..16) are read; the rest of the 16 is filled with zeros.
DEVICE void cp_async16(u32 dst, const void *src, u32 bytes) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(dst), "l"(src), "r"(bytes) : "memory"); }
DEVICE void cp_async16(u32 dst, const void *src, u32 bytes, u64 policy) { asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" :: "r"(dst), "l"(src), "r"(bytes), "l"(policy) : "memory"); }
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most N of this thread's newest groups are pending.
template <int N> DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }

// Four 8x8 matrices of 16-bit elements: lane l gives the address of row l%8 of matrix l/8,
// and receives elements 2*(l%4), 2*(l%4)+1 of row l/4 of each matrix.
DEVICE void ldmatrix_x4(u32 (&r)[4], u32 addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

// d[16,8] += a[16,16] * b[8,16]^T, f32 accumulators. Lane l holds d rows l/4 (d[0], d[1]) and l/4+8 (d[2], d[3]), columns 2*(l%4) + {0,1}.
template <int DT> DEVICE void mma_m16n8k16(float *d, const u32 (&a)[4], u32 b0, u32 b1) {
  if (DT == DT_BF16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
