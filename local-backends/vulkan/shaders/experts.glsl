// What the passes of MUL_MAT_ID with many tokens leave for one another: tiles, each of columns of one expert, and the columns of all tiles.

// Numbers in front of the tiles, and of a tile: its expert, its first column, and the one behind its last.
const uint HEAD = 4, TILE_NUMBERS = 4;

// Where the places of the columns begin: `most` tiles are before them.
uint order_begin(uint most) {
    return HEAD + most * TILE_NUMBERS;
}

uint scratch(uint i) {
    return word(plus(constants(), i, 4));
}

void set_scratch(uint i, uint value) {
    Word(plus(constants(), i, 4)).w = value;
}
