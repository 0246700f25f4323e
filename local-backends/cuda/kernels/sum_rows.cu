// compute: 61
// SUM_ROWS, MEAN, CUMSUM: a block for each row.
#include "common.cuh"

const u32 MEAN = 1;

__shared__ float parts[256];

// Each thread has a part of the row, whose beginning is the sum of the parts before.
INLINE void cumulate(const float* from, float* to, u32 n) {
    u32 part = (n + blockDim.x - 1) / blockDim.x, begin = min(threadIdx.x * part, n), end = min(begin + part, n);
    float sum = 0.0f;
    for (u32 i = begin; i < end; i++) {
        sum += from[i];
    }
    parts[threadIdx.x] = sum;
    __syncthreads();
    float before = 0.0f;
    for (u32 i = 0; i < threadIdx.x; i++) {
        before += parts[i];
    }
    for (u32 i = begin; i < end; i++) {
        before += from[i];
        to[i] = before;
    }
}

KERNEL sum_rows(const Node node) {
    const Tensor &x = node.t[0], &y = node.t[RESULT];
    u32 n = x.ne[0], kind = node.p[0];
    const float* from = (const float*)row(x, blockIdx.x);
    u8* to = row(y, blockIdx.x);
    if (kind > MEAN) {
        cumulate(from, (float*)to, n);
        return;
    }
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        sum += from[i];
    }
    sum = sum_of(sum);
    if (threadIdx.x == 0) {
        write_f32(to, kind == MEAN ? sum / n : sum);
    }
}
