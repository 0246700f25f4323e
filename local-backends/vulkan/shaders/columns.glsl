// Products of some rows of weights with some columns, by a workgroup whose invocations share the length.

layout(constant_id = 1) const uint TYPE = F32;
#define TABLE_TYPE TYPE
#include "octets.glsl"

// Rows and columns of a workgroup.
layout(constant_id = 2) const uint ROWS = 1;
layout(constant_id = 3) const uint COLUMNS = 1;
// Whether columns are whole vectors of 16 bytes, in place and length.
layout(constant_id = 4) const bool WIDE = false;

const uint RESULTS = ROWS * COLUMNS;
// Columns up to which scales and offsets are applied to sums; with more of them it is less to apply them to the weights.
const uint FEW = 4;
// Octets of an invocation: two share their scales, but with many columns they do not fit a card's registers.
const uint OCTETS = COLUMNS > 2 ? 1 : 2;

shared float parts[LANES * RESULTS];

// Where rows and columns begin; what is behind the last one stands for the last one.
uvec2 rows[ROWS], columns[COLUMNS];
// The sums of this invocation, those of a row one behind the other.
float sums[RESULTS];

vec4 of_column(uvec2 column, uint i, uint n) {
    return WIDE ? Fours(column).v[i / 4] : quad(F32, column, i, n);
}

void reduce_one(uint i) {
    float sum = subgroupAdd(sums[i]);
    if (subgroupElect()) {
        parts[gl_SubgroupID * RESULTS + i] = sum;
    }
}

// Written out: where a compiler leaves a loop, as NVIDIA's does, sums are kept in memory.
#define REDUCE(i) if (i < RESULTS) { reduce_one(i); }
#define REDUCE_4(i) REDUCE(i) REDUCE(i + 1) REDUCE(i + 2) REDUCE(i + 3)
#define REDUCE_16(i) REDUCE_4(i) REDUCE_4(i + 4) REDUCE_4(i + 8) REDUCE_4(i + 12)

// The sums of the workgroup, in the first parts. There are 32 at most.
void reduce() {
    REDUCE_16(0)
    REDUCE_16(16)
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < RESULTS; i += LANES) {
        float sum = parts[i];
        for (uint j = 1; j < gl_NumSubgroups; j++) {
            sum += parts[j * RESULTS + i];
        }
        parts[i] = sum;
    }
    barrier();
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
            [[unroll]] for (uint o = 0; o < OCTETS; o++) {
                w[o] = octet(TYPE, rows[r], u + o, n);
                if (COLUMNS > FEW) {
                    w[o] = scaled(w[o], s);
                }
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
