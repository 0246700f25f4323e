// MUL_MAT with few columns: weights are read once for all of them. With an ADD behind it, whose other source is the third, or for a gated unit: then half of a
// workgroup's rows are the gate's, and the others those of what it gates, the fourth source.

#include "activations.glsl"

// The kind of a gated unit, from 1 on.
layout(constant_id = 6) const uint GATE = 0;
// Its numbers are these parameters.
const uint GATE_PARAMS = 2;

// Results of a column.
const uint MADE = GATE > 0 ? ROWS / 2 : ROWS;

// What is added to a result, which may repeat what there is.
float added_to(uvec4 place) {
    Tensor t = tensor(2);
    if (!is_there(t)) {
        return 0.0;
    }
    uvec4 i = place % t.ne;
    return read_f32(plus(row(t, i.y, i.z, i.w), i.x, t.nb.x));
}

// Result `i` of the workgroup, which is at this place.
float result_of(uint i, uvec4 place) {
    if (GATE == 0) {
        return parts[i] + added_to(place);
    }
    vec2 numbers = vec2(number_param(GATE_PARAMS), number_param(GATE_PARAMS + 1));
    return gated(GATE - 1, numbers, parts[i], parts[MADE * COLUMNS + i]);
}

void main() {
    Tensor a = tensor(0), b = tensor(1), up = tensor(3), y = tensor(RESULT);
    uint groups = (y.ne.x + MADE - 1) / MADE, g = group();
    uint m = g % groups * MADE, batch = g / groups;
    uint i2 = batch % y.ne.z, i3 = batch / y.ne.z;
    if (i3 >= y.ne.w) {
        return;
    }
    // Extents of 0 stand for weights that are not read.
    uvec2 repeats = max(y.ne.zw / max(a.ne.zw, 1), 1);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        uint i1 = min(m + r % MADE, y.ne.x - 1);
        rows[r] = r < MADE ? row(a, i1, i2 / repeats.x, i3 / repeats.y) : row(up, i1, i2 / repeats.x, i3 / repeats.y);
    }
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
        columns[c] = column_at(b, min(c, y.ne.y - 1), i2, i3);
    }
    multiply(a.ne.x);
    for (uint i = gl_LocalInvocationID.x; i < MADE * COLUMNS; i += LANES) {
        uint r = m + i / COLUMNS, c = i % COLUMNS;
        if (r < y.ne.x && c < y.ne.y) {
            write_f32(plus(row(y, c, i2, i3), r, 4), result_of(i, uvec4(r, c, i2, i3)));
        }
    }
}
