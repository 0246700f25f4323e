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

// The words of rows and columns, four more than needed, so that neighbours are in different banks.
shared uvec4 weights[TILE][5], inputs[TILE][5];
// For the words that share them: of rows scale and offset, of columns the scale, and this times the sum of all bytes.
shared vec2 weight_scales[TILE][4 / FOURS], input_scales[TILE][4 / FOURS];

// Where the fours of octet `o` of a step lie among its words.
uvec2 words_of(uint o) {
    return has_one_scale() ? uvec2(o / 4 * 8 + (o & 3), o / 4 * 8 + (o & 3) + 4) : uvec2(o, 8 + o);
}

vec2 sums_of(uint both) {
    return vec2(bitfieldExtract(int(both), 0, 16), bitfieldExtract(int(both), 16, 16));
}

// The scale of the four of a column that is at element `i`, and this times the sum of what shares it.
vec2 input_scale(uvec2 group, uint i) {
    float scale = uintBitsToFloat(group.x);
    vec2 halves = sums_of(group.y);
    return vec2(scale, scale * (FOURS == 2 ? halves.x + halves.y : (i & 16) == 0 ? halves.x : halves.y));
}

// Two octets of weights and of a column, with their scales.
struct Brought {
    Pair w, x;
    Scales scales;
    vec2 of_low, of_high;
};

// What is behind the end is 0.
Brought bring(uvec2 weight_row, uvec2 column, uint u, uint k) {
    Pair none = Pair(uvec2(0), uvec2(0));
    Brought b = Brought(none, none, Scales(vec2(0), vec2(0)), vec2(0), vec2(0));
    if (8 * u < k) {
        uvec2 at = octet_places(TYPE, u);
        b.w = signed_pair(weight_row, u);
        b.scales = scales(TYPE, weight_row, u);
        b.x = Pair(Twos(column).v[at.x / 8], Twos(column).v[at.y / 8]);
        b.of_low = input_scale(group_of(column, k, at.x), at.x);
        b.of_high = input_scale(group_of(column, k, at.y), at.y);
    }
    return b;
}

// Leaves octets `o` and `o + 1` of a step in shared memory, those of row and column `mine`.
void leave(Brought b, uint o, uint mine) {
    uvec2 at = words_of(o);
    [[unroll]] for (uint j = 0; j < 2; j++) {
        weights[mine][at.x / 4][(at.x & 3) + j] = b.w.low[j];
        weights[mine][at.y / 4][(at.y & 3) + j] = b.w.high[j];
        inputs[mine][at.x / 4][(at.x & 3) + j] = b.x.low[j];
        inputs[mine][at.y / 4][(at.y & 3) + j] = b.x.high[j];
    }
    // The octets before have the same scales where these are not the first of their words.
    if (at.x % (4 * FOURS) == 0) {
        at /= 4 * FOURS;
        weight_scales[mine][at.x] = vec2(b.scales.scale.x, b.scales.offset.x);
        weight_scales[mine][at.y] = vec2(b.scales.scale.y, b.scales.offset.y);
        input_scales[mine][at.x] = b.of_low;
        input_scales[mine][at.y] = b.of_high;
    }
}

// Adds products of the words that share these scales.
void add_scaled(int products[16], uint of) {
    uint lane = gl_LocalInvocationID.x, r = lane % 16, c = lane / 16;
    vec2 of_row[4], of_column[4];
    [[unroll]] for (uint j = 0; j < 4; j++) {
        of_row[j] = weight_scales[r + 16 * j][of];
        of_column[j] = input_scales[c + 16 * j][of];
    }
    [[unroll]] for (uint j = 0; j < 16; j++) {
        float sum = fma(of_row[j / 4].x, of_column[j % 4].x * float(products[j]), sums[j / 4][j % 4]);
        sums[j / 4][j % 4] = has_offsets() ? fma(of_row[j / 4].y, of_column[j % 4].y, sum) : sum;
    }
}

// Adds the products of a step.
void add() {
    uint lane = gl_LocalInvocationID.x, r = lane % 16, c = lane / 16;
    int products[16];
    [[unroll]] for (uint f = 0; f < 4; f++) {
        uvec4 w[4], x[4];
        [[unroll]] for (uint j = 0; j < 4; j++) {
            w[j] = weights[r + 16 * j][f];
            x[j] = inputs[c + 16 * j][f];
        }
        [[unroll]] for (uint j = 0; j < 16; j++) {
            int product = f % FOURS == 0 ? 0 : products[j];
            product += dot8(w[j / 4].xy, x[j % 4].xy) + dot8(w[j / 4].zw, x[j % 4].zw);
            products[j] = product;
        }
        if (f % FOURS == FOURS - 1) {
            add_scaled(products, f / FOURS);
        }
    }
}

// Sums over `k` elements; `weight_row` and `column` are those that this invocation brings.
void multiply_tile(uvec2 weight_row, uvec2 column, uint k) {
    uint mine = brought(), o = gl_LocalInvocationID.x % 4 * 2;
    make_pairs();
    [[unroll]] for (uint i = 0; i < 16; i++) {
        sums[i / 4][i % 4] = 0.0;
    }
    for (uint begin = 0; begin < k; begin += DEPTH) {
        Brought b = bring(weight_row, column, begin / 8 + o, k);
        barrier();
        leave(b, o, mine);
        barrier();
        add();
    }
}
