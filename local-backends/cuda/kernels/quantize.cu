// compute: 61
// Columns of a product as signed bytes (quantized.cuh): a block for some elements of a column, four for each thread.
#include "common.cuh"
#include "blocks.cuh"
#include "quantized.cuh"

KERNEL quantize(const Node node) {
    const Tensor& b = node.t[1];
    u32 n = b.ne[0], across = (n / 4 + blockDim.x - 1) / blockDim.x, place = blockIdx.x / across;
    u32 i = (blockIdx.x % across * blockDim.x + threadIdx.x) * 4;
    Four x = i < n ? quad_wide<F32>(row(b, place), i, n, node.p[0] != 0) : four(0.0f);
    quantize_four(node.table + place * packed_bytes(n), n, i, x);
}
