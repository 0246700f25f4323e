// Octets in two steps, so that a product can be computed between them while memory answers: what is read, and what is made of it.

// Words of an octet with its scales; of types without a first step of their own, the octet itself, as halves.
struct Raw {
    uvec4 a, b;
};

uvec4 halves_of(Octet o) {
    return uvec4(packHalf2x16(o.low.xy), packHalf2x16(o.low.zw), packHalf2x16(o.high.xy), packHalf2x16(o.high.zw));
}

// The word that a byte is in, and the one behind it.
uvec2 words_at(uvec2 row, uint byte) {
    return uvec2(Words(row).w[byte / 4], Words(row).w[byte / 4 + 1]);
}

// 32 bits that begin at that byte of them.
uint bits_of(uvec2 words, uint byte) {
    uint shift = (byte & 3) * 8;
    return words.x >> shift | words.y << 1 << (31 - shift);
}

// A byte of a row, of the word that it is in.
uint byte_of(uint word, uint byte) {
    return word >> ((byte & 3) * 8) & 0xff;
}

// The half that begins at an even byte of a row, of the word that it is in.
float half_of(uint word, uint byte) {
    return half_to_float(word >> ((byte & 2) * 8) & 0xffff);
}

// The bytes of an octet of Q6_K: its low bits, its high bits, its scales, and its block's scale.
uvec4 bytes_of_q6_k(uint u) {
    uint v = u & 31, b = u / 32 * 210, e = (v & 15) * 4;
    return uvec4(b + v / 16 * 64 + e, b + 128 + v / 16 * 32 + (e & 31), b + 192 + v / 16 * 8 + (v & 15) / 4, b + 208);
}

// Reads octet `u` of a row of `n`.
Raw fetched(uint type, uvec2 row, uint u, uint n) {
    if (WHOLE && type == F16) {
        return Raw(uvec4(words_at(row, 16 * u), words_at(row, 16 * u + 8)), uvec4(0));
    }
    if (WHOLE && type == Q4_0) {
        uint b = u / 4 * 18;
        return Raw(uvec4(words_at(row, b + 2 + (u & 3) * 4), Words(row).w[b / 4], 0), uvec4(0));
    }
    if (WHOLE && type == Q8_0) {
        uint b = u / 4 * 34, j = (u & 3) * 4;
        return Raw(uvec4(words_at(row, b + 2 + j), words_at(row, b + 18 + j)), uvec4(Words(row).w[b / 4], 0, 0, 0));
    }
    if (WHOLE && type == Q4_K) {
        uint b = u / 32 * 36, v = u & 31;
        uvec4 scales = uvec4(Words(row).w[b], Words(row).w[b + 1], Words(row).w[b + 2], Words(row).w[b + 3]);
        return Raw(uvec4(Words(row).w[b + 4 + v / 8 * 8 + (v & 7)], 0, 0, 0), scales);
    }
    if (WHOLE && type == Q6_K) {
        uvec4 at = bytes_of_q6_k(u);
        uvec4 scales = uvec4(Words(row).w[at.z / 4], Words(row).w[at.z / 4 + 1], Words(row).w[at.w / 4], 0);
        return Raw(uvec4(words_at(row, at.x), words_at(row, at.y)), scales);
    }
    return Raw(halves_of(scaled(octet(type, row, u, n), scales(type, row, u))), uvec4(0));
}

// Octet `u` as halves.
uvec4 unpacked(uint type, Raw r, uint u) {
    if (WHOLE && type == Q4_0) {
        uint b = u / 4 * 18;
        float d = half_of(r.a.z, b);
        return halves_of(scaled(of_bytes(nibbles(bits_of(r.a.xy, b + 2))), Scales(vec2(d), vec2(-8.0 * d))));
    }
    if (WHOLE && type == Q8_0) {
        uint b = u / 4 * 34;
        float d = half_of(r.b.x, b);
        uvec2 q = uvec2(bits_of(r.a.xy, b + 2), bits_of(r.a.zw, b + 18)) ^ 0x80808080;
        return halves_of(scaled(of_bytes(q), Scales(vec2(d), vec2(-128.0 * d))));
    }
    if (WHOLE && type == Q4_K) {
        vec2 d = unpackHalf2x16(r.b.x);
        uvec2 both = scales_min_k4(r.b.yzw, (u & 31) / 8);
        Scales s = Scales(d.x * vec2(both.x & 0xff, both.x >> 8 & 0xff), -d.y * vec2(both.y & 0xff, both.y >> 8 & 0xff));
        return halves_of(scaled(of_bytes(nibbles(r.a.x)), s));
    }
    if (WHOLE && type == Q6_K) {
        uvec4 at = bytes_of_q6_k(u);
        uint two = bits_of(r.a.zw, at.y) >> ((u & 15) / 8 * 2);
        uvec2 q = nibbles(bits_of(r.a.xy, at.x)) | uvec2(two & 0x03030303, two >> 4 & 0x03030303) << 4;
        vec2 s = half_of(r.b.z, at.w) * vec2(signed8(byte_of(r.b.x, at.z)), signed8(byte_of(r.b.y, at.z)));
        return halves_of(scaled(of_bytes(q), Scales(s, -32.0 * s)));
    }
    return r.a;
}
