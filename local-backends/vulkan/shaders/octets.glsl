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

// Nibbles of a word as the fours, low halves first.
uvec2 nibbles(uint w) {
    return uvec2(w & 0x0f0f0f0f, w >> 4 & 0x0f0f0f0f);
}

void octet_of_32(uint type, uvec2 row, uint u, out vec4 low, out vec4 high) {
    uint block = u / 4, j = (u & 3) * 4;
    if (type == Q8_0) {
        uvec2 b = plus(row, block, 34);
        float d = half_to_float(bits16(b));
        low = d * signed_bytes_of(bits32(plus(b, 2 + j)));
        high = d * signed_bytes_of(bits32(plus(b, 18 + j)));
    } else if (type == Q4_1 || type == Q5_1) {
        uint head = type == Q4_1 ? 4 : 8;
        uvec2 b = plus(row, block, head + 16);
        vec2 d = unpackHalf2x16(whole32(b));
        uvec2 q = nibbles(whole32(plus(b, head + j)));
        if (type == Q5_1) {
            uint fifth = whole32(plus(b, 4));
            q |= uvec2(spread(fifth, j), spread(fifth, j + 16)) << 4;
        }
        low = d.x * bytes_of(q.x) + d.y;
        high = d.x * bytes_of(q.y) + d.y;
    } else if (type == Q5_0) {
        uvec2 b = plus(row, block, 22);
        float d = half_to_float(bits16(b));
        uint fifth = bits32(plus(b, 2));
        uvec2 q = nibbles(bits32(plus(b, 6 + j))) | uvec2(spread(fifth, j), spread(fifth, j + 16)) << 4;
        low = d * (bytes_of(q.x) - 16);
        high = d * (bytes_of(q.y) - 16);
    } else if (type == Q4_0 || type == IQ4_NL) {
        uvec2 b = plus(row, block, 18);
        float d = half_to_float(bits16(b));
        uvec2 q = nibbles(bits32(plus(b, 2 + j)));
        low = d * (type == Q4_0 ? bytes_of(q.x) - 8 : looked_up(q.x, IQ4_VALUES));
        high = d * (type == Q4_0 ? bytes_of(q.y) - 8 : looked_up(q.y, IQ4_VALUES));
    } else {
        low = quad_of_32(type, row, block * 32 + j);
        high = quad_of_32(type, row, block * 32 + j + 16);
    }
}

void octet_of_256(uint type, uvec2 row, uint u, out vec4 low, out vec4 high) {
    uint block = u / 32, v = u & 31;
    if (type == Q4_K || type == Q5_K) {
        bool five = type == Q5_K;
        uint quarter = v / 8, l = (v & 7) * 4;
        uvec2 b = plus(row, block, five ? 176 : 144);
        vec2 d = unpackHalf2x16(whole32(b));
        vec2 s = scale_min_k4(plus(b, 4), 2 * quarter), t = scale_min_k4(plus(b, 4), 2 * quarter + 1);
        uvec2 q = nibbles(whole32(plus(b, (five ? 48 : 16) + 32 * quarter + l)));
        if (five) {
            uint fifth = whole32(plus(b, 16 + l)) >> (2 * quarter);
            q |= uvec2(fifth & 0x01010101, fifth >> 1 & 0x01010101) << 4;
        }
        low = d.x * s.x * bytes_of(q.x) - d.y * s.y;
        high = d.x * t.x * bytes_of(q.y) - d.y * t.y;
    } else if (type == Q6_K) {
        uint half_ = v / 16, l = (v & 15) * 4, shift = l / 32 * 2;
        uvec2 b = plus(row, block, 210);
        uvec2 q = nibbles(bits32(plus(b, half_ * 64 + l)));
        uint two = bits32(plus(b, 128 + half_ * 32 + (l & 31))) >> shift;
        q |= uvec2(two & 0x03030303, two >> 4 & 0x03030303) << 4;
        float d = half_to_float(bits16(plus(b, 208)));
        uvec2 scales = plus(b, 192 + half_ * 8 + l / 16);
        low = d * float(signed8(bits8(scales))) * (bytes_of(q.x) - 32);
        high = d * float(signed8(bits8(plus(scales, 4)))) * (bytes_of(q.y) - 32);
    } else if (type == Q2_K || type == Q3_K) {
        // Elements of a quarter and the words that have them, in each half of 128.
        uint quarter = v / 8, l = (v & 7) * 4, shift = (quarter & 1) * 4, group = quarter * 4 + l / 16;
        uvec2 b = plus(row, block, type == Q2_K ? 84 : 110);
        uint w = bits32(plus(b, (type == Q2_K ? 16 : 32) + quarter / 2 * 32 + l)) >> shift;
        uvec2 q = uvec2(w & 0x03030303, w >> 2 & 0x03030303);
        if (type == Q2_K) {
            vec2 d = unpackHalf2x16(bits32(plus(b, 80)));
            uint s = bits8(plus(b, group)), t = bits8(plus(b, group + 2));
            low = d.x * float(s & 15) * bytes_of(q.x) - d.y * float(s >> 4);
            high = d.x * float(t & 15) * bytes_of(q.y) - d.y * float(t >> 4);
        } else {
            uint third = bits32(plus(b, l)) >> (2 * quarter);
            q |= uvec2(third & 0x01010101, third >> 1 & 0x01010101) << 2;
            float d = half_to_float(bits16(plus(b, 108)));
            low = d * scale_q3_k(plus(b, 96), group) * (bytes_of(q.x) - 4);
            high = d * scale_q3_k(plus(b, 96), group + 2) * (bytes_of(q.y) - 4);
        }
    } else if (type == IQ4_XS) {
        uint group = v / 4;
        uvec2 b = plus(row, block, 136);
        float d = half_to_float(bits16(b)) * scale_iq4_xs(b, group);
        uvec2 q = nibbles(whole32(plus(b, 8 + group * 16 + (v & 3) * 4)));
        low = d * looked_up(q.x, IQ4_VALUES);
        high = d * looked_up(q.y, IQ4_VALUES);
    } else {
        low = quad_of_256(type, row, 8 * u);
        high = quad_of_256(type, row, 8 * u + 4);
    }
}

// The fours of octet `u` of a row of `n`.
void octet(uint type, uvec2 row, uint u, uint n, out vec4 low, out vec4 high) {
    if (is_of_32(type)) {
        octet_of_32(type, row, u, low, high);
    } else if (type > I32) {
        octet_of_256(type, row, u, low, high);
    } else {
        low = quad(type, row, 8 * u, n);
        high = quad(type, row, 8 * u + 4, n);
    }
}
