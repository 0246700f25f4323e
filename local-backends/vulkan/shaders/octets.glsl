// Elements of every type, eight at a time, so that no word of a block is read twice: two fours that share their words.

// Where the fours of octet `u` begin in a row.
uvec2 octet_places(uint type, uint u) {
    if (is_of_32(type) || type == IQ4_XS) {
        uint i = u / 4 * 32 + (u & 3) * 4;
        return uvec2(i, i + 16);
    }
    if (type == Q6_K) {
        uint i = u / 16 * 128 + (u & 15) * 4;
        return uvec2(i, i + 64);
    }
    if (type == Q2_K || type == Q3_K || type == Q4_K || type == Q5_K) {
        uint i = u / 8 * 64 + (u & 7) * 4;
        return uvec2(i, i + 32);
    }
    return uvec2(8 * u, 8 * u + 4);
}

// Two fours of numbers, of which an element is `scale * number + offset`, each four with its own.
struct Octet {
    vec4 low, high;
};
struct Scales {
    vec2 scale, offset;
};

// Whether offsets may be other than 0.
bool has_offset(uint type) {
    return type >= Q4_0 && type <= Q6_K;
}

// Bits from a byte of a row. Where rows begin at whole words, `at16` is for even bytes.

// One word, without its lowest `skip` bits, 7 at most: as many of the next byte come behind it.
uint at32(uvec2 row, uint byte, uint skip) {
    if (!WHOLE) {
        return bits32(plus(row, byte)) >> skip;
    }
    Words from = Words(plus(row, byte & ~3u));
    uint shift = (byte & 3) * 8 + skip;
    return from.w[0] >> shift | from.w[1] << 1 << (31 - shift);
}

uint at32(uvec2 row, uint byte) {
    return at32(row, byte, 0);
}

uint at16(uvec2 row, uint byte) {
    return WHOLE ? Words(row).w[byte / 4] >> ((byte & 2) * 8) & 0xffff : bits16(plus(row, byte));
}

uint at8(uvec2 row, uint byte) {
    return WHOLE ? Words(row).w[byte / 4] >> ((byte & 3) * 8) & 0xff : bits8(plus(row, byte));
}

// Of a block of whole words, from a byte that is a multiple of 4.
uint word_at(uvec2 row, uint byte) {
    return WHOLE ? Words(row).w[byte / 4] : bits32(plus(row, byte));
}

// The same of two words side by side: with one address for all loads, because a card needs as long to compute an address as to load from it.
uvec2 at64(uvec2 row, uint byte, uint skip) {
    if (!WHOLE) {
        return uvec2(bits32(plus(row, byte)), bits32(plus(row, byte + 4))) >> skip;
    }
    Words from = Words(plus(row, byte & ~3u));
    uvec3 w = uvec3(from.w[0], from.w[1], from.w[2]);
    uint shift = (byte & 3) * 8 + skip;
    return w.xy >> shift | w.yz << 1 << (31 - shift);
}

uvec2 at64(uvec2 row, uint byte) {
    return at64(row, byte, 0);
}

// The same of a block of whole words, from a byte that is a multiple of 4.
uvec2 two_words_at(uvec2 row, uint byte) {
    if (!WHOLE) {
        return uvec2(bits32(plus(row, byte)), bits32(plus(row, byte + 4)));
    }
    Words from = Words(plus(row, byte));
    return uvec2(from.w[0], from.w[1]);
}

// Nibbles of a word as the fours, low halves first.
uvec2 nibbles(uint w) {
    return uvec2(w & 0x0f0f0f0f, w >> 4 & 0x0f0f0f0f);
}

// The fours of two octets, side by side: both low ones, both high ones.
struct Pair {
    uvec2 low, high;
};

Pair nibble_pairs(uvec2 w) {
    return Pair(w & 0x0f0f0f0f, w >> 4 & 0x0f0f0f0f);
}

Scales scales_of_32(uint type, uvec2 row, uint u) {
    uint block = u / 4;
    if (type == Q4_1 || type == Q5_1) {
        vec2 d = unpackHalf2x16(word_at(row, block * (type == Q4_1 ? 20 : 24)));
        return Scales(d.xx, d.yy);
    }
    if (type == MXFP4) {
        // Half of 2^(e - 127); the two smallest are subnormal.
        uint e = at8(row, block * 17);
        return Scales(vec2(uintBitsToFloat(e < 2 ? 0x00200000 << e : e - 1 << 23)), vec2(0));
    }
    uint size = type == Q8_0 ? 34 : type == Q5_0 ? 22 : 18;
    float d = half_to_float(at16(row, block * size)), zero = type == Q4_0 ? -8.0 : type == Q5_0 ? -16.0 : type == Q8_0 ? -128.0 : 0.0;
    return Scales(vec2(d), vec2(zero * d));
}

// Scales and minimums of a quarter's two groups in Q4_K and Q5_K, of the words that have all eight: two bytes each.
uvec2 scales_min_k4(uvec3 words, uint quarter) {
    words >>= 16 * (quarter & 1);
    uvec2 first = words.xy & 0x3f3f;
    uvec2 second = uvec2(words.z, words.z >> 4) & 0x0f0f | (words.xy >> 6 & 0x0303) << 4;
    return quarter < 2 ? first : second;
}

// The bytes of octet `u`, one word a four, and beside them those of the one behind it, which mean something if `u` is even: whole numbers, with a sign only in Q8_0.
// Of types with a table the low words have the nibbles of both fours.
Pair pair_of_32(uint type, uvec2 row, uint u) {
    uint block = u / 4, j = (u & 3) * 4;
    if (type == Q8_0) {
        uint b = block * 34;
        return Pair(at64(row, b + 2 + j), at64(row, b + 18 + j));
    }
    if (type == Q4_0) {
        return nibble_pairs(at64(row, block * 18 + 2 + j));
    }
    if (type == Q4_1) {
        return nibble_pairs(two_words_at(row, block * 20 + 4 + j));
    }
    if (type == Q5_0 || type == Q5_1) {
        uint b = block * (type == Q5_0 ? 22 : 24);
        uint fifth = type == Q5_0 ? at32(row, b + 2) : word_at(row, b + 4);
        Pair p = nibble_pairs(type == Q5_0 ? at64(row, b + 6 + j) : two_words_at(row, b + 8 + j));
        p.low |= uvec2(spread(fifth, j), spread(fifth, j + 4)) << 4;
        p.high |= uvec2(spread(fifth, j + 16), spread(fifth, j + 20)) << 4;
        return p;
    }
    uvec2 w = type == IQ4_NL ? at64(row, block * 18 + 2 + j) : at64(row, block * 17 + 1 + j);
    return Pair(w, uvec2(0));
}

// The same of blocks of 256, other than Q8_K.
Pair pair_of_256(uint type, uvec2 row, uint u) {
    uint block = u / 32, v = u & 31, quarter = v / 8, l = (v & 7) * 4, shift = (quarter & 1) * 4;
    if (type == Q4_K || type == Q5_K) {
        uvec2 b = plus(row, block * (type == Q5_K ? 176 : 144));
        Pair p = nibble_pairs(two_words_at(b, (type == Q5_K ? 48 : 16) + 32 * quarter + l));
        if (type == Q5_K) {
            uvec2 fifth = two_words_at(b, 16 + l) >> (2 * quarter);
            p.low |= (fifth & 0x01010101) << 4;
            p.high |= (fifth >> 1 & 0x01010101) << 4;
        }
        return p;
    }
    if (type == Q6_K) {
        // In each half of 128, elements e and e + 64 share a byte.
        uint half_ = v / 16, e = (v & 15) * 4, b = block * 210;
        Pair p = nibble_pairs(at64(row, b + half_ * 64 + e));
        uvec2 two = at64(row, b + 128 + half_ * 32 + (e & 31), e / 32 * 2);
        return Pair(p.low | (two & 0x03030303) << 4, p.high | (two >> 4 & 0x03030303) << 4);
    }
    // In each half of 128, four elements share a byte.
    if (type == Q2_K) {
        uvec2 w = two_words_at(row, block * 84 + 16 + quarter / 2 * 32 + l) >> shift;
        return Pair(w & 0x03030303, w >> 2 & 0x03030303);
    }
    if (type == Q3_K) {
        uint b = block * 110;
        uvec2 w = at64(row, b + 32 + quarter / 2 * 32 + l, shift), third = at64(row, b + l, 2 * quarter);
        return Pair(w & 0x03030303 | (third & 0x01010101) << 2, w >> 2 & 0x03030303 | (third >> 1 & 0x01010101) << 2);
    }
    return Pair(two_words_at(row, block * 136 + 8 + v / 4 * 16 + (v & 3) * 4), uvec2(0));
}

Pair pair_bytes(uint type, uvec2 row, uint u) {
    return is_of_32(type) ? pair_of_32(type, row, u) : pair_of_256(type, row, u);
}

Scales scales_of_256(uint type, uvec2 row, uint u) {
    uint block = u / 32, v = u & 31, quarter = v / 8;
    if (type == Q4_K || type == Q5_K) {
        uvec2 b = plus(row, block * (type == Q5_K ? 176 : 144));
        vec2 d = unpackHalf2x16(word_at(b, 0));
        uvec2 both = scales_min_k4(uvec3(word_at(b, 4), word_at(b, 8), word_at(b, 12)), quarter);
        return Scales(d.x * vec2(both.x & 0xff, both.x >> 8 & 0xff), -d.y * vec2(both.y & 0xff, both.y >> 8 & 0xff));
    }
    if (type == Q6_K) {
        uint b = block * 210, place = (v & 15) / 4 * 8;
        uvec2 of_half = at64(row, b + 192 + v / 16 * 8);
        vec2 s = half_to_float(at16(row, b + 208)) * vec2(signed8(of_half.x >> place), signed8(of_half.y >> place));
        return Scales(s, -32.0 * s);
    }
    // Groups of 16: this one and the second behind it, whose scales are in one word.
    uint shift = (v & 7) / 4 * 8;
    if (type == Q2_K) {
        uint b = block * 84, w = word_at(row, b + 4 * quarter) >> shift;
        vec2 d = unpackHalf2x16(word_at(row, b + 80));
        return Scales(d.x * vec2(w & 15, w >> 16 & 15), -d.y * vec2(w >> 4 & 15, w >> 20 & 15));
    }
    if (type == Q3_K) {
        uint b = block * 110;
        uint low = at32(row, b + 96 + 4 * (quarter & 1), quarter / 2 * 4), high = at32(row, b + 104, 2 * quarter);
        uint w = (low & 0x0f0f0f0f | (high & 0x03030303) << 4) >> shift;
        vec2 s = half_to_float(at16(row, b + 108)) * (vec2(w & 0xff, w >> 16 & 0xff) - 32.0);
        return Scales(s, -4.0 * s);
    }
    if (type == IQ4_XS) {
        uint b = block * 136;
        return Scales(vec2(half_to_float(at16(row, b)) * scale_iq4_xs(plus(row, b), v / 4)), vec2(0));
    }
    return Scales(vec2(1), vec2(0));
}

// Where nibbles stand for numbers of a table: those of both nibbles of every byte.
const bool HAS_TABLE = TABLE_TYPE == IQ4_NL || TABLE_TYPE == IQ4_XS || TABLE_TYPE == MXFP4;

#ifndef WHOLE_NUMBERS
#define WHOLE_NUMBERS false
#endif

// Room for it only where it is needed: products of whole numbers have another one.
shared vec2 table[HAS_TABLE && !WHOLE_NUMBERS ? 256 : 1];

// Makes the table, before anything is looked up.
void make_table() {
    if (!HAS_TABLE) {
        return;
    }
    for (uint i = gl_LocalInvocationID.x * 4; i < 256; i += LANES * 4) {
        uvec2 q = nibbles(i | i + 1 << 8 | i + 2 << 16 | i + 3 << 24);
        vec4 low, high;
        if (TABLE_TYPE == MXFP4) {
            low = looked_up(q.x, MXFP4_VALUES);
            high = looked_up(q.y, MXFP4_VALUES);
        } else {
            low = looked_up(q.x, IQ4_VALUES);
            high = looked_up(q.y, IQ4_VALUES);
        }
        [[unroll]] for (uint j = 0; j < 4; j++) {
            table[i + j] = vec2(low[j], high[j]);
        }
    }
    barrier();
}

// The numbers of a word's nibbles.
Octet looked_up(uint w) {
    vec2 a = table[w & 0xff], b = table[w >> 8 & 0xff], c = table[w >> 16 & 0xff], d = table[w >> 24];
    return Octet(vec4(a.x, b.x, c.x, d.x), vec4(a.y, b.y, c.y, d.y));
}

// Eight elements that are no blocks.
Octet octet_of_elements(uint type, uvec2 row, uint u) {
    if (type == F32) {
        vec4 low = vec4(word_float(row, 8 * u), word_float(row, 8 * u + 1), word_float(row, 8 * u + 2), word_float(row, 8 * u + 3));
        vec4 high = vec4(word_float(row, 8 * u + 4), word_float(row, 8 * u + 5), word_float(row, 8 * u + 6), word_float(row, 8 * u + 7));
        return Octet(low, high);
    }
    uvec4 w = uvec4(Words(row).w[4 * u], Words(row).w[4 * u + 1], Words(row).w[4 * u + 2], Words(row).w[4 * u + 3]);
    return Octet(vec4(floats_of(type, w.x), floats_of(type, w.y)), vec4(floats_of(type, w.z), floats_of(type, w.w)));
}

Octet of_bytes(uvec2 q) {
    return Octet(bytes_of(q.x), bytes_of(q.y));
}

// Octet `u` of a row of `n`.
Octet octet(uint type, uvec2 row, uint u, uint n) {
    if (type == Q8_K) {
        return Octet(quad_of_256(type, row, 8 * u), quad_of_256(type, row, 8 * u + 4));
    }
    if (type > I32) {
        Pair p = pair_bytes(type, row, u);
        uvec2 q = uvec2(p.low.x, p.high.x);
        if (HAS_TABLE) {
            return looked_up(q.x);
        }
        // Bytes without a sign are less work.
        return of_bytes(q ^ (type == Q8_0 ? 0x80808080 : 0));
    }
    if (WHOLE) {
        return octet_of_elements(type, row, u);
    }
    return Octet(quad(type, row, 8 * u, n), quad(type, row, 8 * u + 4, n));
}

// Octet `u`, of an even number, and the one behind it, of blocks other than Q8_K.
Octet[2] octet_pair(uint type, uvec2 row, uint u) {
    Pair p = pair_bytes(type, row, u);
    if (HAS_TABLE) {
        return Octet[](looked_up(p.low.x), looked_up(p.low.y));
    }
    uint sign = type == Q8_0 ? 0x80808080 : 0;
    return Octet[](of_bytes(uvec2(p.low.x, p.high.x) ^ sign), of_bytes(uvec2(p.low.y, p.high.y) ^ sign));
}

// The scales of octet `u`; the one behind an even one has the same.
Scales scales(uint type, uvec2 row, uint u) {
    if (is_of_32(type)) {
        return scales_of_32(type, row, u);
    }
    if (type > I32) {
        return scales_of_256(type, row, u);
    }
    return Scales(vec2(1), vec2(0));
}

Octet scaled(Octet o, Scales s) {
    return Octet(s.scale.x * o.low + s.offset.x, s.scale.y * o.high + s.offset.y);
}
