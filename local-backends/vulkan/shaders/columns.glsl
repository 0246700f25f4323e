// Products of some rows of weights with some columns, by a workgroup whose invocations share the length.

layout(constant_id = 1) const uint TYPE = F32;
// Rows and columns of a workgroup.
layout(constant_id = 2) const uint ROWS = 1;
layout(constant_id = 3) const uint COLUMNS = 1;
// Whether columns are whole vectors of 16 bytes, in place and length.
layout(constant_id = 4) const bool WIDE = false;

const uint RESULTS = ROWS * COLUMNS;
// Columns up to which scales and offsets are applied to sums; with more of them it is less to apply them to the weights.
const uint FEW = 4;

shared float parts[LANES * RESULTS];

// Where rows and columns begin; what is behind the last one stands for the last one.
uvec2 rows[ROWS], columns[COLUMNS];
// The sums of this invocation, those of a row one behind the other.
float sums[RESULTS];

vec4 of_column(uvec2 column, uint i, uint n) {
    return WIDE ? Fours(column).v[i / 4] : quad(F32, column, i, n);
}

// The sums of the workgroup, in the first parts.
void reduce() {
    for (uint i = 0; i < RESULTS; i++) {
        float sum = subgroupAdd(sums[i]);
        if (subgroupElect()) {
            parts[gl_SubgroupID * RESULTS + i] = sum;
        }
    }
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
    [[unroll]] for (uint i = 0; i < RESULTS; i++) {
        sums[i] = 0.0;
    }
    for (uint u = gl_LocalInvocationID.x; 8 * u < n; u += LANES) {
        uvec2 at = octet_places(TYPE, u);
        vec4 x[COLUMNS], y[COLUMNS];
        [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
            x[c] = of_column(columns[c], at.x, n);
            y[c] = at.y < n || TYPE > I32 ? of_column(columns[c], at.y, n) : vec4(0);
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            Octet w = octet(TYPE, rows[r], u, n);
            if (COLUMNS > FEW) {
                w.low = w.scale.x * w.low + w.offset.x;
                w.high = w.scale.y * w.high + w.offset.y;
            }
            [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
                vec2 sum = vec2(dot(w.low, x[c]), dot(w.high, y[c]));
                if (COLUMNS > FEW) {
                    sums[r * COLUMNS + c] += sum.x + sum.y;
                } else {
                    vec2 all = has_offset(TYPE) ? vec2(dot(x[c], vec4(1)), dot(y[c], vec4(1))) : vec2(0);
                    sums[r * COLUMNS + c] += dot(w.scale, sum) + dot(w.offset, all);
                }
            }
        }
    }
    reduce();
}
