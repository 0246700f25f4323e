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
    vec2 scale, offset;
};

// Whether offsets may be other than 0.
bool has_offset(uint type) {
    return type == Q4_0 || type == Q4_1 || type == Q5_0 || type == Q5_1 || type >= Q2_K && type <= Q6_K;
}

// Bits from a byte of a row. Where rows begin at whole words, `at16` is for even bytes.

uint at32(uvec2 row, uint byte) {
    if (!WHOLE) {
        return bits32(plus(row, byte));
    }
    uint low = Words(row).w[byte / 4], high = Words(row).w[byte / 4 + 1], shift = (byte & 3) * 8;
    return shift == 0 ? low : low >> shift | high << (32 - shift);
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

Octet of_bytes(uvec2 q, vec2 scale, vec2 offset) {
    return Octet(bytes_of(q.x), bytes_of(q.y), scale, offset);
}

Octet octet_of_32(uint type, uvec2 row, uint u) {
    uint block = u / 4, j = (u & 3) * 4;
    if (type == Q8_0) {
        uint b = block * 34;
        vec4 low = signed_bytes_of(at32(row, b + 2 + j)), high = signed_bytes_of(at32(row, b + 18 + j));
        return Octet(low, high, vec2(half_to_float(at16(row, b))), vec2(0));
    }
    if (type == Q4_0) {
        uint b = block * 18;
        float d = half_to_float(at16(row, b));
        return of_bytes(nibbles(at32(row, b + 2 + j)), vec2(d), vec2(-8.0 * d));
    }
    if (type == Q4_1) {
        uint b = block * 20;
        vec2 d = unpackHalf2x16(word_at(row, b));
        return of_bytes(nibbles(word_at(row, b + 4 + j)), d.xx, d.yy);
    }
    if (type == Q5_0) {
        uint b = block * 22, fifth = at32(row, b + 2);
        float d = half_to_float(at16(row, b));
        uvec2 q = nibbles(at32(row, b + 6 + j)) | uvec2(spread(fifth, j), spread(fifth, j + 16)) << 4;
        return of_bytes(q, vec2(d), vec2(-16.0 * d));
    }
    if (type == Q5_1) {
        uint b = block * 24, fifth = word_at(row, b + 4);
        vec2 d = unpackHalf2x16(word_at(row, b));
        uvec2 q = nibbles(word_at(row, b + 8 + j)) | uvec2(spread(fifth, j), spread(fifth, j + 16)) << 4;
        return of_bytes(q, d.xx, d.yy);
    }
    if (type == IQ4_NL) {
        uint b = block * 18;
        uvec2 q = nibbles(at32(row, b + 2 + j));
        return Octet(looked_up(q.x, IQ4_VALUES), looked_up(q.y, IQ4_VALUES), vec2(half_to_float(at16(row, b))), vec2(0));
    }
    vec4 low = quad_of_32(type, row, block * 32 + j), high = quad_of_32(type, row, block * 32 + j + 16);
    return Octet(low, high, vec2(1), vec2(0));
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
        uvec2 b = plus(row, block * (five ? 176 : 144));
        vec2 d = unpackHalf2x16(word_at(b, 0));
        uvec3 words = uvec3(word_at(b, 4), word_at(b, 8), word_at(b, 12));
        uvec2 both = scales_min_k4(words, quarter);
        uvec2 q = nibbles(word_at(b, (five ? 48 : 16) + 32 * quarter + l));
        if (five) {
            uint fifth = word_at(b, 16 + l) >> (2 * quarter);
            q |= uvec2(fifth & 0x01010101, fifth >> 1 & 0x01010101) << 4;
        }
        return of_bytes(q, d.x * vec2(both.x & 0xff, both.x >> 8 & 0xff), -d.y * vec2(both.y & 0xff, both.y >> 8 & 0xff));
    }
    if (type == Q6_K) {
        // In each half of 128, elements e and e + 64 share a byte.
        uint half_ = v / 16, e = (v & 15) * 4, b = block * 210;
        uvec2 q = nibbles(at32(row, b + half_ * 64 + e));
        uint two = at32(row, b + 128 + half_ * 32 + (e & 31)) >> (e / 32 * 2);
        q |= uvec2(two & 0x03030303, two >> 4 & 0x03030303) << 4;
        uint scales = b + 192 + half_ * 8 + e / 16;
        vec2 s = half_to_float(at16(row, b + 208)) * vec2(signed8(at8(row, scales)), signed8(at8(row, scales + 4)));
        return of_bytes(q, s, -32.0 * s);
    }
    // In each half of 128, four elements share a byte.
    uint shift = (quarter & 1) * 4, group = quarter * 4 + l / 16;
    if (type == Q2_K) {
        uint b = block * 84, w = word_at(row, b + 16 + quarter / 2 * 32 + l) >> shift;
        vec2 d = unpackHalf2x16(word_at(row, b + 80));
        uint s = at8(row, b + group), t = at8(row, b + group + 2);
        return of_bytes(uvec2(w, w >> 2) & 0x03030303, d.x * vec2(s & 15, t & 15), -d.y * vec2(s >> 4, t >> 4));
    }
    if (type == Q3_K) {
        uint b = block * 110, w = at32(row, b + 32 + quarter / 2 * 32 + l) >> shift, third = at32(row, b + l) >> (2 * quarter);
        uvec2 q = uvec2(w, w >> 2) & 0x03030303 | (uvec2(third, third >> 1) & 0x01010101) << 2;
        uvec2 scales = plus(row, b + 96);
        vec2 s = half_to_float(at16(row, b + 108)) * vec2(scale_q3_k(scales, group), scale_q3_k(scales, group + 2));
        return of_bytes(q, s, -4.0 * s);
    }
    if (type == IQ4_XS) {
        uint group_of_32 = v / 4, b = block * 136;
        uvec2 q = nibbles(word_at(row, b + 8 + group_of_32 * 16 + (v & 3) * 4));
        float d = half_to_float(at16(row, b)) * scale_iq4_xs(plus(row, b), group_of_32);
        return Octet(looked_up(q.x, IQ4_VALUES), looked_up(q.y, IQ4_VALUES), vec2(d), vec2(0));
    }
    return Octet(quad_of_256(type, row, 8 * u), quad_of_256(type, row, 8 * u + 4), vec2(1), vec2(0));
}

// Eight elements that are no blocks.
Octet octet_of_elements(uint type, uvec2 row, uint u) {
    vec4 low, high;
    if (type == F32) {
        low = vec4(word_float(row, 8 * u), word_float(row, 8 * u + 1), word_float(row, 8 * u + 2), word_float(row, 8 * u + 3));
        high = vec4(word_float(row, 8 * u + 4), word_float(row, 8 * u + 5), word_float(row, 8 * u + 6), word_float(row, 8 * u + 7));
    } else {
        uvec4 w = uvec4(Words(row).w[4 * u], Words(row).w[4 * u + 1], Words(row).w[4 * u + 2], Words(row).w[4 * u + 3]);
        low = vec4(floats_of(type, w.x), floats_of(type, w.y));
        high = vec4(floats_of(type, w.z), floats_of(type, w.w));
    }
    return Octet(low, high, vec2(1), vec2(0));
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
    return Octet(quad(type, row, 8 * u, n), quad(type, row, 8 * u + 4, n), vec2(1), vec2(0));
}
