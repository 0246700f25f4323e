// What every kernel shares: how it finds its tensors, how it reads and writes them, and how it says that a value is wrong.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Element types, numbered as in DType::ALL.
const int F32 = 0, F16 = 1, BF16 = 2, I32 = 3;
const int Q4_0 = 4, Q4_1 = 5, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8;
const int Q2_K = 9, Q3_K = 10, Q4_K = 11, Q5_K = 12, Q6_K = 13, Q8_K = 14;
const int IQ4_NL = 15, IQ4_XS = 16, MXFP4 = 17;

// A tensor: its first element, elements and strides in bytes. The address is 0 where an optional source is left out.
struct Tensor {
    u8* at;
    u32 ne[4];
    u64 nb[4];
};

struct Fault {
    // 1 + the node that found a wrong value first; 0 if none has.
    u32 node;
    // What is wrong: one of the reasons below, the value, and what it must be below.
    u32 reason, value, limit;
};

// The parameter of every kernel, as src/record.rs writes it.
struct Node {
    // The sources, and the result as the last.
    Tensor t[9];
    // Parameters of the op.
    u32 p[18];
    // What the host has prepared for the node, or what its passes leave for one another.
    u8* table;
    Fault* fault;
    u32 number, unused;
};

const int RESULT = 8;
const u32 ROW = 1, POSITION = 2, SEQUENCE = 3, BLOCK = 4, EXPERT = 5, TOKEN = 6, STEP = 7, ID = 8;

// Lanes that work together on a row of weights or a query, and their mask.
const u32 WARP = 32, ALL_LANES = 0xffffffff;

#define INLINE __device__ __forceinline__
#define KERNEL extern "C" __global__ void
// One whose blocks have up to so many threads, and of which so many are to be on a multiprocessor: its registers must be enough for them.
#define KERNEL_OF(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)

INLINE float minus_infinity() {
    return __uint_as_float(0xff800000);
}

INLINE float number_param(const Node& node, int i) {
    return __uint_as_float(node.p[i]);
}

// Says that a value is wrong. Only the first to say so is heard.
INLINE void wrong(const Node& node, u32 reason, int value, u32 limit) {
    if (atomicCAS(&node.fault->node, 0, node.number + 1) == 0) {
        node.fault->reason = reason;
        node.fault->value = value;
        node.fault->limit = limit;
    }
}

// The first element of a row.
INLINE u8* row(const Tensor& t, u32 i1, u32 i2, u32 i3) {
    return t.at + i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3];
}

// The row of that place, counted over all dimensions above the first.
INLINE u8* row(const Tensor& t, u32 place) {
    return row(t, place % t.ne[1], place / t.ne[1] % t.ne[2], place / t.ne[1] / t.ne[2]);
}

INLINE u32 rows_of(const Tensor& t) {
    return t.ne[1] * t.ne[2] * t.ne[3];
}

// Elements.

INLINE float half_to_float(u16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

INLINE u16 float_to_half(float x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

// The same, as the low half of a word.
INLINE u32 float_to_half_word(float x) {
    u32 h;
    asm("{.reg .b16 h;\ncvt.rn.f16.f32 h, %1;\ncvt.u32.u16 %0, h;}" : "=r"(h) : "f"(x));
    return h;
}

// Nearest, ties to even; NaN stays NaN.
INLINE u16 float_to_bfloat(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return bits >> 16 | 0x40;
    }
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

INLINE float read_f32(const u8* at) {
    return *(const float*)at;
}

INLINE int read_i32(const u8* at) {
    return *(const int*)at;
}

INLINE u32 word(const u8* at) {
    return *(const u32*)at;
}

INLINE u32 half_word(const u8* at) {
    return *(const u16*)at;
}

INLINE void write_f32(u8* at, float x) {
    *(float*)at = x;
}

INLINE void write_word(u8* at, u32 w) {
    *(u32*)at = w;
}

INLINE u32 size_of(int type) {
    return type == F16 || type == BF16 ? 2 : 4;
}

// A number as an element of a type that is no block.
INLINE void write_element(int type, u8* at, float x) {
    if (type == F32) {
        write_f32(at, x);
    } else {
        *(u16*)at = type == F16 ? float_to_half(x) : float_to_bfloat(x);
    }
}

INLINE float read_element(int type, const u8* at) {
    if (type == F32) {
        return read_f32(at);
    }
    return type == F16 ? half_to_float(half_word(at)) : __uint_as_float(half_word(at) << 16);
}

// Reductions of a warp: every lane has the result.

INLINE float sum_of_warp(float x) {
    for (int offset = 16; offset > 0; offset /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, offset);
    }
    return x;
}

INLINE float max_of_warp(float x) {
    for (int offset = 16; offset > 0; offset /= 2) {
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
    }
    return x;
}

// The sum over each LANES lanes of value `lane % COUNT`. Each step exchanges half of the values with another lane.
template <u32 COUNT, u32 LANES, u32 ALL>
INLINE float add_lanes(float (&values)[ALL]) {
    if constexpr (COUNT > 1) {
        constexpr u32 half = COUNT / 2;
        bool upper = (threadIdx.x & half) != 0;
#pragma unroll
        for (u32 i = 0; i < half; i++) {
            float given = upper ? values[i] : values[i + half], kept = upper ? values[i + half] : values[i];
            values[i] = kept + __shfl_xor_sync(ALL_LANES, given, half);
        }
        return add_lanes<half, LANES>(values);
    } else if constexpr (ALL < LANES) {
#pragma unroll
        for (u32 offset = ALL; offset < LANES; offset *= 2) {
            values[0] += __shfl_xor_sync(ALL_LANES, values[0], offset);
        }
    }
    return values[0];
}

// Reductions of a block of whole warps, as many as a warp has lanes at most: every thread has the result.

__shared__ float places[WARP];

// What each warp has, in the lane of its number; `none` in the others.
INLINE float each_warp(float x, float none) {
    u32 lane = threadIdx.x % WARP;
    __syncthreads();
    places[threadIdx.x / WARP] = x;
    __syncthreads();
    return lane < blockDim.x / WARP ? places[lane] : none;
}

INLINE float sum_of(float x) {
    return sum_of_warp(each_warp(sum_of_warp(x), 0.0f));
}

INLINE float max_of(float x) {
    return max_of_warp(each_warp(max_of_warp(x), minus_infinity()));
}
