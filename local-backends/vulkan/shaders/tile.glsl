// A tile of a product: 64 rows of weights with 64 columns, by way of shared memory, 4 x 4 results an invocation. LANES is 256.

layout(constant_id = 1) const uint TYPE = F32;
// Whether columns are whole vectors of 16 bytes, in place and length.
layout(constant_id = 2) const bool WIDE = false;

const uint TILE = 64, DEPTH = 16;

// Weights and columns, the length first; a place more than a tile, so that neighbours are in different banks.
shared float weights[DEPTH][TILE + 1], inputs[DEPTH][TILE + 1];

// Of this invocation: rows of the tile first, then columns.
float sums[4][4];

// The row or the column of the tile of which an invocation brings elements.
uint brought() {
    return gl_LocalInvocationID.x / 4;
}

// Row and column of the tile that a result stands for.
uvec2 place_of(uint result) {
    uint lane = gl_LocalInvocationID.x;
    return uvec2(lane % 16 + result / 4 * 16, lane / 16 + result % 4 * 16);
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
