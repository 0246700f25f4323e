// compute: 61
// GET_ROWS: a block for each row of the result.
#include "common.cuh"
#include "blocks.cuh"

KERNEL get_rows(const Node node) {
    const Tensor &a = node.t[0], &ids = node.t[1], &y = node.t[RESULT];
    u32 r = blockIdx.x, n = a.ne[0], i1 = r % y.ne[1], i2 = r / y.ne[1] % y.ne[2], i3 = r / y.ne[1] / y.ne[2];
    int type = node.p[0], id = read_i32(ids.at + i1 * ids.nb[0] + i2 * ids.nb[1] + i3 * ids.nb[2]);
    if (u32(id) >= a.ne[1]) {
        if (threadIdx.x == 0) {
            wrong(node, ROW, id, a.ne[1]);
        }
        return;
    }
    const u8* from = row(a, id, i2, i3);
    u8* to = row(y, r);
    if (type == F32 || type == I32) {
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
            write_word(to + u64(i) * 4, word(from + u64(i) * 4));
        }
        return;
    }
    for (u32 i = threadIdx.x * 4; i < n; i += blockDim.x * 4) {
        Four four = quad_of(type, from, i, n);
        float v[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            if (i + j < n) {
                write_f32(to + u64(i + j) * 4, v[j]);
            }
        }
    }
}
