// MUL_MAT with many columns: tiles of 64 x 64 in shared memory, 4 x 4 results an invocation. LANES is 256.
#version 460

#include "common.glsl"
#include "blocks.glsl"

layout(constant_id = 1) const uint TYPE = F32;
layout(constant_id = 4) const bool WIDE = false;

const uint TILE = 64, DEPTH = 16;

// Weights and columns, the length first; a place more than a tile, so that neighbours are in different banks.
shared float weights[DEPTH][TILE + 1], inputs[DEPTH][TILE + 1];

void main() {
    Tensor a = tensor(0), b = tensor(1), y = tensor(RESULT);
    uint across = (y.ne.x + TILE - 1) / TILE, down = (y.ne.y + TILE - 1) / TILE, g = group();
    uint m = g % across * TILE, n = g / across % down * TILE, batch = g / across / down, k = a.ne.x;
    uint i2 = batch % y.ne.z, i3 = batch / y.ne.z, lane = gl_LocalInvocationID.x;
    if (i3 >= y.ne.w) {
        return;
    }
    // Extents of 0 stand for weights that are not read.
    uvec2 repeats = max(y.ne.zw / max(a.ne.zw, 1), 1);
    // An invocation brings four elements of a row and of a column; what is behind the last stands for the last.
    uint mine = lane / 4, part = lane % 4 * 4;
    uvec2 weight_row = row(a, min(m + mine, y.ne.x - 1), i2 / repeats.x, i3 / repeats.y);
    uvec2 column = row(b, min(n + mine, y.ne.y - 1), i2, i3);
    uint r = lane % 16, c = lane / 16;
    float sums[4][4];
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
    [[unroll]] for (uint j = 0; j < 16; j++) {
        uint to_row = m + r + j / 4 * 16, to_column = n + c + j % 4 * 16;
        if (to_row < y.ne.x && to_column < y.ne.y) {
            write_f32(plus(row(y, to_column, i2, i3), to_row, 4), sums[j / 4][j % 4]);
        }
    }
}
