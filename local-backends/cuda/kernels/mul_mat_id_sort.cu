// compute: 75
// A pass of MUL_MAT_ID with many tokens: one block sorts columns by expert, and divides those of each expert into tiles.
#include "common.cuh"
#include "experts.cuh"

const u32 MOST_EXPERTS = 1024;

// Of each expert: how many columns it has, and where they begin.
__shared__ u32 counts[MOST_EXPERTS], begins[MOST_EXPERTS];

// The expert of a column, or a number that is none.
INLINE u32 expert_of(const Node& node, u32 pair) {
    const Tensor &a = node.t[0], &ids = node.t[2];
    int expert = read_i32(ids.at + pair % ids.ne[0] * ids.nb[0] + pair / ids.ne[0] * ids.nb[1]);
    if (u32(expert) < a.ne[2]) {
        return expert;
    }
    wrong(node, EXPERT, expert, a.ne[2]);
    return ~0u;
}

INLINE void clear_counts(u32 experts) {
    __syncthreads();
    for (u32 e = threadIdx.x; e < experts; e += blockDim.x) {
        counts[e] = 0;
    }
    __syncthreads();
}

// Writes the tiles, and says where the columns of each expert begin.
INLINE void divide(u32* tiles, u32 experts) {
    u32 begin = 0, count = 0;
    for (u32 e = 0; e < experts; e++) {
        u32 end = begin + counts[e];
        begins[e] = begin;
        for (u32 first = begin; first < end; first += TILE) {
            u32* tile = tiles + HEAD + count++ * TILE_NUMBERS;
            tile[0] = e;
            tile[1] = first;
            tile[2] = min(first + TILE, end);
        }
        begin = end;
    }
    tiles[0] = count;
}

KERNEL mul_mat_id_sort(const Node node) {
    u32 experts = node.t[0].ne[2], pairs = node.t[2].ne[0] * node.t[2].ne[1], *order = order_of(node);
    clear_counts(experts);
    for (u32 pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
        u32 expert = expert_of(node, pair);
        if (expert != ~0u) {
            atomicAdd(&counts[expert], 1);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        divide(tiles_of(node), experts);
    }
    clear_counts(experts);
    for (u32 pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
        u32 expert = expert_of(node, pair);
        if (expert != ~0u) {
            u32 at = begins[expert] + atomicAdd(&counts[expert], 1);
            // Another queue of the client may have written the ids meanwhile.
            if (at < pairs) {
                order[at] = pair;
            }
        }
    }
}
