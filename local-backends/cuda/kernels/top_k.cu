// compute: 61
// TOP_K of long rows: a block for each, which finds the few largest and then sorts them.
#include "common.cuh"
// NaN comes above everything.
#define CODE_OF_NAN 0
#include "select.cuh"

KERNEL_OF(1024) top_k(const Node node) {
    const Tensor &x = node.t[0], &y = node.t[RESULT];
    Selection s = selection(row(x, blockIdx.x), x.ne[0]);
    find_first(s);
    keep_largest(s, y.ne[0]);
    u32* to = (u32*)row(y, blockIdx.x);
    for (u32 i = threadIdx.x; i < s.listed; i += blockDim.x) {
        Element mine = {list_codes[i], list_places[i]};
        u32 place = 0;
        for (u32 j = 0; j < s.listed; j++) {
            place += is_before({list_codes[j], list_places[j]}, mine) ? 1 : 0;
        }
        // There are as many as places, unless somebody has written the row meanwhile.
        if (place < y.ne[0]) {
            to[place] = mine.place;
        }
    }
}
