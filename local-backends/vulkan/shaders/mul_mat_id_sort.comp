// The first pass of MUL_MAT_ID with many tokens: one workgroup sorts columns, which are pairs of token and slot, by expert, and divides those
// of each expert into tiles.
#version 460

#include "common.glsl"
#include "experts.glsl"

const uint MOST_EXPERTS = 1024, TILE = 64;

// Of each expert: how many columns it has, and where they begin.
shared uint counts[MOST_EXPERTS], begins[MOST_EXPERTS];

// The expert of a column, or a number that is none.
uint expert_of(uint pair, uint experts) {
    Tensor ids = tensor(2);
    int expert = read_i32(plus(plus(ids.at, pair % ids.ne.x, ids.nb.x), pair / ids.ne.x, ids.nb.y));
    if (uint(expert) >= experts) {
        wrong(EXPERT, expert, experts);
        return ~0u;
    }
    return uint(expert);
}

void clear_counts(uint experts) {
    barrier();
    for (uint e = gl_LocalInvocationID.x; e < experts; e += LANES) {
        counts[e] = 0;
    }
    barrier();
}

// Writes the tiles, and says where the columns of each expert begin.
void divide(uint experts) {
    uint begin = 0, tiles = 0;
    for (uint e = 0; e < experts; e++) {
        uint end = begin + counts[e];
        begins[e] = begin;
        for (uint first = begin; first < end; first += TILE) {
            uint at = HEAD + tiles++ * TILE_NUMBERS;
            set_scratch(at, e);
            set_scratch(at + 1, first);
            set_scratch(at + 2, min(first + TILE, end));
        }
        begin = end;
    }
    set_scratch(0, tiles);
}

void main() {
    Tensor a = tensor(0), ids = tensor(2);
    uint experts = a.ne.z, pairs = ids.ne.x * ids.ne.y, lane = gl_LocalInvocationID.x, order = order_begin(param(0));
    clear_counts(experts);
    for (uint pair = lane; pair < pairs; pair += LANES) {
        uint expert = expert_of(pair, experts);
        if (expert != ~0u) {
            atomicAdd(counts[expert], 1);
        }
    }
    barrier();
    if (lane == 0) {
        divide(experts);
    }
    clear_counts(experts);
    for (uint pair = lane; pair < pairs; pair += LANES) {
        uint expert = expert_of(pair, experts);
        if (expert != ~0u) {
            uint at = begins[expert] + atomicAdd(counts[expert], 1);
            // Another queue of the client may have written the ids meanwhile.
            if (at < pairs) {
                set_scratch(order + at, pair);
            }
        }
    }
}
