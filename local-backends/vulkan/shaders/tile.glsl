// A tile of a product with columns of floats, by way of shared memory.

layout(constant_id = 1) const uint TYPE = F32;
// Whether columns are whole vectors of 16 bytes, in place and length.
layout(constant_id = 2) const bool WIDE = false;

#include "results.glsl"

const uint DEPTH = 16;

// Weights and columns, the length first; a place more than a tile, so that neighbours are in different banks.
shared float weights[DEPTH][TILE + 1], inputs[DEPTH][TILE + 1];

uvec2 column_at(Tensor b, uint i1, uint i2, uint i3) {
    return row(b, i1, i2, i3);
}

// Sums over `k` elements; `weight_row` and `column` are those that this invocation brings.
void multiply_tile(uvec2 weight_row, uvec2 column, uint k) {
    uint lane = gl_LocalInvocationID.x, mine = brought(), part = lane % 4 * 4, r = lane % 16, c = lane / 16;
    [[unroll]] for (uint i = 0; i < 16; i++) {
        sums[i / 4][i % 4] = 0.0;
    }
    for (uint begin = 0; begin < k; begin += DEPTH) {
        uint i = begin + part;
        vec4 w = vec4(0), x = vec4(0);
        if (i < k) {
            w = quad(TYPE, weight_row, i, k);
            x = WIDE ? Fours(column).v[i / 4] : quad(F32, column, i, k);
        }
        barrier();
        [[unroll]] for (uint j = 0; j < 4; j++) {
            weights[part + j][mine] = w[j];
            inputs[part + j][mine] = x[j];
        }
        barrier();
        [[unroll]] for (uint l = 0; l < DEPTH; l++) {
            float u[4], v[4];
            [[unroll]] for (uint j = 0; j < 4; j++) {
                u[j] = weights[l][r + 16 * j];
                v[j] = inputs[l][c + 16 * j];
            }
            [[unroll]] for (uint j = 0; j < 16; j++) {
                sums[j / 4][j % 4] = fma(u[j / 4], v[j % 4], sums[j / 4][j % 4]);
            }
        }
    }
}
