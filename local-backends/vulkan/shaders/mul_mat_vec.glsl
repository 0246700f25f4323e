// MUL_MAT with few columns: weights are read once for all of them. With an ADD behind it, whose other source is the third.

// What is added to a result, which may repeat what there is.
float added_to(uvec4 place) {
    Tensor t = tensor(2);
    if (!is_there(t)) {
        return 0.0;
    }
    uvec4 i = place % t.ne;
    return read_f32(plus(row(t, i.y, i.z, i.w), i.x, t.nb.x));
}

void main() {
    Tensor a = tensor(0), b = tensor(1), y = tensor(RESULT);
    uint groups = (y.ne.x + ROWS - 1) / ROWS, g = group();
    uint m = g % groups * ROWS, batch = g / groups;
    uint i2 = batch % y.ne.z, i3 = batch / y.ne.z;
    if (i3 >= y.ne.w) {
        return;
    }
    // Extents of 0 stand for weights that are not read.
    uvec2 repeats = max(y.ne.zw / max(a.ne.zw, 1), 1);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        rows[r] = row(a, min(m + r, y.ne.x - 1), i2 / repeats.x, i3 / repeats.y);
    }
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
        columns[c] = column_at(b, min(c, y.ne.y - 1), i2, i3);
    }
    multiply(a.ne.x);
    for (uint i = gl_LocalInvocationID.x; i < RESULTS; i += LANES) {
        uint r = m + i / COLUMNS, c = i % COLUMNS;
        if (r < y.ne.x && c < y.ne.y) {
            write_f32(plus(row(y, c, i2, i3), r, 4), parts[i] + added_to(uvec4(r, c, i2, i3)));
        }
    }
}
