// compute: 61
// ARGSORT and TOP_K: a block for each row. An element's place is the number of elements before it, so that equals keep their order; rows
// are short.
#include "common.cuh"

// NaN comes above everything.
INLINE bool is_below(float a, float b) {
    return isnan(b) ? !isnan(a) : a < b;
}

INLINE bool is_before(bool descending, float a, u32 i, float b, u32 j) {
    bool before = descending ? is_below(b, a) : is_below(a, b);
    bool after = descending ? is_below(a, b) : is_below(b, a);
    return before || (!after && i < j);
}

KERNEL argsort(const Node node) {
    const Tensor &x = node.t[0], &y = node.t[RESULT];
    u32 n = x.ne[0];
    bool descending = node.p[0] != 0;
    const float* from = (const float*)row(x, blockIdx.x);
    u32* to = (u32*)row(y, blockIdx.x);
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        float mine = from[i];
        u32 place = 0;
        for (u32 j = 0; j < n; j++) {
            place += is_before(descending, from[j], j, mine, i) ? 1 : 0;
        }
        if (place < y.ne[0]) {
            to[place] = i;
        }
    }
}
