// Elements of every type, four at a time: how the bits of blocks are arranged is said in core/src/quant.

const u32 QK = 256;

struct Four {
    float x, y, z, w;
};

INLINE Four four(float x) {
    return {x, x, x, x};
}

INLINE Four scaled(Four v, float scale, float offset) {
    return {scale * v.x + offset, scale * v.y + offset, scale * v.z + offset, scale * v.w + offset};
}

INLINE float dot(Four a, Four b) {
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

INLINE void add_scaled(Four& sum, float scale, Four v) {
    sum.x += scale * v.x;
    sum.y += scale * v.y;
    sum.z += scale * v.z;
    sum.w += scale * v.w;
}

// 32 bits from a byte that is a multiple of A.
template <int A>
INLINE u32 bits32(const u8* at) {
    if constexpr (A % 4 == 0) {
        return word(at);
    } else if constexpr (A == 2) {
        return half_word(at) | half_word(at + 2) << 16;
    } else {
        return at[0] | at[1] << 8 | at[2] << 16 | u32(at[3]) << 24;
    }
}

INLINE float half_at(const u8* at) {
    return half_to_float(half_word(at));
}

INLINE int signed8(u32 bits) {
    return int(bits << 24) >> 24;
}

INLINE Four bytes_of(u32 w) {
    return {float(w & 0xff), float(w >> 8 & 0xff), float(w >> 16 & 0xff), float(w >> 24)};
}

INLINE Four signed_bytes_of(u32 w) {
    return {float(signed8(w)), float(signed8(w >> 8)), float(signed8(w >> 16)), float(signed8(w >> 24))};
}

// A nibble as a number of a table of 16 signed bytes, four to a word.
INLINE float looked_up(u32 nibble, u32 a, u32 b, u32 c, u32 d) {
    u32 four = nibble < 8 ? (nibble < 4 ? a : b) : (nibble < 12 ? c : d);
    return signed8(four >> (8 * (nibble & 3)));
}

INLINE Four looked_up_four(u32 w, u32 a, u32 b, u32 c, u32 d) {
    return {looked_up(w & 15, a, b, c, d), looked_up(w >> 8 & 15, a, b, c, d), looked_up(w >> 16 & 15, a, b, c, d),
            looked_up(w >> 24 & 15, a, b, c, d)};
}

// The table of IQ4_NL and IQ4_XS, and twice the values of MXFP4.
INLINE Four iq4_values(u32 w) {
    return looked_up_four(w, 0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535);
}

INLINE Four mxfp4_values(u32 w) {
    return looked_up_four(w, 0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc);
}

// Four bits, from `shift` on in a word, each moved to a byte of its own.
INLINE u32 spread(u32 w, u32 shift) {
    return (w >> shift & 15) * 0x00204081 & 0x01010101;
}

// Bytes of a block of 32 elements, or of 256.
template <int T>
INLINE constexpr u32 block_bytes() {
    switch (T) {
    case Q4_0:
    case IQ4_NL:
        return 18;
    case Q4_1:
        return 20;
    case Q5_0:
        return 22;
    case Q5_1:
        return 24;
    case Q8_0:
        return 34;
    case MXFP4:
        return 17;
    case Q2_K:
        return 84;
    case Q3_K:
        return 110;
    case Q4_K:
        return 144;
    case Q5_K:
        return 176;
    case Q6_K:
        return 210;
    case Q8_K:
        return 292;
    default:
        return 136;
    }
}

template <int T>
constexpr bool is_of_32 = (T >= Q4_0 && T <= Q8_0) || T == IQ4_NL || T == MXFP4;

// Elements j to j + 3 of a block of 32, j a multiple of 4.
template <int T>
INLINE Four quad_of_32(const u8* b, u32 j) {
    u32 shift = j < 16 ? 0 : 4;
    if constexpr (T == Q8_0) {
        return scaled(signed_bytes_of(bits32<2>(b + 2 + j)), half_at(b), 0.0f);
    } else if constexpr (T == Q4_0) {
        float d = half_at(b);
        return scaled(bytes_of(bits32<2>(b + 2 + (j & 15)) >> shift & 0x0f0f0f0f), d, -8.0f * d);
    } else if constexpr (T == IQ4_NL) {
        return scaled(iq4_values(bits32<2>(b + 2 + (j & 15)) >> shift & 0x0f0f0f0f), half_at(b), 0.0f);
    } else if constexpr (T == Q4_1) {
        return scaled(bytes_of(bits32<4>(b + 4 + (j & 15)) >> shift & 0x0f0f0f0f), half_at(b), half_at(b + 2));
    } else if constexpr (T == Q5_0) {
        u32 q = bits32<2>(b + 6 + (j & 15)) >> shift & 0x0f0f0f0f;
        float d = half_at(b);
        return scaled(bytes_of(q | spread(bits32<2>(b + 2), j) << 4), d, -16.0f * d);
    } else if constexpr (T == Q5_1) {
        u32 q = bits32<4>(b + 8 + (j & 15)) >> shift & 0x0f0f0f0f;
        return scaled(bytes_of(q | spread(bits32<4>(b + 4), j) << 4), half_at(b), half_at(b + 2));
    } else {
        // MXFP4: half of 2^(e - 127); the two smallest are subnormal.
        u32 e = b[0];
        float d = __uint_as_float(e < 2 ? 0x00200000 << e : (e - 1) << 23);
        return scaled(mxfp4_values(bits32<1>(b + 1 + (j & 15)) >> shift & 0x0f0f0f0f), d, 0.0f);
    }
}

// Scale and minimum of group j of 8 in Q4_K and Q5_K.
INLINE void scale_min_k4(const u8* scales, u32 j, float& scale, float& least) {
    if (j < 4) {
        scale = scales[j] & 63;
        least = scales[j + 4] & 63;
    } else {
        u32 low = scales[j + 4];
        scale = (low & 15) | (scales[j - 4] >> 6) << 4;
        least = low >> 4 | (scales[j] >> 6) << 4;
    }
}

// Scale of group j of 16 in Q3_K: 4 low bits in the first 8 bytes, 2 high bits in the last 4, minus 32.
INLINE float scale_q3_k(const u8* scales, u32 j) {
    u32 low = scales[j & 7] >> (4 * (j / 8)) & 15, high = scales[8 + (j & 3)] >> (2 * (j / 4)) & 3;
    return int(low | high << 4) - 32;
}

// Scale of group j of 8 in IQ4_XS.
INLINE float scale_iq4_xs(const u8* block, u32 j) {
    u32 high = half_word(block + 2) >> (2 * j) & 3, low = block[4 + j / 2] >> (4 * (j & 1)) & 15;
    return int(low | high << 4) - 32;
}

// The same of a block of 256.
template <int T>
INLINE Four quad_of_256(const u8* b, u32 j) {
    // Two bits of an element: in each half of 128, byte l of 32 has elements l, l + 32, l + 64 and l + 96.
    u32 two = j / 128 * 32 + (j & 31), two_shift = (j & 127) / 32 * 2;
    // Four bits: in each quarter of 64, byte l of 32 has elements l and l + 32.
    u32 four = j / 64 * 32 + (j & 31), four_shift = (j & 63) / 32 * 4;
    if constexpr (T == Q2_K) {
        u32 s = b[j / 16];
        Four q = bytes_of(bits32<4>(b + 16 + two) >> two_shift & 0x03030303);
        return scaled(q, half_at(b + 80) * (s & 15), -half_at(b + 82) * (s >> 4));
    } else if constexpr (T == Q3_K) {
        u32 low = bits32<2>(b + 32 + two) >> two_shift & 0x03030303;
        u32 high = bits32<2>(b + (j & 31)) >> (j / 32) & 0x01010101;
        float d = half_at(b + 108) * scale_q3_k(b + 96, j / 16);
        return scaled(bytes_of(low | high << 2), d, -4.0f * d);
    } else if constexpr (T == Q4_K || T == Q5_K) {
        constexpr bool five = T == Q5_K;
        float scale, least;
        scale_min_k4(b + 4, j / 32, scale, least);
        u32 q = bits32<4>(b + (five ? 48 : 16) + four) >> four_shift & 0x0f0f0f0f;
        if (five) {
            q |= (bits32<4>(b + 16 + (j & 31)) >> (j / 32) & 0x01010101) << 4;
        }
        return scaled(bytes_of(q), half_at(b) * scale, -half_at(b + 2) * least);
    } else if constexpr (T == Q6_K) {
        u32 r = j & 127;
        u32 low = bits32<2>(b + j / 128 * 64 + (r & 63)) >> (4 * (r / 64)) & 0x0f0f0f0f;
        u32 high = bits32<2>(b + 128 + two) >> two_shift & 0x03030303;
        float d = half_at(b + 208) * signed8(b[192 + j / 16]);
        return scaled(bytes_of(low | high << 4), d, -32.0f * d);
    } else if constexpr (T == Q8_K) {
        return scaled(signed_bytes_of(bits32<4>(b + 4 + j)), read_f32(b), 0.0f);
    } else {
        // Groups of 32 in 16 bytes each, as in Q4_0.
        u32 q = bits32<4>(b + 8 + j / 32 * 16 + (j & 15)) >> ((j & 31) < 16 ? 0 : 4);
        return scaled(iq4_values(q & 0x0f0f0f0f), half_at(b) * scale_iq4_xs(b, j / 32), 0.0f);
    }
}

// Elements i to i + 3 of a row of `n`, i a multiple of 4. What is behind the row's end is 0.
template <int T>
INLINE Four quad(const u8* row, u32 i, u32 n) {
    if constexpr (is_of_32<T>) {
        return quad_of_32<T>(row + u64(i / 32) * block_bytes<T>(), i & 31);
    } else if constexpr (T > I32) {
        return quad_of_256<T>(row + u64(i / QK) * block_bytes<T>(), i & (QK - 1));
    } else {
        const u8* at = row + u64(i) * size_of(T);
        u32 size = size_of(T);
        float x = i < n ? read_element(T, at) : 0.0f, y = i + 1 < n ? read_element(T, at + size) : 0.0f;
        float z = i + 2 < n ? read_element(T, at + 2 * size) : 0.0f, w = i + 3 < n ? read_element(T, at + 3 * size) : 0.0f;
        return {x, y, z, w};
    }
}

// Both floats of 16 bits of a word.
template <int T>
INLINE void floats_of(u32 w, float& low, float& high) {
    if constexpr (T == F16) {
        low = half_to_float(w & 0xffff);
        high = half_to_float(w >> 16);
    } else {
        low = __uint_as_float(w << 16);
        high = __uint_as_float(w & 0xffff0000);
    }
}

// The same of a row that is whole vectors of 16 bytes, in place and length, if it is wide: elements are then read in one word.
template <int T>
INLINE Four quad_wide(const u8* row, u32 i, u32 n, bool wide) {
    if constexpr (T == F32) {
        if (wide) {
            float4 v = *(const float4*)(row + u64(i) * 4);
            return {v.x, v.y, v.z, v.w};
        }
    } else if constexpr (T == F16 || T == BF16) {
        if (wide) {
            uint2 w = *(const uint2*)(row + u64(i) * 2);
            Four v;
            floats_of<T>(w.x, v.x, v.y);
            floats_of<T>(w.y, v.z, v.w);
            return v;
        }
    }
    return quad<T>(row, i, n);
}

// The same of a type that is known when the kernel runs.
__device__ __noinline__ Four quad_of(int type, const u8* row, u32 i, u32 n) {
    switch (type) {
    case F32:
        return quad<F32>(row, i, n);
    case F16:
        return quad<F16>(row, i, n);
    case BF16:
        return quad<BF16>(row, i, n);
    case Q4_0:
        return quad<Q4_0>(row, i, n);
    case Q4_1:
        return quad<Q4_1>(row, i, n);
    case Q5_0:
        return quad<Q5_0>(row, i, n);
    case Q5_1:
        return quad<Q5_1>(row, i, n);
    case Q8_0:
        return quad<Q8_0>(row, i, n);
    case Q2_K:
        return quad<Q2_K>(row, i, n);
    case Q3_K:
        return quad<Q3_K>(row, i, n);
    case Q4_K:
        return quad<Q4_K>(row, i, n);
    case Q5_K:
        return quad<Q5_K>(row, i, n);
    case Q6_K:
        return quad<Q6_K>(row, i, n);
    case Q8_K:
        return quad<Q8_K>(row, i, n);
    case IQ4_NL:
        return quad<IQ4_NL>(row, i, n);
    case IQ4_XS:
        return quad<IQ4_XS>(row, i, n);
    default:
        return quad<MXFP4>(row, i, n);
    }
}

// Names a kernel for each type that weights of a product can have.
#define FOR_EVERY_ELEMENT(MAKE) MAKE(F32) MAKE(F16) MAKE(BF16)
#define FOR_EVERY_BLOCK(MAKE) \
    MAKE(Q4_0) MAKE(Q4_1) MAKE(Q5_0) MAKE(Q5_1) MAKE(Q8_0) MAKE(Q2_K) MAKE(Q3_K) MAKE(Q4_K) MAKE(Q5_K) MAKE(Q6_K) \
    MAKE(IQ4_NL) MAKE(IQ4_XS) MAKE(MXFP4)
