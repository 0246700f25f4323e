// A column of a product as signed bytes: how it is laid out, made and read. A number is its byte times the scale of its group of 32.
//
// Of `n` elements, n a multiple of 32: n bytes, and behind them a `Group` for each 32. A column begins at a multiple of 32, a sector of memory. The host makes room
// for as many bytes (src/launch.rs).

struct Group {
    float scale;
    // Of the first sixteen bytes in the low half, of the others in the high half, as signed numbers of 16 bits.
    u32 sums;
};

INLINE u64 packed_bytes(u32 n) {
    return (u64(n) + n / 4 + 31) / 32 * 32;
}

// Makes elements i to i + 3 of a column of `n`. All lanes of a warp take part, with neighbouring i, i of the first a multiple of 128; those behind
// the end write nothing. Any kernel that has a row of floats can leave it this way.
INLINE void quantize_four(u8* column, u32 n, u32 i, Four x) {
    float most = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
    // What is no number makes its group's products none: a maximum leaves NaN out.
    u32 finite = isfinite(x.x) && isfinite(x.y) && isfinite(x.z) && isfinite(x.w);
    for (int offset = 4; offset > 0; offset /= 2) {
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, offset));
        finite &= __shfl_xor_sync(ALL_LANES, finite, offset);
    }
    float over = finite && most > 0.0f ? 127.0f / most : 0.0f;
    int a = __float2int_rn(x.x * over), b = __float2int_rn(x.y * over), c = __float2int_rn(x.z * over), d = __float2int_rn(x.w * over);
    u32 sum = a + b + c + d;
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    u32 other = __shfl_xor_sync(ALL_LANES, sum, 4);
    if (i >= n) {
        return;
    }
    write_word(column + i, (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 | d << 24);
    if (i % 32 == 0) {
        Group* group = (Group*)(column + n) + i / 32;
        *group = {finite ? most / 127.0f : __uint_as_float(0x7fc00000), (sum & 0xffff) | other << 16};
    }
}

// The parameter of a norm and of a gated unit that says that its result is left as a column, too.
const u32 PACKED = 5;

// Makes element i of a column of `n`, i of the first lane a multiple of 32: what `quantize_four` does, where a lane has one element.
INLINE void quantize_one(u8* column, u32 n, u32 i, float x) {
    float most = max_of_warp(fabsf(x));
    bool finite = __all_sync(ALL_LANES, isfinite(x));
    float over = finite && most > 0.0f ? 127.0f / most : 0.0f;
    int byte = __float2int_rn(x * over);
    u32 sum = byte;
    for (int offset = 8; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    }
    u32 other = __shfl_xor_sync(ALL_LANES, sum, 16);
    column[i] = byte;
    if (i % 32 == 0) {
        Group* group = (Group*)(column + n) + i / 32;
        *group = {finite ? most / 127.0f : __uint_as_float(0x7fc00000), (sum & 0xffff) | other << 16};
    }
}

// Sixteen bytes of a column, their scale, and their sum.
struct Sixteen {
    uint4 bytes;
    float scale;
    int sum;
};

// Sixteen bytes with what their group says of them.
INLINE Sixteen sixteen(uint4 bytes, uint2 group, bool is_second) {
    int sum = is_second ? int(group.y) >> 16 : int(group.y << 16) >> 16;
    return {bytes, __uint_as_float(group.x), sum};
}

INLINE Sixteen sixteen_of(const u8* column, u32 n, u32 first) {
    return sixteen(*(const uint4*)(column + first), *(const uint2*)(column + n + first / 32 * 8), first % 32 != 0);
}
