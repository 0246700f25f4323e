// compute: 61
// SAMPLE: a block for each row, which finds the token as `Sampler::draw` does (core/src/op/sample.rs), with the same whole numbers.
#include "common.cuh"
#include "select.cuh"

const float HOTTEST = 1048576.0f;

INLINE u64 mix(u64 z) {
    z += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

// A number of 24 bits.
INLINE u32 uniform(u64 seed, u32 step) {
    return mix(mix(mix(seed) ^ step)) >> 40;
}

INLINE float unit(float x, float none) {
    return isnan(x) ? none : fminf(fmaxf(x, 0.0f), 1.0f);
}

INLINE u32 draw(Selection& s, const float* params, u64 seed, u32 step) {
    float temperature = params[0], top_k = params[1];
    // A positive number has bits from 1 on, below those of infinity.
    bool greedy = __float_as_uint(temperature) - 1 >= 0x7f7fffff || (top_k >= 1.0f && top_k < 2.0f);
    u32 k = top_k >= 1.0f ? u32(fminf(top_k, 4294967040.0f)) : s.length;
    if (greedy || s.first.code == code_of(minus_infinity())) {
        return s.first.place;
    }
    keep_largest(s, k);
    float top_p = unit(params[2], 1.0f), min_p = unit(params[3], 0.0f);
    if (top_p < 1.0f) {
        add_up(s, PLAIN);
        u64 needed = share(sum_of_all(), u32(top_p * 16777216.0f));
        s.last = select_added(s, PLAIN, needed == 0 ? 0 : needed - 1);
    }
    s.least = u32(min_p * 2147483648.0f);
    s.scale = __frcp_rn(fminf(fmaxf(temperature, 1.0f / HOTTEST), HOTTEST));
    add_up(s, SCALED);
    return select_added(s, SCALED, share(sum_of_all(), uniform(seed, step))).place;
}

KERNEL_OF(1024) sample(const Node node) {
    const Tensor &x = node.t[0], &params = node.t[1], &draws = node.t[2], &y = node.t[RESULT];
    u32 r = blockIdx.x;
    Selection s = selection(row(x, r), x.ne[0]);
    find_first(s);
    const u8* numbers = row(draws, r);
    u64 seed = word(numbers) | u64(word(numbers + draws.nb[0])) << 32;
    u32 token = draw(s, (const float*)row(params, r), seed, word(numbers + 2 * draws.nb[0]));
    if (threadIdx.x == 0) {
        write_word(y.at + r * y.nb[0], token);
    }
}
