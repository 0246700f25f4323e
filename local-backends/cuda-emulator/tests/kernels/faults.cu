// compute: 80
// Kernels that are broken on purpose, each beside its mended twin. x has 64 values, y has 64.
#define LANE (threadIdx.x % 32)

extern "C" __global__ void bounds_broken(const int *x, int *y) { y[threadIdx.x] = x[threadIdx.x + 1]; }
extern "C" __global__ void bounds_mended(const int *x, int *y) { y[threadIdx.x] = x[(threadIdx.x + 1) % 64]; }

extern "C" __global__ void store_broken(const int *x, int *y) { y[(int)threadIdx.x - 1] = x[0]; }
extern "C" __global__ void store_mended(const int *x, int *y) { y[threadIdx.x] = x[0]; }

extern "C" __global__ void shared_bounds_broken(const int *x, int *y) {
    __shared__ int tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x + x[0]];
}
extern "C" __global__ void shared_bounds_mended(const int *x, int *y) {
    __shared__ int tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[(threadIdx.x + x[0]) % 64];
}

extern "C" __global__ void aligned_broken(const int *x, int *y) { *(int2 *)(y + 2 * (threadIdx.x / 4) + 1) = make_int2(x[0], 1); }
extern "C" __global__ void aligned_mended(const int *x, int *y) { *(int2 *)(y + 2 * (threadIdx.x / 4)) = make_int2(x[0], 1); }

// y is not written before.
extern "C" __global__ void written_broken(const int *x, int *y) { y[threadIdx.x] += x[threadIdx.x]; }
extern "C" __global__ void written_mended(const int *x, int *y) { y[threadIdx.x] = x[threadIdx.x]; }

extern "C" __global__ void shared_written_broken(const int *x, int *y) {
    __shared__ int tile[64];
    if (threadIdx.x != 5) tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[63 - threadIdx.x];
}
extern "C" __global__ void shared_written_mended(const int *x, int *y) {
    __shared__ int tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[63 - threadIdx.x];
}

extern "C" __global__ void local_written_broken(const int *x, int *y) {
    volatile int mine[8];
    for (int i = 0; i < 7; i++) mine[i] = x[i];
    y[threadIdx.x] = mine[threadIdx.x % 8];
}
extern "C" __global__ void local_written_mended(const int *x, int *y) {
    volatile int mine[8];
    for (int i = 0; i < 8; i++) mine[i] = x[i];
    y[threadIdx.x] = mine[threadIdx.x % 8];
}

extern "C" __global__ void local_bounds_broken(const int *x, int *y) {
    volatile int mine[8];
    for (int i = 0; i < 8; i++) mine[i] = x[i];
    y[threadIdx.x] = mine[threadIdx.x % 9];
}
extern "C" __global__ void local_bounds_mended(const int *x, int *y) {
    volatile int mine[9];
    for (int i = 0; i < 9; i++) mine[i] = x[i];
    y[threadIdx.x] = mine[threadIdx.x % 9];
}

extern "C" __global__ void race_broken(const int *x, int *y) {
    __shared__ int tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = tile[threadIdx.x ^ 32];
}
extern "C" __global__ void race_mended(const int *x, int *y) {
    __shared__ int tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x ^ 32];
}

// The tile is written again while the other warp may still read it.
extern "C" __global__ void reuse_broken(const int *x, int *y) {
    __shared__ int tile[64];
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        tile[threadIdx.x] = x[threadIdx.x] + i;
        __syncthreads();
        sum += tile[63 - threadIdx.x];
    }
    y[threadIdx.x] = sum;
}
extern "C" __global__ void reuse_mended(const int *x, int *y) {
    __shared__ int tile[64];
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        tile[threadIdx.x] = x[threadIdx.x] + i;
        __syncthreads();
        sum += tile[63 - threadIdx.x];
        __syncthreads();
    }
    y[threadIdx.x] = sum;
}

// Bytes of one word that belong to two warps are no race.
extern "C" __global__ void bytes_broken(const int *x, int *y) {
    __shared__ unsigned char tile[128];
    tile[threadIdx.x * 2 % 127] = x[threadIdx.x];
    y[threadIdx.x] = tile[threadIdx.x * 2 % 127 ^ 64];
}
extern "C" __global__ void bytes_mended(const int *x, int *y) {
    __shared__ unsigned char tile[64];
    unsigned own = LANE * 2 + threadIdx.x / 32;
    tile[own] = x[threadIdx.x];
    y[threadIdx.x] = tile[own];
}

__device__ __forceinline__ void copy4(int *to, const int *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));
}
extern "C" __global__ void wait_broken(const int *x, int *y) {
    __shared__ int tile[64];
    copy4(tile + threadIdx.x, x + threadIdx.x);
    asm volatile("cp.async.commit_group;");
    __syncthreads();
    y[threadIdx.x] = tile[63 - threadIdx.x];
}
extern "C" __global__ void wait_mended(const int *x, int *y) {
    __shared__ int tile[64];
    copy4(tile + threadIdx.x, x + threadIdx.x);
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
    y[threadIdx.x] = tile[63 - threadIdx.x];
}
// One group too few is waited for.
extern "C" __global__ void group_broken(const int *x, int *y) {
    __shared__ int tile[64];
    copy4(tile + threadIdx.x, x + threadIdx.x);
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    y[threadIdx.x] = tile[63 - threadIdx.x];
}
extern "C" __global__ void group_mended(const int *x, int *y) {
    __shared__ int tile[64];
    copy4(tile + threadIdx.x, x + threadIdx.x);
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    y[threadIdx.x] = tile[63 - threadIdx.x];
}

extern "C" __global__ void lanes_broken(const int *x, int *y) {
    int v = x[threadIdx.x];
    if (LANE < 16) v = __shfl_xor_sync(~0u, v, 1) * y[63];
    y[threadIdx.x % 63] = v;
}
extern "C" __global__ void lanes_mended(const int *x, int *y) {
    int v = x[threadIdx.x];
    if (LANE < 16) v = __shfl_xor_sync(0xffffu, v, 1) * y[63];
    y[threadIdx.x % 63] = v;
}

extern "C" __global__ void barrier_broken(const int *x, int *y) {
    int v = x[threadIdx.x];
    if (LANE < 16) {
        asm volatile("bar.sync 0;");
        v *= y[63];
    }
    y[threadIdx.x % 63] = v;
}
extern "C" __global__ void barrier_mended(const int *x, int *y) {
    int v = x[threadIdx.x];
    asm volatile("bar.sync 0;");
    if (LANE < 16) v *= y[63];
    y[threadIdx.x % 63] = v;
}

extern "C" __global__ void deadlock_broken(const int *x, int *y) {
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
    y[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void deadlock_mended(const int *x, int *y) {
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 32;");
    y[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void trap_broken(const int *x, int *y) {
    if (x[threadIdx.x] == 63) asm volatile("trap;");
    y[threadIdx.x] = 1;
}
extern "C" __global__ void trap_mended(const int *x, int *y) {
    if (x[threadIdx.x] == 64) asm volatile("trap;");
    y[threadIdx.x] = 1;
}

__constant__ int fixed[4] = {1, 2, 3, 4};
__device__ int loose[4] = {1, 2, 3, 4};
__device__ __forceinline__ void put(const int *p, int v) { asm volatile("st.u32 [%0], %1;" ::"l"(p), "r"(v)); }
extern "C" __global__ void constant_broken(const int *x, int *y) {
    put(fixed, x[0]);
    y[threadIdx.x] = 1;
}
extern "C" __global__ void constant_mended(const int *x, int *y) {
    put(loose, x[0]);
    y[threadIdx.x] = 1;
}
