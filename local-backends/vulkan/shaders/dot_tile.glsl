// A tile of a product of weights that are blocks with columns of signed bytes, by way of shared memory.

layout(constant_id = 1) const uint TYPE = Q4_0;
// Whether rows of weights begin at whole words, and have whole pairs of octets.
layout(constant_id = 2) const bool ROWS_ARE_WHOLE = false;
#define WHOLE ROWS_ARE_WHOLE
#define TABLE_TYPE TYPE
#define WHOLE_NUMBERS true

#include "blocks.glsl"
#include "octets.glsl"
#include "packed.glsl"
#include "dot.glsl"
#include "results.glsl"

// Elements of a step: eight octets, as 16 words. Words that share a scale lie side by side: four, or eight.
const uint DEPTH = 64;

// Fours of words that share a scale, of rows as of columns.
const uint FOURS = TYPE == Q2_K || TYPE == Q3_K || TYPE == Q6_K ? 1 : 2;

// The words of rows and columns, in fours. What neighbours read lies side by side, and what an invocation reads at distances that fit into the instruction.
shared uvec4 weights[4][TILE], inputs[4][TILE];
// Of rows scale and offset, for the words that share them.
shared vec2 weight_scales[4 / FOURS][TILE];
// Of columns the scale of eight words, and of the words that share a row's scale what their sums begin with, or the scale times the sum of their bytes.
shared float input_scales[2][TILE];
shared uint input_sums[4 / FOURS][TILE];

// Where the fours of octet `o` of a step lie among its words.
uvec2 words_of(uint o) {
    return has_one_scale() ? uvec2(o / 4 * 8 + (o & 3), o / 4 * 8 + (o & 3) + 4) : uvec2(o, 8 + o);
}

// The sum of a column's bytes at element `i`, as rows need it, if they do.
uint input_sum(uvec2 group, uint i) {
    if (!offsets_vary() && ADDED == 0) {
        return 0;
    }
    int low = bitfieldExtract(int(group.y), 0, 16), high = int(group.y) >> 16;
    int sum = FOURS == 2 ? low + high : (i & 16) == 0 ? low : high;
    return ADDED == 0 ? floatBitsToUint(uintBitsToFloat(group.x) * float(sum)) : uint(sum * (int(ADDED) >> 24));
}

// Two octets of weights and of a column, with their scales.
struct Brought {
    Pair w;
    Scales scales;
    Columns x;
    uvec2 at;
};

// What is behind the end is 0.
Brought bring(uvec2 weight_row, uvec2 column, uint u, uint k) {
    Pair none = Pair(uvec2(0), uvec2(0));
    Brought b = Brought(none, Scales(vec2(0), vec2(0)), Columns(none, uvec2(0), uvec2(0)), uvec2(0));
    if (8 * u < k) {
        b.at = octet_places(TYPE, u);
        b.w = signed_pair(weight_row, u);
        b.scales = scales(TYPE, weight_row, u);
        b.x = columns_at(column, k, b.at);
    }
    return b;
}

// Leaves two octets in shared memory, of row and column `mine`, their fours from these words of a step on.
void leave(Brought b, uvec2 at, uint mine) {
    [[unroll]] for (uint j = 0; j < 2; j++) {
        weights[at.x / 4][mine][(at.x & 3) + j] = b.w.low[j];
        weights[at.y / 4][mine][(at.y & 3) + j] = b.w.high[j];
        inputs[at.x / 4][mine][(at.x & 3) + j] = b.x.fours.low[j];
        inputs[at.y / 4][mine][(at.y & 3) + j] = b.x.fours.high[j];
    }
    // The octets before have the same scales where these are not the first of their words.
    if (at.x % (4 * FOURS) != 0) {
        return;
    }
    uvec2 of = at / (4 * FOURS);
    weight_scales[of.x][mine] = vec2(b.scales.scale.x, b.scales.offset.x);
    input_sums[of.x][mine] = input_sum(b.x.of_low, b.at.x);
    if (!has_one_scale()) {
        weight_scales[of.y][mine] = vec2(b.scales.scale.y, b.scales.offset.y);
        input_sums[of.y][mine] = input_sum(b.x.of_high, b.at.y);
    }
    if (at.x % 8 == 0) {
        input_scales[at.x / 8][mine] = uintBitsToFloat(b.x.of_low.x);
        if (!has_one_scale()) {
            input_scales[at.y / 8][mine] = uintBitsToFloat(b.x.of_high.x);
        }
    }
}

// Adds the products of eight words, which share a scale of columns.
void add(uint eight) {
    uint lane = gl_LocalInvocationID.x, r = lane % 16, c = lane / 16;
    // Of each result the sum, or two, each times its row's scale; where there is one, the rows' scales come later: a row's and a column's may be far apart.
    float scaled[16], of_rows[4];
    // Loops of known lengths, left early: not every compiler unrolls one in a function whose bounds are the pipeline's constants.
    [[unroll]] for (uint part = 0; part < 2; part++) {
        if (part * FOURS >= 2) {
            break;
        }
        uint of = eight * (2 / FOURS) + part;
        vec2 of_row[4];
        uint of_column[4];
        [[unroll]] for (uint j = 0; j < 4; j++) {
            of_row[j] = weight_scales[of][r + 16 * j];
            of_rows[j] = of_row[j].x;
            of_column[j] = input_sums[of][c + 16 * j];
        }
        int products[16];
        [[unroll]] for (uint j = 0; j < 16; j++) {
            products[j] = ADDED == 0 ? 0 : int(of_column[j % 4]);
        }
        [[unroll]] for (uint i = 0; i < 2; i++) {
            if (i == FOURS) {
                break;
            }
            uint f = of * FOURS + i;
            uvec4 w[4], x[4];
            [[unroll]] for (uint j = 0; j < 4; j++) {
                w[j] = weights[f][r + 16 * j];
                x[j] = inputs[f][c + 16 * j];
            }
            [[unroll]] for (uint j = 0; j < 16; j++) {
                products[j] = dot8(w[j / 4].zw, x[j % 4].zw, dot8(w[j / 4].xy, x[j % 4].xy, products[j]));
            }
        }
        [[unroll]] for (uint j = 0; j < 16; j++) {
            float product = float(products[j]), scale = of_row[j / 4].x;
            scaled[j] = FOURS == 2 ? product : part == 0 ? product * scale : fma(product, scale, scaled[j]);
            if (offsets_vary()) {
                sums[j / 4][j % 4] = fma(of_row[j / 4].y, uintBitsToFloat(of_column[j % 4]), sums[j / 4][j % 4]);
            }
        }
    }
    [[unroll]] for (uint j = 0; j < 16; j++) {
        float scale = input_scales[eight][c + 16 * (j % 4)], sum = sums[j / 4][j % 4];
        sums[j / 4][j % 4] = FOURS == 2 ? fma(of_rows[j / 4], scale * scaled[j], sum) : fma(scaled[j], scale, sum);
    }
}

// Sums over `k` elements; `weight_row` and `column` are those that this invocation brings.
void multiply_tile(uvec2 weight_row, uvec2 column, uint k) {
    uint mine = brought(), o = gl_LocalInvocationID.x % 4 * 2;
    uvec2 at = words_of(o);
    make_pairs();
    [[unroll]] for (uint i = 0; i < 16; i++) {
        sums[i / 4][i % 4] = 0.0;
    }
    for (uint begin = 0; begin < k; begin += DEPTH) {
        Brought b = bring(weight_row, column, begin / 8 + o, k);
        barrier();
        leave(b, at, mine);
        barrier();
        add(0);
        add(1);
    }
}
