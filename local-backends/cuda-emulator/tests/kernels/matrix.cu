// compute: 80 90
// Matrix products on tensor cores: tiles by cp.async, fragments by ldmatrix.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
typedef unsigned u32;

__device__ __forceinline__ u32 shared(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void copy16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared(to)), "l"(from));
}
__device__ __forceinline__ void wait() {
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
}

// C (16 x 8) = A (16 x k) B (k x 8): rows of A, rows of B, f16, one warp.
extern "C" __global__ void product_f16(const __half *a, const __half *b, float *c, int k) {
    __shared__ __align__(16) __half ta[16][16], tb[16][8];
    int lane = threadIdx.x;
    float d[4] = {0, 0, 0, 0};
    for (int at = 0; at < k; at += 16) {
        copy16(&ta[lane / 2][lane % 2 * 8], a + lane / 2 * k + at + lane % 2 * 8);
        if (lane < 16) copy16(tb[lane], b + (at + lane) * 8);
        wait();
        u32 ra[4], rb[2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3])
                     : "r"(shared(&ta[lane % 16][lane / 16 * 8])));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                     : "=r"(rb[0]), "=r"(rb[1]) : "r"(shared(tb[lane % 16])));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
        __syncthreads();
    }
    for (int i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

// The same in bytes, B by columns.
extern "C" __global__ void product_s8(const signed char *a, const signed char *b, int *c, int k) {
    __shared__ __align__(16) signed char ta[16][32], tb[8][32];
    int lane = threadIdx.x, d[4] = {0, 0, 0, 0};
    for (int at = 0; at < k; at += 32) {
        copy16(&ta[lane / 2][lane % 2 * 16], a + lane / 2 * k + at + lane % 2 * 16);
        if (lane < 16) copy16(&tb[lane / 2][lane % 2 * 16], b + lane / 2 * k + at + lane % 2 * 16);
        wait();
        u32 ra[4], rb[2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3])
                     : "r"(shared(&ta[lane % 16][lane / 16 * 16])));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                     : "=r"(rb[0]), "=r"(rb[1]) : "r"(shared(&tb[lane % 8][lane / 8 % 2 * 16])));
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
        __syncthreads();
    }
    for (int i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

// bf16, fragments straight from memory: A (16 x 16) by rows, B by columns.
extern "C" __global__ void product_bf16(const u32 *a, const u32 *b, float *c) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4;
    float d[4] = {1, 1, 1, 1};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[g * 8 + t]), "r"(a[(g + 8) * 8 + t]), "r"(a[g * 8 + t + 4]), "r"(a[(g + 8) * 8 + t + 4]), "r"(b[g * 8 + t]),
                   "r"(b[g * 8 + t + 4]));
    for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = d[i];
}

// Two copies under way at once: the older is waited for, the younger is not.
extern "C" __global__ void pipeline(const int4 *x, int *y) {
    __shared__ __align__(16) int4 tile[2][32];
    int lane = threadIdx.x;
    copy16(&tile[0][lane], x + lane);
    asm volatile("cp.async.commit_group;");
    copy16(&tile[1][lane], x + 32 + lane);
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;");
    __syncwarp();
    y[lane] = tile[0][31 - lane].x;
    asm volatile("cp.async.wait_all;");
    __syncwarp();
    y[32 + lane] = tile[1][31 - lane].y;
}

// Pairs of halves, and numbers in the format of brains.
extern "C" __global__ void pairs(const __half2 *a, const __half2 *b, __half2 *y, const __nv_bfloat16 *p, __nv_bfloat16 *q) {
    int i = threadIdx.x;
    y[i] = __hfma2(a[i], b[i], __hadd2(a[i], b[i]));
    q[i] = __float2bfloat16(__bfloat162float(p[i]) * 3.f);
}
