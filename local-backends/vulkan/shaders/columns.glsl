// Products of some rows of weights with some columns of floats.

#include "sums.glsl"

// Columns up to which scales and offsets are applied to sums; with more of them it is less to apply them to the weights.
const uint FEW = 4;
// Octets of an invocation: two share their scales, but with many columns they do not fit a card's registers.
const uint OCTETS = COLUMNS > 2 ? 1 : 2;

uvec2 column_at(Tensor b, uint i1, uint i2, uint i3) {
    return row(b, i1, i2, i3);
}

vec4 of_column(uvec2 column, uint i, uint n) {
    return WIDE ? Fours(column).v[i / 4] : quad(F32, column, i, n);
}

// Products of the rows with the columns, which have `n` elements.
void multiply(uint n) {
    make_table();
    [[unroll]] for (uint i = 0; i < RESULTS; i++) {
        sums[i] = 0.0;
    }
    for (uint u = gl_LocalInvocationID.x * OCTETS; 8 * u < n; u += LANES * OCTETS) {
        vec4 x[COLUMNS][OCTETS], y[COLUMNS][OCTETS];
        [[unroll]] for (uint o = 0; o < OCTETS; o++) {
            uvec2 at = octet_places(TYPE, u + o);
            [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
                x[c][o] = at.x < n || TYPE > I32 ? of_column(columns[c], at.x, n) : vec4(0);
                y[c][o] = at.y < n || TYPE > I32 ? of_column(columns[c], at.y, n) : vec4(0);
            }
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            Scales s = scales(TYPE, rows[r], u);
            Octet w[OCTETS];
            if (OCTETS == 2 && TYPE > I32 && TYPE != Q8_K) {
                Octet both[2] = octet_pair(TYPE, rows[r], u);
                w[0] = both[0];
                w[OCTETS - 1] = both[1];
            } else {
                [[unroll]] for (uint o = 0; o < OCTETS; o++) {
                    w[o] = octet(TYPE, rows[r], u + o, n);
                }
            }
            [[unroll]] for (uint o = 0; o < OCTETS && COLUMNS > FEW; o++) {
                w[o] = scaled(w[o], s);
            }
            [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
                vec2 sum = vec2(0), all = vec2(0);
                [[unroll]] for (uint o = 0; o < OCTETS; o++) {
                    [[unroll]] for (uint i = 0; i < 4; i++) {
                        sum = fma(vec2(w[o].low[i], w[o].high[i]), vec2(x[c][o][i], y[c][o][i]), sum);
                        all += has_offset(TYPE) ? vec2(x[c][o][i], y[c][o][i]) : vec2(0);
                    }
                }
                sums[r * COLUMNS + c] += COLUMNS > FEW ? sum.x + sum.y : dot(s.scale, sum) + dot(s.offset, all);
            }
        }
    }
    reduce();
}
