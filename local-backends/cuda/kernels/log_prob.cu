// compute: 61
// LOG_PROB: a block for a part of a row, which adds up what its logits weigh beside its largest. Then a block for each row puts the parts together.
#include "common.cuh"

// Logits of a part, and those that a thread reads together.
const u32 PART = 4096, AT_ONCE = 16;

// Logits: the largest, and the sum of what they weigh beside it.
struct Sum {
    float most, sum;
};

KERNEL log_prob(const Node node) {
    const Tensor& x = node.t[0];
    u32 n = x.ne[0], parts = node.p[0], part = blockIdx.x % parts;
    const float* from = (const float*)row(x, blockIdx.x / parts);
    float logits[AT_ONCE], most = minus_infinity(), sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
        u32 at = part * PART + i * blockDim.x + threadIdx.x;
        logits[i] = at < n ? from[at] : minus_infinity();
        most = fmaxf(most, logits[i]);
    }
    most = max_of(most);
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
        sum += logits[i] == minus_infinity() ? 0.0f : expf(logits[i] - most);
    }
    sum = sum_of(sum);
    if (threadIdx.x == 0) {
        ((Sum*)node.table)[blockIdx.x] = {most, sum};
    }
}

KERNEL log_prob_parts(const Node node) {
    const Tensor &x = node.t[0], &ids = node.t[1], &y = node.t[RESULT];
    u32 parts = node.p[0], r = blockIdx.x, n = x.ne[0];
    const Sum* from = (const Sum*)node.table + r * parts;
    int id = read_i32(ids.at + r * ids.nb[0]);
    float most = minus_infinity(), sum = 0.0f;
    for (u32 i = threadIdx.x; i < parts; i += blockDim.x) {
        most = fmaxf(most, from[i].most);
    }
    most = max_of(most);
    for (u32 i = threadIdx.x; i < parts; i += blockDim.x) {
        // A part without any finite logit weighs nothing, unless something in it is no number.
        sum += from[i].most == minus_infinity() ? from[i].sum : from[i].sum * expf(from[i].most - most);
    }
    sum = sum_of(sum);
    if (threadIdx.x != 0) {
        return;
    }
    if (u32(id) >= n) {
        wrong(node, ID, id, n);
    } else {
        write_f32(y.at + r * y.nb[0], ((const float*)row(x, r))[id] - (most + logf(sum)));
    }
}
