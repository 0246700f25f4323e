// compute: 61
// ARGMAX: a block for a part of a row. Of equal elements the first counts; NaN never does. Where a row has more than one part, the parts' best ones
// are put together behind that.
#include "common.cuh"

// Elements of a part, and those that a thread reads together.
const u32 PART = 4096, AT_ONCE = 16;

__shared__ float largest[WARP];
__shared__ u32 indices[WARP];

struct Best {
    float most;
    u32 index;
};

INLINE Best better(Best a, Best b) {
    return b.most > a.most || (b.most == a.most && b.index < a.index) ? b : a;
}

// That of a block, which its first thread has.
INLINE Best best_of(Best best) {
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (int offset = 16; offset > 0; offset /= 2) {
        best = better(best, {__shfl_xor_sync(ALL_LANES, best.most, offset), __shfl_xor_sync(ALL_LANES, best.index, offset)});
    }
    if (lane == 0) {
        largest[warp] = best.most;
        indices[warp] = best.index;
    }
    __syncthreads();
    for (u32 i = 1; i < blockDim.x / WARP; i++) {
        best = better(best, {largest[i], indices[i]});
    }
    return best;
}

INLINE void write(const Node& node, u32 r, Best best) {
    const Tensor& y = node.t[RESULT];
    // A row without any number has its first element.
    write_word(y.at + r * y.nb[0], best.most == minus_infinity() ? 0 : best.index);
}

KERNEL argmax(const Node node) {
    const Tensor& x = node.t[0];
    u32 n = x.ne[0], parts = node.p[0], r = blockIdx.x / parts, part = blockIdx.x % parts;
    const float* from = (const float*)row(x, r);
    float elements[AT_ONCE];
    Best best = {minus_infinity(), ~0u};
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
        u32 at = part * PART + i * blockDim.x + threadIdx.x;
        elements[i] = at < n ? from[at] : minus_infinity();
    }
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
        if (elements[i] > best.most) {
            best = {elements[i], part * PART + i * blockDim.x + threadIdx.x};
        }
    }
    best = best_of(best);
    if (threadIdx.x != 0) {
        return;
    }
    if (parts == 1) {
        write(node, r, best);
    } else {
        ((Best*)node.table)[blockIdx.x] = best;
    }
}

KERNEL argmax_parts(const Node node) {
    u32 parts = node.p[0], r = blockIdx.x;
    Best best = {minus_infinity(), ~0u};
    for (u32 i = threadIdx.x; i < parts; i += blockDim.x) {
        best = better(best, ((const Best*)node.table)[r * parts + i]);
    }
    best = best_of(best);
    if (threadIdx.x == 0) {
        write(node, r, best);
    }
}
