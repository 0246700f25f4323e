// MUL_MAT_ID: a workgroup for some rows of an expert and one column.

#include "for_all.glsl"

void main() {
    Tensor a = tensor(0), b = tensor(1), ids = tensor(2), y = tensor(RESULT);
    uint groups = (y.ne.x + ROWS - 1) / ROWS, g = group();
    uint m = g % groups * ROWS, slot = g / groups % y.ne.y, token = g / groups / y.ne.y;
    if (token >= y.ne.z) {
        return;
    }
    int expert = read_for_all(plus(plus(ids.at, slot, ids.nb.x), token, ids.nb.y));
    if (uint(expert) >= a.ne.z) {
        if (gl_LocalInvocationID.x == 0) {
            wrong(EXPERT, expert, a.ne.z);
        }
        return;
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        rows[r] = row(a, min(m + r, y.ne.x - 1), uint(expert), 0);
    }
    columns[0] = column_at(b, slot % b.ne.y, token, 0);
    multiply(a.ne.x);
    for (uint r = gl_LocalInvocationID.x; r < ROWS && m + r < y.ne.x; r += LANES) {
        write_f32(plus(row(y, slot, token, 0), m + r, 4), parts[r]);
    }
}
