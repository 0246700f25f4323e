// compute: 61
// CAST of blocks to F32: a thread for each four elements.
#include "common.cuh"
#include "blocks.cuh"

KERNEL unpack(const Node node) {
    const Tensor &x = node.t[0], &y = node.t[RESULT];
    u32 place = blockIdx.x * blockDim.x + threadIdx.x, quads = y.ne[0] / 4;
    if (place >= quads * rows_of(y)) {
        return;
    }
    u32 i = place % quads * 4, r = place / quads;
    Four v = quad_of(node.p[0], row(x, r), i, x.ne[0]);
    float* to = (float*)row(y, r) + i;
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}
