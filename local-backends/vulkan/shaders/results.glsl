// What an invocation has of a tile of a product, which is 64 rows of weights with 64 columns: 4 x 4 results. LANES is 256.

const uint TILE = 64;

// Of this invocation: rows of the tile first, then columns.
float sums[4][4];

// The row or the column of the tile of which an invocation brings elements.
uint brought() {
    return gl_LocalInvocationID.x / 4;
}

// Row and column of the tile that a result stands for.
uvec2 place_of(uint result) {
    uint lane = gl_LocalInvocationID.x;
    return uvec2(lane % 16 + result / 4 * 16, lane / 16 + result % 4 * 16);
}
