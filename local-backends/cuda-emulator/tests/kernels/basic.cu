// compute: 61 75 80 90
// What kernels are made of: shuffles, shared memory, dp4a, divergence, calls, tables of jumps, atomics, conversions.
#include <cuda_fp16.h>

// The sum of all, a block at a time.
extern "C" __global__ void reduce(const float *x, float *sums, int n) {
    __shared__ float part[32];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.f;
        for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(~0u, sum, o);
        if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    }
}

// A block's values the other way round, through the shared memory of the launch.
extern "C" __global__ void reverse(const int *x, int *y) {
    extern __shared__ int tile[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = x[i];
    __syncthreads();
    y[i] = tile[blockDim.x - 1 - threadIdx.x];
}

// A square of 32 by 32 turned over its diagonal: once with a bank for every lane, once with one bank for all.
extern "C" __global__ void transpose(const float *x, float *y) {
    __shared__ float tile[32][33];
    tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * 32 + threadIdx.x];
    __syncthreads();
    y[threadIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
extern "C" __global__ void transpose_conflicts(const float *x, float *y) {
    __shared__ float tile[32][32];
    tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * 32 + threadIdx.x];
    __syncthreads();
    y[threadIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}

// Rows of bytes times a column of bytes, a warp a row.
extern "C" __global__ void dot(const int *rows, const int *column, int *y, int words) {
    int lane = threadIdx.x, row = blockIdx.x, sum = 0;
    for (int i = lane; i < words; i += 32)
        asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(rows[row * words + i]), "r"(column[i]));
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (lane == 0) y[row] = sum;
}

// Steps of Collatz's sequence: every lane takes a number of its own.
extern "C" __global__ void collatz(const unsigned *x, unsigned *steps, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long v = x[i];
    unsigned count = 0;
    while (v != 1) {
        v = v & 1 ? 3 * v + 1 : v / 2;
        count++;
    }
    steps[i] = count;
}

__device__ __noinline__ float choose(int op, float a, float b) {
    switch (op) {
        case 0: return a + b;
        case 1: return a * b;
        case 2: return a / b;
        case 3: return fminf(a, b);
        case 4: return sqrtf(fabsf(a));
        case 5: return rintf(a);
        case 6: return a - b;
        case 7: return fmodf(a, b);
        default: return -1.f;
    }
}

// An operation by number for each lane.
extern "C" __global__ void calculate(const int *ops, const float *a, const float *b, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = choose(ops[i], a[i], b[i]);
}

// How often each of 16 values comes, counted in shared memory.
extern "C" __global__ void histogram(const unsigned *x, unsigned *counts, int n) {
    __shared__ unsigned mine[16];
    if (threadIdx.x < 16) mine[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&mine[x[i] % 16], 1u);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&counts[threadIdx.x], mine[threadIdx.x]);
}

// Halves and wholes.
extern "C" __global__ void halves(const __half *x, __half *y, float *z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    z[i] = __half2float(x[i]);
    y[i] = __float2half(z[i] * 1.5f);
}

// Sine and cosine with arguments of any size: the reduction of large ones uses local memory and 64-bit arithmetic.
extern "C" __global__ void waves(const float *x, float *s, float *c, float *e, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    sincosf(x[i], s + i, c + i);
    e[i] = expf(-fabsf(x[i]) / 100.f) + log1pf(fabsf(x[i])) + powf(fabsf(x[i]), 0.3f) + tanhf(x[i]) + erff(x[i]);
}

// y = a x + y, four at a time, and one at a time with a stride.
extern "C" __global__ void axpy(float a, const float4 *x, float4 *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 u = x[i], v = y[i];
    y[i] = make_float4(a * u.x + v.x, a * u.y + v.y, a * u.z + v.z, a * u.w + v.w);
}
extern "C" __global__ void strided(const float *x, float *y, int stride) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i * stride];
}

__constant__ int table[4] = {3, 1, 4, 1};
__device__ int total = 5;
extern "C" __global__ void constants(int *y) {
    y[threadIdx.x] = table[threadIdx.x % 4] + total;
}

struct Shape {
    int values[6];
    long long scale;
};
// A structure as a parameter, with an index that only the run knows.
extern "C" __global__ void structure(Shape shape, long long *y) {
    y[threadIdx.x] = shape.values[threadIdx.x % 6] * shape.scale;
}

// What lanes agree on.
extern "C" __global__ void votes(const int *x, unsigned *y) {
    int v = x[threadIdx.x];
    unsigned ballot = __ballot_sync(~0u, v > 0);
    int all = __all_sync(~0u, v > -100), any = __any_sync(~0u, v == 7), up = __shfl_up_sync(~0u, v, 3, 8);
    y[threadIdx.x] = ballot ^ (all << 1) ^ (any << 2) ^ (up << 8);
}

// Lanes that return early are not waited for at a barrier, even if they belong to a warp of which others go on.
extern "C" __global__ void early(const int *x, int *y, int n) {
    __shared__ int tile[64];
    if (threadIdx.x >= n) return;
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[n - 1 - threadIdx.x];
}
