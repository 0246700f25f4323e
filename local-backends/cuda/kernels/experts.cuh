// What the passes of MUL_MAT_ID with many tokens leave for one another, behind the columns that halves.cu has made: how many tiles there are, of
// each its expert, its first column and the one behind its last, and the columns of all tiles. A column is a pair of slot and token.

// Columns of a tile.
const u32 TILE = 64;
// Numbers in front of the tiles, and of a tile.
const u32 HEAD = 4, TILE_NUMBERS = 4;

INLINE u32* tiles_of(const Node& node) {
    return (u32*)node.table + node.p[4];
}

// Where the columns begin.
INLINE u32* order_of(const Node& node) {
    return tiles_of(node) + HEAD + node.p[5] * TILE_NUMBERS;
}
