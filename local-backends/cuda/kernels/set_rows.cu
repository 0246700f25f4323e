// compute: 61
// SET_ROWS: a block for each row of the source.
#include "common.cuh"
#include "set_rows.cuh"

KERNEL set_rows(const Node node) {
    set_row(node, blockIdx.x);
}
