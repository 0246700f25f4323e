// How halves.cu leaves columns: of each its elements, and zeros up to a multiple of 32; behind all of them a scale for each.

const u32 DEPTH = 32;

INLINE u32 padded_length(u32 n) {
    return (n + DEPTH - 1) / DEPTH * DEPTH;
}

INLINE float* column_scales(const Node& node, u32 columns, u32 n) {
    return (float*)(node.table + u64(columns) * padded_length(n) * 2);
}

// 2^e, for e from -126 to 127.
INLINE float power_of_two(int e) {
    return __uint_as_float((e + 127) << 23);
}

// An e with x < 2^e; of what is no number as of 2^-127.
INLINE int exponent_above(float x) {
    int e = __float_as_uint(x) >> 23 & 0xff;
    return e == 0xff ? -126 : e - 126;
}
