// Weights of blocks as f16. A weight is `scale * (byte - bias) + offset`, where bytes have no sign; four come at a time.

template <int T>
constexpr u32 bias = T == Q4_0                                          ? 8
                     : T == Q5_0                                        ? 16
                     : T == Q3_K                                        ? 4
                     : T == Q6_K                                        ? 32
                     : T == Q8_0 || T == IQ4_NL || T == IQ4_XS || T == MXFP4 ? 128
                                                                        : 0;

template <int T>
constexpr bool has_offset = T == Q4_1 || T == Q5_1 || T == Q2_K || T == Q4_K || T == Q5_K;

// Four nibbles, a byte each, as signed bytes of a table of 16.
INLINE u32 table_bytes(u32 w, u32 a, u32 b, u32 c, u32 d) {
    u32 nibbles = __byte_perm(w | w >> 4, 0, 0x4420), which = nibbles & 0x7777;
    // The third bit of a nibble says which half of the table it is in.
    return __byte_perm(__byte_perm(a, b, which), __byte_perm(c, d, which), 0x3210 | (nibbles & 0x8888) >> 1);
}

INLINE u32 iq4_bytes(u32 w) {
    return table_bytes(w, 0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535) ^ 0x80808080;
}

// The bytes of elements j to j + 3 of a block of 32, j a multiple of 4.
template <int T>
INLINE u32 bytes_of_32(const u8* b, u32 j) {
    constexpr u32 head = T == Q4_1 ? 4 : T == Q5_0 ? 6 : T == Q5_1 ? 8 : T == MXFP4 ? 1 : 2;
    constexpr int unit = T == MXFP4 ? 1 : block_bytes<T>() % 4 == 0 ? 4 : 2;
    if constexpr (T == Q8_0) {
        return bits32<2>(b + 2 + j) ^ 0x80808080;
    }
    u32 q = bits32<unit>(b + head + (j & 15)) >> (j < 16 ? 0 : 4) & 0x0f0f0f0f;
    if constexpr (T == Q5_0 || T == Q5_1) {
        q |= spread(bits32<unit>(b + head - 4), j) << 4;
    } else if constexpr (T == IQ4_NL) {
        q = iq4_bytes(q);
    } else if constexpr (T == MXFP4) {
        q = table_bytes(q, 0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc) ^ 0x80808080;
    }
    return q;
}

// The same of a block of 256; how bits lie is said in blocks.cuh.
template <int T>
INLINE u32 bytes_of_256(const u8* b, u32 j) {
    u32 two = j / 128 * 32 + (j & 31), two_shift = (j & 127) / 32 * 2;
    u32 four = j / 64 * 32 + (j & 31), four_shift = (j & 63) / 32 * 4;
    if constexpr (T == Q2_K) {
        return bits32<4>(b + 16 + two) >> two_shift & 0x03030303;
    } else if constexpr (T == Q3_K) {
        u32 low = bits32<2>(b + 32 + two) >> two_shift & 0x03030303;
        return low | (bits32<2>(b + (j & 31)) >> (j / 32) & 0x01010101) << 2;
    } else if constexpr (T == Q4_K) {
        return bits32<4>(b + 16 + four) >> four_shift & 0x0f0f0f0f;
    } else if constexpr (T == Q5_K) {
        u32 low = bits32<4>(b + 48 + four) >> four_shift & 0x0f0f0f0f;
        return low | (bits32<4>(b + 16 + (j & 31)) >> (j / 32) & 0x01010101) << 4;
    } else if constexpr (T == Q6_K) {
        u32 r = j & 127, low = bits32<2>(b + j / 128 * 64 + (r & 63)) >> (4 * (r / 64)) & 0x0f0f0f0f;
        return low | (bits32<2>(b + 128 + two) >> two_shift & 0x03030303) << 4;
    } else {
        return iq4_bytes(bits32<4>(b + 8 + j / 32 * 16 + (j & 15)) >> ((j & 31) < 16 ? 0 : 4) & 0x0f0f0f0f);
    }
}

// Scale and offset of the group of 16 that element j of a block is in.
template <int T>
INLINE void scale_and_offset(const u8* b, u32 j, float& scale, float& offset) {
    offset = 0.0f;
    if constexpr (T == MXFP4) {
        u32 e = b[0];
        scale = __uint_as_float(e < 2 ? 0x00200000 << e : (e - 1) << 23);
    } else if constexpr (T == Q4_1 || T == Q5_1) {
        scale = half_at(b);
        offset = half_at(b + 2);
    } else if constexpr (T == Q2_K) {
        u32 s = b[j / 16];
        scale = half_at(b + 80) * (s & 15);
        offset = -half_at(b + 82) * (s >> 4);
    } else if constexpr (T == Q3_K) {
        scale = half_at(b + 108) * scale_q3_k(b + 96, j / 16);
    } else if constexpr (T == Q4_K || T == Q5_K) {
        float of_group, least;
        scale_min_k4(b + 4, j / 32, of_group, least);
        scale = half_at(b) * of_group;
        offset = -half_at(b + 2) * least;
    } else if constexpr (T == Q6_K) {
        scale = half_at(b + 208) * signed8(b[192 + j / 16]);
    } else if constexpr (T == IQ4_XS) {
        scale = half_at(b) * scale_iq4_xs(b, j / 32);
    } else {
        scale = half_at(b);
    }
}

// Two bytes of a word as halves: 1024 + x has x in its lowest bits.
template <int T>
INLINE u32 two_weights(u32 bytes, u32 which, u32 scale, u32 offset) {
    u32 w = __byte_perm(bytes, 0x64646464, which);
    constexpr u32 none = 0x64006400 + bias<T> * 0x00010001;
    asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(w) : "r"(none));
    if constexpr (has_offset<T>) {
        asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(w) : "r"(scale), "r"(offset));
    } else {
        asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(w) : "r"(scale));
    }
    return w;
}

// Elements j to j + 7 of a block.
template <int T>
INLINE uint4 eight_weights(const u8* b, u32 j, u32 scale, u32 offset) {
    u32 low, high;
    if constexpr (is_of_32<T>) {
        low = bytes_of_32<T>(b, j);
        high = bytes_of_32<T>(b, j + 4);
    } else {
        low = bytes_of_256<T>(b, j);
        high = bytes_of_256<T>(b, j + 4);
    }
    return {two_weights<T>(low, 0x4140, scale, offset), two_weights<T>(low, 0x4342, scale, offset),
            two_weights<T>(high, 0x4140, scale, offset), two_weights<T>(high, 0x4342, scale, offset)};
}
