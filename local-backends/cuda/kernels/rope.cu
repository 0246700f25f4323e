// compute: 61
// ROPE with YaRN: a block for each row.
#include "common.cuh"
#include "rope.cuh"

KERNEL rope(const Node node) {
    u32 r = blockIdx.x;
    float* to = (float*)row(node.t[RESULT], r);
    rotate(node, r, [&](u32 i, float x) { to[i] = x; });
}
