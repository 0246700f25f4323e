// SAMPLE: a workgroup for each row, which finds the token as `Sampler::draw` does (core/src/op/sample.rs), with the same whole numbers.
#version 460

#include "common.glsl"
#include "select.glsl"

const float HOTTEST = 1048576.0;

// One over a number between 1/HOTTEST and HOTTEST, rounded to the nearest, which a division need not be: 2^47 over the mantissa, bit by bit.
float one_over(float x) {
    uint bits = floatBitsToUint(x), mantissa = bits & 0x7fffff | 0x800000, exponent = bits >> 23;
    if (mantissa == 0x800000) {
        return uintBitsToFloat(254 - exponent << 23);
    }
    uint quotient = 0, rest = 0x800000;
    for (uint i = 0; i < 24; i++) {
        rest <<= 1;
        quotient <<= 1;
        if (rest >= mantissa) {
            rest -= mantissa;
            quotient |= 1;
        }
    }
    quotient += 2 * rest > mantissa ? 1 : 0;
    return uintBitsToFloat((253 - exponent << 23) + (quotient - 0x800000));
}

u64 mix_(u64 z) {
    z = add(z, u64(0x7f4a7c15, 0x9e3779b9));
    z = multiply_low(z ^ u64(z.x >> 30 | z.y << 2, z.y >> 30), u64(0x1ce4e5b9, 0xbf58476d));
    z = multiply_low(z ^ u64(z.x >> 27 | z.y << 5, z.y >> 27), u64(0x133111eb, 0x94d049bb));
    return z ^ u64(z.x >> 31 | z.y << 1, z.y >> 31);
}

// A number of 24 bits.
uint uniform_(u64 seed, uint step_) {
    return mix_(mix_(mix_(seed) ^ u64(step_, 0))).y >> 8;
}

float unit(float x, float none) {
    return isnan(x) ? none : clamp(x, 0.0, 1.0);
}

// The row's parameters and draws, read once for all: they decide to which barriers a workgroup comes, and another queue of the client may write them meanwhile.
shared uint asked[7];

float asked_float(uint i) {
    return uintBitsToFloat(asked[i]);
}

uint draw() {
    float temperature = asked_float(0), top_k = asked_float(1);
    // A positive number has bits from 1 on, below those of infinity.
    bool greedy = asked[0] - 1 >= 0x7f7fffff || top_k >= 1.0 && top_k < 2.0;
    uint k = top_k >= 1.0 ? uint(min(top_k, 4294967040.0)) : length;
    if (greedy || first.x == code_of(0xff800000)) {
        return first.y;
    }
    keep_largest(k);
    float top_p = unit(asked_float(2), 1.0), min_p = unit(asked_float(3), 0.0);
    if (top_p < 1.0) {
        add_up(PLAIN, 0, uvec2(0));
        u64 needed = share(sum_of_all(), uint(top_p * 16777216.0));
        uvec2 last = select_added(PLAIN, needed == u64(0) ? needed : subtract(needed, u64(1, 0)));
        last_code = last.x;
        last_place = last.y;
    }
    least = uint(min_p * 2147483648.0);
    scale = one_over(clamp(temperature, 1.0 / HOTTEST, HOTTEST));
    add_up(SCALED, 0, uvec2(0));
    return select_added(SCALED, share(sum_of_all(), uniform_(u64(asked[4], asked[5]), asked[6]))).y;
}

void main() {
    Tensor x = tensor(0), params = tensor(1), draws = tensor(2), y = tensor(RESULT);
    uint r = group();
    if (r >= x.ne.y) {
        return;
    }
    elements = row(x, r);
    length = x.ne.x;
    first = first_of_all();
    uint lane = gl_LocalInvocationID.x;
    if (lane < 7) {
        asked[lane] = lane < 4 ? word(plus(row(params, r), 4 * lane)) : word(plus(row(draws, r), lane - 4, draws.nb.x));
    }
    barrier();
    uint token = draw();
    if (lane == 0) {
        Word(plus(y.at, r, y.nb.x)).w = token;
    }
}
