// MUL_MAT with many columns: a workgroup for a tile.

void main() {
    Tensor a = tensor(0), b = tensor(1), y = tensor(RESULT);
    uint across = (y.ne.x + TILE - 1) / TILE, down = (y.ne.y + TILE - 1) / TILE, g = group();
    uint m = g % across * TILE, n = g / across % down * TILE, batch = g / across / down;
    uint i2 = batch % y.ne.z, i3 = batch / y.ne.z;
    if (i3 >= y.ne.w) {
        return;
    }
    // Extents of 0 stand for weights that are not read.
    uvec2 repeats = max(y.ne.zw / max(a.ne.zw, 1), 1);
    // What is behind the last row or column stands for the last.
    uvec2 weight_row = row(a, min(m + brought(), y.ne.x - 1), i2 / repeats.x, i3 / repeats.y);
    multiply_tile(weight_row, column_at(b, min(n + brought(), y.ne.y - 1), i2, i3), a.ne.x);
    [[unroll]] for (uint j = 0; j < 16; j++) {
        uvec2 to = uvec2(m, n) + place_of(j);
        if (to.x < y.ne.x && to.y < y.ne.y) {
            write_f32(plus(row(y, to.y, i2, i3), to.x, 4), sums[j / 4][j % 4]);
        }
    }
}
