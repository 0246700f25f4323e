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

uint at32(uvec2 row, uint byte) {
    if (!WHOLE) {
        return bits32(plus(row, byte));
    }
    uint low = Words(row).w[byte / 4], high = Words(row).w[byte / 4 + 1], shift = (byte & 3) * 8;
    return low >> shift | high << 1 << (31 - shift);
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

// Nibbles of a word as the fours, low halves first.
uvec2 nibbles(uint w) {
    return uvec2(w & 0x0f0f0f0f, w >> 4 & 0x0f0f0f0f);
}

Octet of_bytes(uvec2 q) {
    return Octet(bytes_of(q.x), bytes_of(q.y));
}

// Where nibbles stand for numbers of a table: those of both nibbles of every byte.
const bool HAS_TABLE = TABLE_TYPE == IQ4_NL || TABLE_TYPE == IQ4_XS || TABLE_TYPE == MXFP4;

// Room for it only where it is needed.
shared vec2 table[HAS_TABLE ? 256 : 1];

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

Octet octet_of_32(uint type, uvec2 row, uint u) {
    uint block = u / 4, j = (u & 3) * 4;
    if (type == Q8_0) {
        uint b = block * 34;
        // Bytes without a sign are less work.
        return of_bytes(uvec2(at32(row, b + 2 + j), at32(row, b + 18 + j)) ^ 0x80808080);
    }
    if (type == Q4_0) {
        return of_bytes(nibbles(at32(row, block * 18 + 2 + j)));
    }
    if (type == Q4_1) {
        return of_bytes(nibbles(word_at(row, block * 20 + 4 + j)));
    }
    if (type == Q5_0) {
        uint b = block * 22, fifth = at32(row, b + 2);
        return of_bytes(nibbles(at32(row, b + 6 + j)) | uvec2(spread(fifth, j), spread(fifth, j + 16)) << 4);
    }
    if (type == Q5_1) {
        uint b = block * 24, fifth = word_at(row, b + 4);
        return of_bytes(nibbles(word_at(row, b + 8 + j)) | uvec2(spread(fifth, j), spread(fifth, j + 16)) << 4);
    }
    if (type == IQ4_NL) {
        return looked_up(at32(row, block * 18 + 2 + j));
    }
    return looked_up(at32(row, block * 17 + 1 + j));
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

Octet octet_of_256(uint type, uvec2 row, uint u) {
    uint block = u / 32, v = u & 31, quarter = v / 8, l = (v & 7) * 4;
    if (type == Q4_K || type == Q5_K) {
        bool five = type == Q5_K;
        uvec2 b = plus(row, block * (five ? 176 : 144)), q = nibbles(word_at(b, (five ? 48 : 16) + 32 * quarter + l));
        if (five) {
            uint fifth = word_at(b, 16 + l) >> (2 * quarter);
            q |= uvec2(fifth & 0x01010101, fifth >> 1 & 0x01010101) << 4;
        }
        return of_bytes(q);
    }
    if (type == Q6_K) {
        // In each half of 128, elements e and e + 64 share a byte.
        uint half_ = v / 16, e = (v & 15) * 4, b = block * 210;
        uvec2 q = nibbles(at32(row, b + half_ * 64 + e));
        uint two = at32(row, b + 128 + half_ * 32 + (e & 31)) >> (e / 32 * 2);
        return of_bytes(q | uvec2(two & 0x03030303, two >> 4 & 0x03030303) << 4);
    }
    // In each half of 128, four elements share a byte.
    uint shift = (quarter & 1) * 4;
    if (type == Q2_K) {
        uint w = word_at(row, block * 84 + 16 + quarter / 2 * 32 + l) >> shift;
        return of_bytes(uvec2(w, w >> 2) & 0x03030303);
    }
    if (type == Q3_K) {
        uint b = block * 110, w = at32(row, b + 32 + quarter / 2 * 32 + l) >> shift, third = at32(row, b + l) >> (2 * quarter);
        return of_bytes(uvec2(w, w >> 2) & 0x03030303 | (uvec2(third, third >> 1) & 0x01010101) << 2);
    }
    if (type == IQ4_XS) {
        return looked_up(word_at(row, block * 136 + 8 + v / 4 * 16 + (v & 3) * 4));
    }
    return Octet(quad_of_256(type, row, 8 * u), quad_of_256(type, row, 8 * u + 4));
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
        uint b = block * 210, scales = b + 192 + v / 16 * 8 + (v & 15) / 4;
        vec2 s = half_to_float(at16(row, b + 208)) * vec2(signed8(at8(row, scales)), signed8(at8(row, scales + 4)));
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
        uint low = at32(row, b + 96 + 4 * (quarter & 1)) >> (4 * (quarter / 2)), high = at32(row, b + 104) >> (2 * quarter);
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

// Octet `u` of a row of `n`.
Octet octet(uint type, uvec2 row, uint u, uint n) {
    if (is_of_32(type)) {
        return octet_of_32(type, row, u);
    }
    if (type > I32) {
        return octet_of_256(type, row, u);
    }
    if (WHOLE) {
        return octet_of_elements(type, row, u);
    }
    return Octet(quad(type, row, 8 * u, n), quad(type, row, 8 * u + 4, n));
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
