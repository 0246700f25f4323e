// Products of blocks with columns of signed bytes (quantized.cuh), four at a time (dp4a). A weight is `scale * byte + offset`.
//
// A lane takes 32 weights of a row at a time: sixteen bytes from each of two places that share the words they are read from. Lanes that are
// neighbours take what lies side by side, in whole words.

struct Weights {
    u32 low[4], high[4];
    // In types that have one scale for both, the second ones are not used.
    float low_scale, high_scale, low_offset, high_offset;
};

// Types whose 32 weights have one scale, and types without an offset.
template <int T>
constexpr bool has_one_scale = is_of_32<T> || T == IQ4_XS;
template <int T>
constexpr bool has_no_offset = T == Q8_0 || T == IQ4_NL || T == IQ4_XS || T == MXFP4;

// a + the products of four signed bytes.
INLINE int dp4a(u32 x, u32 y, int a) {
    int sum;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(y), "r"(a));
    return sum;
}

INLINE int dp4a_all(const u32 (&w)[4], uint4 x, int a) {
    return dp4a(w[0], x.x, dp4a(w[1], x.y, dp4a(w[2], x.z, dp4a(w[3], x.w, a))));
}

// Four nibbles, of 16 bits, as bytes of a table.
INLINE u32 looked_up_nibbles(u32 w, u32 a, u32 b, u32 c, u32 d) {
    u32 which = w & 0x7777;
    // The third bit of a nibble says which half of the table it is in.
    return __byte_perm(__byte_perm(a, b, which), __byte_perm(c, d, which), 0x3210 | (w & 0x8888) >> 1);
}

// The low and the high nibbles of a word as bytes of a table.
INLINE void look_up(u32 w, u32 a, u32 b, u32 c, u32 d, u32& low, u32& high) {
    u32 first = looked_up_nibbles(w & 0xffff, a, b, c, d), second = looked_up_nibbles(w >> 16, a, b, c, d);
    low = __byte_perm(first, second, 0x6420);
    high = __byte_perm(first, second, 0x7531);
}

INLINE void look_up_iq4(u32 w, u32& low, u32& high) {
    look_up(w, 0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535, low, high);
}

INLINE void split(u32 w, u32& low, u32& high) {
    low = w & 0x0f0f0f0f;
    high = w >> 4 & 0x0f0f0f0f;
}

INLINE float half_of(u32 w) {
    return half_to_float(w & 0xffff);
}

// The words of a block of so many bytes, from its first byte on. It begins at a multiple of A. Where A is 8 and the caller is not SURE of that, it is
// looked at, and is a multiple of 4 in any case. Whole words are read, two at a time where A is 8.
template <u32 BYTES, u32 A, bool SURE = false>
struct Words {
    static constexpr u32 COUNT = A < 4 ? (BYTES + 4 - A + 3) / 4 : (BYTES + 3) / 4;
    u32 words[COUNT];
    u32 behind;

    INLINE explicit Words(const u8* at) {
        behind = A < 4 ? u32(u64(at)) & 3 : 0;
        const u32* from = (const u32*)(at - behind);
        bool in_pairs = A == 8 && (SURE || u32(u64(at)) % 8 == 0);
#pragma unroll
        for (u32 i = 0; i < COUNT; i += 2) {
            if (in_pairs) {
                uint2 both = *(const uint2*)(from + i);
                words[i] = both.x;
                words[i + 1] = both.y;
            } else {
                words[i] = from[i];
                if (i + 1 < COUNT) {
                    words[i + 1] = from[i + 1];
                }
            }
        }
    }

    // The four bytes from byte `i`, which is known when this is compiled.
    INLINE u32 at(u32 i) const {
        if (A >= 4) {
            return words[i / 4];
        }
        return __byte_perm(words[i / 4], words[min(i / 4 + 1, COUNT - 1)], 0x3210 + 0x1111 * (behind + i % 4));
    }
};

// 32 weights of a block of 32. Here and below, SURE says that blocks whose bytes are a multiple of 8 or 16 begin at one; otherwise their address is
// looked at.
template <int T, bool SURE>
INLINE Weights weights_of_32(const u8* b) {
    constexpr u32 bytes = block_bytes<T>(), a = bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1;
    Words<bytes, a, SURE> words(b);
    Weights w;
    w.low_offset = 0.0f;
    if constexpr (T == MXFP4) {
        // Half of 2^(e - 127); the two smallest are subnormal.
        u32 e = words.at(0) & 0xff;
        w.low_scale = __uint_as_float(e < 2 ? 0x00200000 << e : (e - 1) << 23);
    } else {
        w.low_scale = half_of(words.at(0));
    }
    if constexpr (T == Q4_0 || T == Q5_0) {
        w.low_offset = (T == Q4_0 ? -8.0f : -16.0f) * w.low_scale;
    } else if constexpr (T == Q4_1 || T == Q5_1) {
        w.low_offset = half_of(words.at(0) >> 16);
    }
    constexpr u32 head = T == Q4_1 ? 4 : T == Q5_0 ? 6 : T == Q5_1 ? 8 : T == MXFP4 ? 1 : 2;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 x = words.at(head + 4 * i);
        if constexpr (T == Q8_0) {
            w.low[i] = x;
            w.high[i] = words.at(head + 16 + 4 * i);
        } else if constexpr (T == IQ4_NL) {
            look_up_iq4(x, w.low[i], w.high[i]);
        } else if constexpr (T == MXFP4) {
            look_up(x, 0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc, w.low[i], w.high[i]);
        } else {
            split(x, w.low[i], w.high[i]);
        }
        if constexpr (T == Q5_0 || T == Q5_1) {
            u32 fifth = words.at(head - 4);
            w.low[i] |= spread(fifth, 4 * i) << 4;
            w.high[i] |= spread(fifth, 4 * i + 16) << 4;
        }
    }
    return w;
}

// Sixteen bytes from a multiple of A.
template <int A, bool SURE = false>
INLINE void sixteen_bytes(const u8* at, u32 (&w)[4]) {
    if (A == 16 && (SURE || u32(u64(at)) % 16 == 0)) {
        uint4 v = *(const uint4*)at;
        w[0] = v.x;
        w[1] = v.y;
        w[2] = v.z;
        w[3] = v.w;
    } else {
        Words<16, A == 16 ? 4 : A, SURE> words(at);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            w[i] = words.at(4 * i);
        }
    }
}

// Scales and minimums of a quarter's two groups in Q4_K and Q5_K, of the words that have all eight: two bytes each.
INLINE void scales_min_k4(u32 x, u32 y, u32 z, u32 quarter, u32& both_scales, u32& both_mins) {
    u32 shift = 16 * (quarter & 1);
    x >>= shift;
    y >>= shift;
    z >>= shift;
    both_scales = quarter < 2 ? x & 0x3f3f : (z & 0x0f0f) | (x >> 6 & 0x0303) << 4;
    both_mins = quarter < 2 ? y & 0x3f3f : (z >> 4 & 0x0f0f) | (y >> 6 & 0x0303) << 4;
}

template <int T, bool SURE>
INLINE Weights weights_of_k4(const u8* b, u32 v) {
    Weights w;
    u32 quarter = v / 2, q[4], head[4], scales, mins;
    sixteen_bytes<16, SURE>(b + (T == Q5_K ? 48 : 16) + 16 * v, q);
    sixteen_bytes<16, SURE>(b, head);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        split(q[i], w.low[i], w.high[i]);
    }
    if constexpr (T == Q5_K) {
        u32 fifth[4];
        sixteen_bytes<16, SURE>(b + 16 + 16 * (v & 1), fifth);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            w.low[i] |= (fifth[i] >> (2 * quarter) & 0x01010101) << 4;
            w.high[i] |= (fifth[i] >> (2 * quarter + 1) & 0x01010101) << 4;
        }
    }
    scales_min_k4(head[1], head[2], head[3], quarter, scales, mins);
    float d = half_of(head[0]), least = -half_of(head[0] >> 16);
    w.low_scale = d * (scales & 0xff);
    w.high_scale = d * (scales >> 8 & 0xff);
    w.low_offset = least * (mins & 0xff);
    w.high_offset = least * (mins >> 8 & 0xff);
    return w;
}

INLINE Weights weights_of_q6_k(const u8* b, u32 v) {
    // In each half of 128, elements e and e + 64 share a byte.
    Weights w;
    u32 half = v / 4, q[4], two[4];
    sixteen_bytes<2>(b + 16 * v, q);
    sixteen_bytes<2>(b + 128 + half * 32 + 16 * (v & 1), two);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        split(q[i], w.low[i], w.high[i]);
        u32 bits = two[i] >> (v & 2);
        w.low[i] |= (bits & 0x03030303) << 4;
        w.high[i] |= (bits >> 4 & 0x03030303) << 4;
    }
    const u8* scale = b + 192 + half * 8 + (v & 3);
    float d = half_at(b + 208);
    w.low_scale = d * signed8(scale[0]);
    w.high_scale = d * signed8(scale[4]);
    w.low_offset = -32.0f * w.low_scale;
    w.high_offset = -32.0f * w.high_scale;
    return w;
}

INLINE Weights weights_of_q2_k(const u8* b, u32 v) {
    // In each half of 128, four elements share a byte. Groups of 16: this one and the second behind it.
    Weights w;
    u32 quarter = v / 2, q[4];
    sixteen_bytes<4>(b + 16 + quarter / 2 * 32 + 16 * (v & 1), q);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 bits = q[i] >> (4 * (quarter & 1));
        w.low[i] = bits & 0x03030303;
        w.high[i] = bits >> 2 & 0x03030303;
    }
    u32 s = word(b + 4 * quarter) >> (8 * (v & 1)), both = word(b + 80);
    float d = half_of(both), least = -half_of(both >> 16);
    w.low_scale = d * (s & 15);
    w.high_scale = d * (s >> 16 & 15);
    w.low_offset = least * (s >> 4 & 15);
    w.high_offset = least * (s >> 20 & 15);
    return w;
}

INLINE Weights weights_of_q3_k(const u8* b, u32 v) {
    Weights w;
    u32 quarter = v / 2, q[4], third[4];
    sixteen_bytes<2>(b + 32 + quarter / 2 * 32 + 16 * (v & 1), q);
    sixteen_bytes<2>(b + 16 * (v & 1), third);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 bits = q[i] >> (4 * (quarter & 1)), more = third[i] >> (2 * quarter);
        w.low[i] = (bits & 0x03030303) | (more & 0x01010101) << 2;
        w.high[i] = (bits >> 2 & 0x03030303) | (more >> 1 & 0x01010101) << 2;
    }
    Words<14, 2> tail(b + 96);
    u32 low = quarter % 2 == 0 ? tail.at(0) : tail.at(4), high = tail.at(8) >> (2 * quarter);
    u32 s = ((low >> (4 * (quarter / 2)) & 0x0f0f0f0f) | (high & 0x03030303) << 4) >> (8 * (v & 1));
    float d = half_of(tail.at(12));
    w.low_scale = d * (int(s & 0xff) - 32);
    w.high_scale = d * (int(s >> 16 & 0xff) - 32);
    w.low_offset = -4.0f * w.low_scale;
    w.high_offset = -4.0f * w.high_scale;
    return w;
}

template <bool SURE>
INLINE Weights weights_of_iq4_xs(const u8* b, u32 v) {
    Weights w;
    u32 q[4];
    sixteen_bytes<8, SURE>(b + 8 + 16 * v, q);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        look_up_iq4(q[i], w.low[i], w.high[i]);
    }
    u32 both = word(b), low = word(b + 4) >> (4 * v) & 15, high = both >> (16 + 2 * v) & 3;
    w.low_scale = half_of(both) * (int(low | high << 4) - 32);
    w.low_offset = 0.0f;
    return w;
}

// The 32 weights of a row with number `u`.
template <int T, bool SURE = false>
INLINE Weights weights_at(const u8* row, u32 u) {
    if constexpr (is_of_32<T>) {
        return weights_of_32<T, SURE>(row + u64(u) * block_bytes<T>());
    } else {
        const u8* b = row + u64(u / 8) * block_bytes<T>();
        if constexpr (T == Q4_K || T == Q5_K) {
            return weights_of_k4<T, SURE>(b, u & 7);
        } else if constexpr (T == Q6_K) {
            return weights_of_q6_k(b, u & 7);
        } else if constexpr (T == Q2_K) {
            return weights_of_q2_k(b, u & 7);
        } else if constexpr (T == Q3_K) {
            return weights_of_q3_k(b, u & 7);
        } else {
            return weights_of_iq4_xs<SURE>(b, u & 7);
        }
    }
}

// How far behind the first sixteen weights the others are.
template <int T>
constexpr u32 BEHIND = has_one_scale<T> ? 16 : T == Q6_K ? 64 : 32;

// Where the 32 weights with number `u` begin in a row.
template <int T>
INLINE u32 first_of(u32 u) {
    constexpr u32 share = BEHIND<T> / 16;
    return (u / share * 2 * share + u % share) * 16;
}

// The elements of a column of `n` that belong to the 32 weights with number `u`.
template <int T>
INLINE void sixteens_of(const u8* column, u32 n, u32 u, Sixteen& low, Sixteen& high) {
    u32 first = first_of<T>(u);
    if constexpr (BEHIND<T> == 32) {
        // Their groups are neighbours.
        uint4 bytes = *(const uint4*)(column + first), others = *(const uint4*)(column + first + 32);
        uint4 groups = *(const uint4*)(column + n + first / 64 * 16);
        low = sixteen(bytes, make_uint2(groups.x, groups.y), first % 32 != 0);
        high = sixteen(others, make_uint2(groups.z, groups.w), first % 32 != 0);
    } else {
        low = sixteen_of(column, n, first);
        high = sixteen_of(column, n, first + BEHIND<T>);
    }
}

// The products of 32 weights with those of a column.
template <int T>
INLINE float product(const Weights& w, const Sixteen& low, const Sixteen& high) {
    if constexpr (has_one_scale<T>) {
        float sum = w.low_scale * dp4a_all(w.low, low.bytes, dp4a_all(w.high, high.bytes, 0));
        return low.scale * (has_no_offset<T> ? sum : sum + w.low_offset * (low.sum + high.sum));
    } else {
        float of_low = w.low_scale * dp4a_all(w.low, low.bytes, 0) + w.low_offset * low.sum;
        float of_high = w.high_scale * dp4a_all(w.high, high.bytes, 0) + w.high_offset * high.sum;
        return low.scale * of_low + high.scale * of_high;
    }
}

// Adds what this lane has of the products of some rows with some columns: of the 32 weights with numbers from `first` on, each `step`.
template <int T, u32 ROWS, u32 COLUMNS>
INLINE void multiply(const u8* const (&rows)[ROWS], const u8* const (&columns)[COLUMNS], u32 n, u32 first, u32 step, float (&sums)[ROWS * COLUMNS]) {
    for (u32 u = first; 32 * u < n; u += step) {
        Weights w[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            w[r] = weights_at<T>(rows[r], u);
        }
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) {
            Sixteen low, high;
            sixteens_of<T>(columns[c], n, u, low, high);
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) {
                sums[r * COLUMNS + c] += product<T>(w[r], low, high);
            }
        }
    }
}
