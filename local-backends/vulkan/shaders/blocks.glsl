// Elements of every type, four at a time: how the bits of blocks are arranged is said in core/src/quant.

const uint QK = 256;

// Whether rows begin at whole words, so that fields at multiples of 4 do in blocks of whole words, and have whole pairs of octets.
#ifndef WHOLE
#define WHOLE false
#endif

// The table of IQ4_NL and IQ4_XS, and twice the values of MXFP4, four signed bytes a word.
const uint IQ4_VALUES[4] = uint[](0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535);
const uint MXFP4_VALUES[4] = uint[](0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc);

int signed8(uint bits) {
    return int(bits << 24) >> 24;
}

vec4 bytes_of(uint w) {
    return vec4(w & 0xff, w >> 8 & 0xff, w >> 16 & 0xff, w >> 24);
}

vec4 signed_bytes_of(uint w) {
    return vec4(signed8(w), signed8(w >> 8), signed8(w >> 16), signed8(w >> 24));
}

// Four nibbles, one in the low half of each byte, as numbers of a table.
vec4 looked_up(uint w, const uint table[4]) {
    vec4 v;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uint n = w >> (8 * i) & 15;
        uint four = n < 8 ? (n < 4 ? table[0] : table[1]) : (n < 12 ? table[2] : table[3]);
        v[i] = float(signed8(four >> (8 * (n & 3))));
    }
    return v;
}

// Four bits, from `shift` on in a word, each moved to a byte of its own.
uint spread(uint w, uint shift) {
    return (w >> shift & 15) * 0x00204081 & 0x01010101;
}

// Scale and minimum of group j of 8 in Q4_K and Q5_K.
vec2 scale_min_k4(uvec2 scales, uint j) {
    if (j < 4) {
        return vec2(bits8(plus(scales, j)) & 63, bits8(plus(scales, j + 4)) & 63);
    }
    uint low = bits8(plus(scales, j + 4)), s = bits8(plus(scales, j - 4)) >> 6, m = bits8(plus(scales, j)) >> 6;
    return vec2(low & 15 | s << 4, low >> 4 | m << 4);
}

// Scale of group j of 16 in Q3_K: 4 low bits in the first 8 bytes, 2 high bits in the last 4, minus 32.
float scale_q3_k(uvec2 scales, uint j) {
    uint low = bits8(plus(scales, j & 7)) >> (4 * (j / 8)) & 15;
    uint high = bits8(plus(scales, 8 + (j & 3))) >> (2 * (j / 4)) & 3;
    return float(int(low | high << 4) - 32);
}

// Scale of group j of 8 in IQ4_XS.
float scale_iq4_xs(uvec2 block, uint j) {
    uint high = bits16(plus(block, 2)) >> (2 * j) & 3;
    uint low = bits8(plus(block, 4 + j / 2)) >> (4 * (j & 1)) & 15;
    return float(int(low | high << 4) - 32);
}

// Elements i to i + 3 of a row, i a multiple of 4, of blocks of 32.
vec4 quad_of_32(uint type, uvec2 row, uint i) {
    uint block = i / 32, j = i & 31, shift = j < 16 ? 0 : 4;
    if (type == Q8_0) {
        uvec2 b = plus(row, block, 34);
        return half_to_float(bits16(b)) * signed_bytes_of(bits32(plus(b, 2 + j)));
    }
    if (type == Q4_0 || type == IQ4_NL) {
        uvec2 b = plus(row, block, 18);
        uint q = bits32(plus(b, 2 + (j & 15))) >> shift & 0x0f0f0f0f;
        return half_to_float(bits16(b)) * (type == Q4_0 ? bytes_of(q) - 8 : looked_up(q, IQ4_VALUES));
    }
    if (type == Q4_1) {
        uvec2 b = plus(row, block, 20);
        vec2 d = unpackHalf2x16(bits32(b));
        return d.x * bytes_of(bits32(plus(b, 4 + (j & 15))) >> shift & 0x0f0f0f0f) + d.y;
    }
    if (type == Q5_0) {
        uvec2 b = plus(row, block, 22);
        uint q = bits32(plus(b, 6 + (j & 15))) >> shift & 0x0f0f0f0f;
        return half_to_float(bits16(b)) * (bytes_of(q | spread(bits32(plus(b, 2)), j) << 4) - 16);
    }
    if (type == Q5_1) {
        uvec2 b = plus(row, block, 24);
        vec2 d = unpackHalf2x16(bits32(b));
        uint q = bits32(plus(b, 8 + (j & 15))) >> shift & 0x0f0f0f0f;
        return d.x * bytes_of(q | spread(bits32(plus(b, 4)), j) << 4) + d.y;
    }
    // MXFP4: half of 2^(e - 127); the two smallest are subnormal.
    uvec2 b = plus(row, block, 17);
    uint e = bits8(b);
    float d = uintBitsToFloat(e < 2 ? 0x00200000 << e : e - 1 << 23);
    return d * looked_up(bits32(plus(b, 1 + (j & 15))) >> shift & 0x0f0f0f0f, MXFP4_VALUES);
}

// The same of blocks of 256.
vec4 quad_of_256(uint type, uvec2 row, uint i) {
    uint block = i / QK, j = i & (QK - 1);
    // Two bits of an element: in each half of 128, byte l of 32 has elements l, l + 32, l + 64 and l + 96.
    uint two = j / 128 * 32 + (j & 31), two_shift = (j & 127) / 32 * 2;
    // Four bits: in each quarter of 64, byte l of 32 has elements l and l + 32.
    uint four = j / 64 * 32 + (j & 31), four_shift = (j & 63) / 32 * 4;
    if (type == Q2_K) {
        uvec2 b = plus(row, block, 84);
        vec2 d = unpackHalf2x16(bits32(plus(b, 80)));
        uint s = bits8(plus(b, j / 16));
        vec4 q = bytes_of(bits32(plus(b, 16 + two)) >> two_shift & 0x03030303);
        return d.x * float(s & 15) * q - d.y * float(s >> 4);
    }
    if (type == Q3_K) {
        uvec2 b = plus(row, block, 110);
        uint low = bits32(plus(b, 32 + two)) >> two_shift & 0x03030303;
        uint high = bits32(plus(b, j & 31)) >> (j / 32) & 0x01010101;
        float d = half_to_float(bits16(plus(b, 108))) * scale_q3_k(plus(b, 96), j / 16);
        return d * (bytes_of(low | high << 2) - 4);
    }
    if (type == Q4_K || type == Q5_K) {
        bool five = type == Q5_K;
        uvec2 b = plus(row, block, five ? 176 : 144);
        vec2 d = unpackHalf2x16(bits32(b)), s = scale_min_k4(plus(b, 4), j / 32);
        uint q = bits32(plus(b, (five ? 48 : 16) + four)) >> four_shift & 0x0f0f0f0f;
        if (five) {
            q |= (bits32(plus(b, 16 + (j & 31))) >> (j / 32) & 0x01010101) << 4;
        }
        return d.x * s.x * bytes_of(q) - d.y * s.y;
    }
    if (type == Q6_K) {
        uvec2 b = plus(row, block, 210);
        uint r = j & 127;
        uint low = bits32(plus(b, j / 128 * 64 + (r & 63))) >> (4 * (r / 64)) & 0x0f0f0f0f;
        uint high = bits32(plus(b, 128 + two)) >> two_shift & 0x03030303;
        float d = half_to_float(bits16(plus(b, 208))) * float(signed8(bits8(plus(b, 192 + j / 16))));
        return d * (bytes_of(low | high << 4) - 32);
    }
    if (type == Q8_K) {
        uvec2 b = plus(row, block, 292);
        return uintBitsToFloat(bits32(b)) * signed_bytes_of(bits32(plus(b, 4 + j)));
    }
    uvec2 b = plus(row, block, 136);
    float d = half_to_float(bits16(b)) * scale_iq4_xs(b, j / 32);
    // Groups of 32 in 16 bytes each, as in Q4_0.
    uint q = bits32(plus(b, 8 + j / 32 * 16 + (j & 15))) >> ((j & 31) < 16 ? 0 : 4);
    return d * looked_up(q & 0x0f0f0f0f, IQ4_VALUES);
}

bool is_of_32(uint type) {
    return type >= Q4_0 && type <= Q8_0 || type == IQ4_NL || type == MXFP4;
}

// Both floats of 16 bits of a word.
vec2 floats_of(uint type, uint w) {
    return type == F16 ? unpackHalf2x16(w) : uintBitsToFloat(uvec2(w << 16, w & 0xffff0000));
}

float word_float(uvec2 row, uint i) {
    return uintBitsToFloat(Words(row).w[i]);
}

// Elements i to i + 3 of a row of `n`, i a multiple of 4. What is behind the row's end is 0.
vec4 quad(uint type, uvec2 row, uint i, uint n) {
    if (is_of_32(type)) {
        return quad_of_32(type, row, i);
    }
    if (type > I32) {
        return quad_of_256(type, row, i);
    }
    if (WHOLE && type != F32) {
        return vec4(floats_of(type, Words(row).w[i / 2]), floats_of(type, Words(row).w[i / 2 + 1]));
    }
    vec4 v = vec4(0);
    [[unroll]] for (uint j = 0; j < 4; j++) {
        if (i + j < n) {
            v[j] = read_element(type, plus(row, i + j, type == F32 ? 4 : 2));
        }
    }
    return v;
}
