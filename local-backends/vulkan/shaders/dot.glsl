// Weights as signed bytes, and their products with those of columns, four at once (SPV_KHR_integer_dot_product).

// OpSDot, and its capabilities DotProduct and DotProductInput4x8BitPacked. The format is 0: four bytes of a word.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int signed_dot(int a, int b, spirv_literal int format);

int dot4(uint a, uint b) {
    return signed_dot(int(a), int(b), 0);
}

// A product of eight, added to a sum. The instruction adds, if sums are written in this order.
int dot8(uvec2 a, uvec2 b, int sum) {
    return sum + dot4(a.x, b.x) + dot4(a.y, b.y);
}

int dot8(uvec2 a, uvec2 b) {
    return dot8(a, b, 0);
}

// Whether both fours of an octet have the same scales.
bool has_one_scale() {
    return is_of_32(TYPE) || TYPE == IQ4_XS;
}

// The zero point of a type, in each of four bytes, where it is the same for all weights: -8, -16, -4, -32. The sum of (w + z) x is that of w x, and z times
// the sum of x, with which it begins.
const uint ADDED = TYPE == Q4_0 ? 0xf8f8f8f8 : TYPE == Q5_0 ? 0xf0f0f0f0 : TYPE == Q3_K ? 0xfcfcfcfc : TYPE == Q6_K ? 0xe0e0e0e0 : 0;

// Whether blocks, or groups in them, have offsets of their own: bytes of Q8_0 have signs.
bool offsets_vary() {
    return TYPE != Q8_0 && ADDED == 0 && has_offset(TYPE);
}

// Where nibbles stand for numbers of a table: those of both nibbles of every byte, in bytes 0 and 2.
shared uint number_pairs[HAS_TABLE ? 256 : 1];

// Makes them, before anything is looked up.
void make_pairs() {
    if (!HAS_TABLE) {
        return;
    }
    for (uint i = gl_LocalInvocationID.x; i < 256; i += LANES) {
        uvec2 n = uvec2(i & 15, i >> 4);
        uint low = TYPE == MXFP4 ? MXFP4_VALUES[n.x / 4] : IQ4_VALUES[n.x / 4];
        uint high = TYPE == MXFP4 ? MXFP4_VALUES[n.y / 4] : IQ4_VALUES[n.y / 4];
        number_pairs[i] = low >> (8 * (n.x & 3)) & 0xff | (high >> (8 * (n.y & 3)) & 0xff) << 16;
    }
    barrier();
}

// Numbers of a word's nibbles, as both fours.
uvec2 numbers_of(uint w) {
    uint first = number_pairs[w & 0xff] | number_pairs[w >> 8 & 0xff] << 8;
    uint last = number_pairs[w >> 16 & 0xff] | number_pairs[w >> 24] << 8;
    return uvec2(first & 0xffff | last << 16, first >> 16 | last & 0xffff0000);
}

// Octet `u` of a row, of an even number, and the one behind it.
Pair signed_pair(uvec2 row, uint u) {
    Pair p = pair_bytes(TYPE, row, u);
    if (!HAS_TABLE) {
        return p;
    }
    uvec2 a = numbers_of(p.low.x), b = numbers_of(p.low.y);
    return Pair(uvec2(a.x, b.x), uvec2(a.y, b.y));
}

// Of a column of `n`: two octets of bytes, at the places that octets of weights have, and the groups that these are in, each as its scale and its sums.
struct Columns {
    Pair fours;
    uvec2 of_low, of_high;
};

// Octets at these places, whose distance is known when the kernel is compiled: 16, or a multiple of 32.
Columns columns_at(uvec2 column, uint n, uvec2 at) {
    uvec2 low = plus(column, at.x), group = plus(column, n + at.x / 32 * 8);
    uint apart = at.y - at.x;
    uvec2 of_low = Twos(group).v[0];
    return Columns(Pair(Twos(low).v[0], Twos(low).v[apart / 8]), of_low, apart < 32 ? of_low : Twos(group).v[apart / 32]);
}
