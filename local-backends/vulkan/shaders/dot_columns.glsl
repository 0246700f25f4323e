// Products of some rows of weights, which are blocks, with some columns of signed bytes.

#define WHOLE_NUMBERS true
#include "sums.glsl"
#include "packed.glsl"
#include "dot.glsl"

const uvec2 ONES = uvec2(0x01010101);

// What an invocation needs of a column: two octets' low and high fours, what their sums begin with, the scales of either, and these times the sums of their bytes.
struct Part {
    Pair fours;
    ivec2 first;
    vec2 scale, sum;
};

Part part_of(uvec2 column, uvec2 at, uint n) {
    Columns x = columns_at(column, n, at);
    vec2 scale = uintBitsToFloat(uvec2(x.of_low.x, x.of_high.x)), sum = vec2(0);
    if (offsets_vary()) {
        sum = scale * vec2(dot8(x.fours.low, ONES), dot8(x.fours.high, ONES));
    }
    ivec2 first = ivec2(0);
    if (ADDED != 0) {
        first = ivec2(dot8(x.fours.low, uvec2(ADDED)), dot8(x.fours.high, uvec2(ADDED)));
    }
    return Part(x.fours, first, scale, sum);
}

// Products of the rows with the columns, which have `n` elements.
void multiply(uint n) {
    make_pairs();
    [[unroll]] for (uint i = 0; i < RESULTS; i++) {
        sums[i] = 0.0;
    }
    // Two octets share their scales.
    for (uint u = gl_LocalInvocationID.x * 2; 8 * u < n; u += LANES * 2) {
        uvec2 at = octet_places(TYPE, u);
        Pair w[ROWS];
        Scales s[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            w[r] = signed_pair(rows[r], u);
            s[r] = scales(TYPE, rows[r], u);
        }
        [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
            Part x = part_of(columns[c], at, n);
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                int low = dot8(w[r].low, x.fours.low, x.first.x);
                // That of both, where they share a scale.
                int sum = dot8(w[r].high, x.fours.high, x.first.y + (has_one_scale() ? low : 0));
                uint i = r * COLUMNS + c;
                sums[i] += has_one_scale() ? s[r].scale.x * (x.scale.x * float(sum)) : dot(s[r].scale, x.scale * vec2(low, sum));
                if (offsets_vary()) {
                    sums[i] += has_one_scale() ? s[r].offset.x * (x.sum.x + x.sum.y) : dot(s[r].offset, x.sum);
                }
            }
        }
    }
    reduce();
}
