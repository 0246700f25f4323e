// What every kernel shares: how it finds its tensors, how it reads and writes them, and how it says that a value is wrong.
//
// Memory is reached by 64-bit addresses, as pairs of 32-bit numbers, in words of 32 bits: neither 64-bit integers nor 8- or 16-bit storage are
// needed, and a tensor may be larger than a storage buffer.

#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require
#extension GL_KHR_shader_subgroup_arithmetic : require

// Invocations of a workgroup.
layout(constant_id = 0) const uint LANES = 32;
layout(local_size_x_id = 0) in;

// Element types, numbered as in DType::ALL.
const uint F32 = 0, F16 = 1, BF16 = 2, I32 = 3;
const uint Q4_0 = 4, Q4_1 = 5, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8;
const uint Q2_K = 9, Q3_K = 10, Q4_K = 11, Q5_K = 12, Q6_K = 13, Q8_K = 14;
const uint IQ4_NL = 15, IQ4_XS = 16, MXFP4 = 17;

// A tensor: its first element, elements and strides in bytes. The address is 0 where an optional source is left out.
struct Tensor {
    uvec2 at;
    uvec2 unused;
    uvec4 ne;
    uvec4 nb;
};

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Word {
    uint w;
};
// Words behind one another: an index of 32 bits on an address that all invocations share costs a card nothing.
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Words {
    uint w[];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Fours {
    vec4 v[];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Node {
    // The sources, and the result as the last.
    Tensor t[9];
    // Parameters of the op.
    uvec4 p[5];
};
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Fault {
    // 1 + the node that found a wrong value first; 0 if none has.
    uint node;
    // What is wrong: one of the reasons below, the value, and what it must be below.
    uint reason, value, limit;
};
layout(push_constant, std430) uniform Push {
    uvec2 node_at;
    uvec2 fault_at;
    uint number;
};

// Infinities and NaN are values, which no compiler may take for impossible (SPV_KHR_float_controls: SignedZeroInfNanPreserve of 32 bits).
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4466], 4461, 32);

float minus_infinity() {
    return uintBitsToFloat(0xff800000);
}

const uint ROW = 1, POSITION = 2, SEQUENCE = 3, BLOCK = 4, EXPERT = 5, TOKEN = 6, STEP = 7, ID = 8;
const uint RESULT = 8;

Tensor tensor(uint i) {
    return Node(node_at).t[i];
}

uint param(uint i) {
    return Node(node_at).p[i >> 2][i & 3];
}

float number_param(uint i) {
    return uintBitsToFloat(param(i));
}

// Where the node's table is that the host has prepared, or what its passes leave for one another.
uvec2 constants() {
    return uvec2(param(18), param(19));
}

bool is_there(Tensor t) {
    return t.at != uvec2(0);
}

// The workgroup's place among all, which are spread over two dimensions where there are many.
uint group() {
    return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
}

// Says that a value is wrong. Only the first to say so is heard.
void wrong(uint reason, int value, uint limit) {
    Fault fault = Fault(fault_at);
    if (atomicCompSwap(fault.node, 0, number + 1) == 0) {
        fault.reason = reason;
        fault.value = uint(value);
        fault.limit = limit;
    }
}

uvec2 plus(uvec2 at, uint bytes) {
    uint carry;
    uint low = uaddCarry(at.x, bytes, carry);
    return uvec2(low, at.y + carry);
}

uvec2 plus(uvec2 at, uint count, uint stride) {
    uint high, low, carry;
    umulExtended(count, stride, high, low);
    low = uaddCarry(at.x, low, carry);
    return uvec2(low, at.y + high + carry);
}

// The first element of a row.
uvec2 row(Tensor t, uint i1, uint i2, uint i3) {
    return plus(plus(plus(t.at, i1, t.nb.y), i2, t.nb.z), i3, t.nb.w);
}

// The row of that place, counted over all dimensions above the first.
uvec2 row(Tensor t, uint place) {
    return row(t, place % t.ne.y, place / t.ne.y % t.ne.z, place / t.ne.y / t.ne.z);
}

// Elements.

uint word(uvec2 at) {
    return Word(at).w;
}

// 32 bits from any byte. What is behind the last byte may be read, but is not used: buffers have room for that.
uint bits32(uvec2 at) {
    uint shift = (at.x & 3) * 8;
    uvec2 whole = uvec2(at.x & ~3u, at.y);
    uint low = word(whole);
    if (shift == 0) {
        return low;
    }
    return low >> shift | word(plus(whole, 4)) << (32 - shift);
}

uint bits16(uvec2 at) {
    uint shift = (at.x & 3) * 8;
    if (shift == 24) {
        return bits32(at) & 0xffff;
    }
    return word(uvec2(at.x & ~3u, at.y)) >> shift & 0xffff;
}

uint bits8(uvec2 at) {
    return word(uvec2(at.x & ~3u, at.y)) >> ((at.x & 3) * 8) & 0xff;
}

// The float of 16 bits.
float half_to_float(uint h) {
    return unpackHalf2x16(h).x;
}

// Nearest, ties to even; NaN stays NaN.
uint float_to_half(float x) {
    uint bits = floatBitsToUint(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) {
        return sign | 0x7e00;
    }
    if (size >= 0x477ff000) {
        return sign | 0x7c00;
    }
    if (size < 0x38800000) {
        // Subnormal: a multiple of 2^-24, which the addition of 0.5 puts in the lowest bits.
        return sign | (floatBitsToUint(uintBitsToFloat(size) + 0.5) - 0x3f000000);
    }
    size += 0xfff + (size >> 13 & 1);
    return sign | (size - 0x38000000) >> 13;
}

uint float_to_bfloat(float x) {
    uint bits = floatBitsToUint(x);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return bits >> 16 | 0x40;
    }
    return bits + 0x7fff + (bits >> 16 & 1) >> 16;
}

float read_f32(uvec2 at) {
    return uintBitsToFloat(word(at));
}

void write_f32(uvec2 at, float x) {
    Word(at).w = floatBitsToUint(x);
}

int read_i32(uvec2 at) {
    return int(word(at));
}

// Writes some bits of a word and leaves the others, which other invocations may write.
void write_bits(uvec2 at, uint bits, uint width) {
    uint shift = (at.x & 3) * 8, mask = ((1u << width) - 1) << shift;
    Word to = Word(uvec2(at.x & ~3u, at.y));
    atomicAnd(to.w, ~mask);
    atomicOr(to.w, bits << shift & mask);
}

// A number as an element of a type that is no block.
void write_element(uint type, uvec2 at, float x) {
    if (type == F32) {
        write_f32(at, x);
    } else {
        write_bits(at, type == F16 ? float_to_half(x) : float_to_bfloat(x), 16);
    }
}

float read_element(uint type, uvec2 at) {
    if (type == F32) {
        return read_f32(at);
    }
    return type == F16 ? half_to_float(bits16(at)) : uintBitsToFloat(bits16(at) << 16);
}

// Reductions of a workgroup: every invocation has the result. The array has room for the smallest subgroups.

shared float places[LANES];

float sum_of(float x) {
    x = subgroupAdd(x);
    barrier();
    places[gl_SubgroupID] = x;
    barrier();
    x = places[0];
    for (uint i = 1; i < gl_NumSubgroups; i++) {
        x += places[i];
    }
    return x;
}

float max_of(float x) {
    x = subgroupMax(x);
    barrier();
    places[gl_SubgroupID] = x;
    barrier();
    x = places[0];
    for (uint i = 1; i < gl_NumSubgroups; i++) {
        x = max(x, places[i]);
    }
    return x;
}
