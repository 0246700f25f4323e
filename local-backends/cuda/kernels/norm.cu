// compute: 61
// RMS_NORM, NORM, L2_NORM: a block for each row, which may be multiplied with another one.
#include "common.cuh"
#include "blocks.cuh"
#include "quantized.cuh"
#include "norm.cuh"

KERNEL_OF(1024) norm(const Node node) { norm_row<1, false>(node, blockIdx.x); }
