// MUL_MAT_ID with many tokens: a workgroup for a tile of rows and columns of one expert.

void main() {
    Tensor a = tensor(0), b = tensor(1), y = tensor(RESULT);
    uint across = (y.ne.x + TILE - 1) / TILE, g = group(), m = g % across * TILE, tile = g / across;
    if (tile >= scratch(0)) {
        return;
    }
    uint at = HEAD + tile * TILE_NUMBERS, order = order_begin(param(0));
    uint expert = scratch(at), begin = scratch(at + 1), end = scratch(at + 2);
    // What is behind the last row or column stands for the last.
    // The number of a column may be anything where another queue of the client has written the ids meanwhile.
    uint pairs = y.ne.y * y.ne.z, pair = min(scratch(order + min(begin + brought(), end - 1)), pairs - 1);
    uvec2 column = column_at(b, pair % y.ne.y % b.ne.y, pair / y.ne.y, 0);
    multiply_tile(row(a, min(m + brought(), y.ne.x - 1), expert, 0), column, a.ne.x);
    [[unroll]] for (uint j = 0; j < 16; j++) {
        uvec2 place = place_of(j);
        if (m + place.x < y.ne.x && begin + place.y < end) {
            uint to = scratch(order + begin + place.y);
            if (to < pairs) {
                write_f32(plus(row(y, to % y.ne.y, to / y.ne.y, 0), m + place.x, 4), sums[j / 4][j % 4]);
            }
        }
    }
}
