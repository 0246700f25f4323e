// compute: 61
// SOFT_MAX: a block for each row.
#include "common.cuh"

KERNEL soft_max(const Node node) {
    const Tensor &x = node.t[0], &mask = node.t[1], &y = node.t[RESULT];
    u32 r = blockIdx.x, n = x.ne[0], i1 = r % x.ne[1], i2 = r / x.ne[1] % x.ne[2], i3 = r / x.ne[1] / x.ne[2];
    int type = node.p[1];
    bool masked = mask.at != 0;
    const float* from = (const float*)row(x, r);
    float* to = (float*)row(y, r);
    const u8* masks = masked ? row(mask, i1, i2 % mask.ne[2], i3 % mask.ne[3]) : 0;
    float none = minus_infinity(), most = none, sum = 0.0f, scale = number_param(node, 0);
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        float v = scale * from[i];
        if (masked) {
            v += read_element(type, masks + u64(i) * size_of(type));
        }
        to[i] = v;
        most = fmaxf(most, v);
    }
    most = max_of(most);
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        float v = most == none ? 0.0f : expf(to[i] - most);
        to[i] = v;
        sum += v;
    }
    sum = sum_of(sum);
    for (u32 i = threadIdx.x; most != none && i < n; i += blockDim.x) {
        to[i] /= sum;
    }
}
