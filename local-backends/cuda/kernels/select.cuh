// Places in a row by size without sorting it: largest first, equals by index. A block counts how many elements, or how much of their weight, lie
// in each of many buckets by their distance from the largest, and compares those of the bucket in which the place is with one another. If there
// are too many, it finds the element digit by digit of its code, then of its index.

// What NaN stands for: nothing, or what comes before everything.
#ifndef CODE_OF_NAN
#define CODE_OF_NAN 0xff800000
#endif

// Elements that are kept in a list of their own once there are so few, and those of a bucket.
const u32 LISTED = 256;
const u32 MOST_IN_BUCKET = 1024;
const u32 DIGITS = 256;
// Buckets, how many there are to a distance of 1, and the groups that they are added up in.
const u32 BUCKETS = 2048, BUCKETS_OF_ONE = 64, GROUPS = 64;
// Elements that a thread reads together.
const u32 AT_ONCE = 8;

// How elements count.
const u32 EACH = 0, PLAIN = 1, SCALED = 2;

// What the elements in a bucket, or with a digit, weigh, alone and in groups.
__shared__ u64 sums[BUCKETS], groups[GROUPS];
__shared__ u64 found_rest;
__shared__ u32 found, found_place;
__shared__ u32 list_length, bucket_length;
__shared__ u32 list_codes[LISTED], list_places[LISTED];
__shared__ u32 bucket_codes[MOST_IN_BUCKET], bucket_places[MOST_IN_BUCKET];

// An element: its code, and its place in the row.
struct Element {
    u32 code, place;
};

INLINE bool is_before(Element a, Element b) {
    return a.code < b.code || (a.code == b.code && a.place < b.place);
}

// The row, its largest element, and which of its elements are kept: those up to one that weigh enough.
struct Selection {
    const float* elements;
    u32 length;
    Element first;
    // Those that are kept and listed, if they are.
    bool is_listed;
    u32 listed;
    Element last;
    u32 least;
    // One over the temperature.
    float scale;
};

INLINE Selection selection(const u8* row, u32 length) {
    return {(const float*)row, length, {0, 0}, false, 0, {~0u, ~0u}, 0, 1.0f};
}

// So many parts of 2^24 of a sum.
INLINE u64 share(u64 sum, u32 parts) {
    return __umul64hi(sum, parts) << 40 | sum * parts >> 24;
}

// Codes grow as numbers fall.
INLINE u32 code_of(float x) {
    if (isnan(x)) {
        return CODE_OF_NAN;
    }
    u32 bits = x == 0.0f ? 0 : __float_as_uint(x);
    return (bits & 0x80000000) != 0 ? bits : ~bits & 0x7fffffff;
}

INLINE float number_of(u32 code) {
    return __uint_as_float((code & 0x80000000) != 0 ? code : ~code & 0x7fffffff);
}

// As `weight` in core/src/op/sample.rs, to the bit.
INLINE u32 weight_of(const Selection& s, u32 code, float scale) {
    if (code == s.first.code) {
        return 0x80000000;
    }
    float distance = __fmul_rn(__fsub_rn(number_of(s.first.code), number_of(code)), scale);
    float halvings = __fmul_rn(distance, 1.44269504088896341f);
    if (!(halvings < 32.0f)) {
        return 0;
    }
    u32 fixed = u32(__fmul_rn(halvings, 16777216.0f)), part = fixed << 8, sum = 0xbda6;
    sum = 0x0009c200 - __umulhi(part, sum);
    sum = 0x005728b0 - __umulhi(part, sum);
    sum = 0x027641a9 - __umulhi(part, sum);
    sum = 0x0e358127 - __umulhi(part, sum);
    sum = 0x3d7f7bcb - __umulhi(part, sum);
    sum = 0xb17217f7 - __umulhi(part, sum);
    return (0x80000000 - (__umulhi(part, sum) >> 1)) >> (fixed >> 24);
}

// Calls `use` for each element, each thread for some.
template <typename Use>
INLINE void for_each(const Selection& s, Use use) {
    for (u32 i = threadIdx.x; i < s.listed; i += blockDim.x) {
        use(Element{list_codes[i], list_places[i]});
    }
    for (u32 begin = threadIdx.x; !s.is_listed && begin < s.length; begin += AT_ONCE * blockDim.x) {
        float x[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            x[i] = s.elements[min(begin + i * blockDim.x, s.length - 1)];
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 place = begin + i * blockDim.x;
            if (place < s.length) {
                use(Element{code_of(x[i]), place});
            }
        }
    }
}

INLINE Element first_of_warp(Element e) {
    for (int offset = 16; offset > 0; offset /= 2) {
        Element other = {__shfl_xor_sync(ALL_LANES, e.code, offset), __shfl_xor_sync(ALL_LANES, e.place, offset)};
        e = is_before(other, e) ? other : e;
    }
    return e;
}

INLINE void find_first(Selection& s) {
    Element best = {~0u, ~0u};
    u32 lane = threadIdx.x % WARP;
    for_each(s, [&](Element e) { best = is_before(e, best) ? e : best; });
    best = first_of_warp(best);
    if (lane == 0) {
        list_codes[threadIdx.x / WARP] = best.code;
        list_places[threadIdx.x / WARP] = best.place;
    }
    __syncthreads();
    bool is_there = lane < blockDim.x / WARP;
    s.first = first_of_warp({is_there ? list_codes[lane] : ~0u, is_there ? list_places[lane] : ~0u});
    __syncthreads();
}

INLINE bool is_kept(const Selection& s, Element e) {
    return !is_before(s.last, e) && (s.least == 0 || weight_of(s, e.code, 1.0f) >= s.least);
}

INLINE u32 counted(const Selection& s, Element e, u32 how) {
    return how == EACH ? 1 : weight_of(s, e.code, how == PLAIN ? 1.0f : s.scale);
}

// Buckets come in the order of codes: a difference never grows where one of its numbers does not fall.
INLINE u32 bucket_of(const Selection& s, u32 code) {
    if (code <= s.first.code) {
        return 0;
    }
    float distance = number_of(s.first.code) - number_of(code);
    return distance < float(BUCKETS / BUCKETS_OF_ONE) ? u32(distance * BUCKETS_OF_ONE) : BUCKETS - 1;
}

INLINE void clear_sums(u32 count) {
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        sums[i] = 0;
    }
    __syncthreads();
}

// Adds up the sums in groups.
INLINE void add_groups(u32 count) {
    __syncthreads();
    for (u32 g = threadIdx.x; g < GROUPS; g += blockDim.x) {
        u64 sum = 0;
        for (u32 i = 0; i < count / GROUPS; i++) {
            sum += sums[g * (count / GROUPS) + i];
        }
        groups[g] = sum;
    }
    __syncthreads();
}

// Adds up the kept elements by their bucket.
__device__ __noinline__ void add_up(const Selection& s, u32 how) {
    clear_sums(BUCKETS);
    for_each(s, [&](Element e) {
        u32 weight = is_kept(s, e) ? counted(s, e, how) : 0;
        if (weight > 0) {
            atomicAdd(&sums[bucket_of(s, e.code)], u64(weight));
        }
    });
    add_groups(BUCKETS);
}

// Adds up the kept elements of a bucket whose code and place have these digits in front of digit `number`, by that digit. Codes have four digits,
// places three.
__device__ __noinline__ void add_up_digits(const Selection& s, u32 how, u32 bucket, u32 number, Element prefix) {
    u32 shift = number < 4 ? 24 - 8 * number : 48 - 8 * number;
    Element mask = {~0u, 0};
    if (number < 4) {
        mask.code = number == 0 ? 0 : ~0u << (32 - 8 * number);
    } else if (number > 4) {
        mask.place = ~0u << (56 - 8 * number);
    }
    clear_sums(DIGITS);
    for_each(s, [&](Element e) {
        bool here = (e.code & mask.code) == prefix.code && (e.place & mask.place) == prefix.place;
        if (here && bucket_of(s, e.code) == bucket && is_kept(s, e)) {
            u32 digit = (number < 4 ? e.code : e.place) >> shift & (DIGITS - 1);
            atomicAdd(&sums[digit], u64(counted(s, e, how)));
        }
    });
    add_groups(DIGITS);
}

// What all that were added up weigh.
INLINE u64 sum_of_all() {
    u64 sum = 0;
    for (u32 i = 0; i < GROUPS; i++) {
        sum += groups[i];
    }
    return sum;
}

// Which of the sums goes beyond a number, and what is left of the number in front of it.
INLINE void find_sum(u32 count, u64 number) {
    if (threadIdx.x == 0) {
        u64 before = 0;
        u32 g = 0;
        while (g < GROUPS - 1 && before + groups[g] <= number) {
            before += groups[g++];
        }
        u32 i = g * (count / GROUPS), last = i + count / GROUPS - 1;
        while (i < last && before + sums[i] <= number) {
            before += sums[i++];
        }
        found = i;
        found_rest = number - before;
    }
    __syncthreads();
}

// Lists the kept elements of a bucket; returns how many there are, which may be more than fit.
INLINE u32 list_bucket(const Selection& s, u32 bucket) {
    if (threadIdx.x == 0) {
        bucket_length = 0;
    }
    __syncthreads();
    for_each(s, [&](Element e) {
        if (bucket_of(s, e.code) == bucket && is_kept(s, e)) {
            u32 at = atomicAdd(&bucket_length, 1);
            if (at < MOST_IN_BUCKET) {
                bucket_codes[at] = e.code;
                bucket_places[at] = e.place;
            }
        }
    });
    __syncthreads();
    return bucket_length;
}

// Of the listed elements the one at which the sum goes beyond a number: what comes before it weighs no more.
INLINE Element select_listed(const Selection& s, u32 how, u32 length, u64 number) {
    if (threadIdx.x == 0) {
        found = 0;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < length; i += blockDim.x) {
        Element mine = {bucket_codes[i], bucket_places[i]};
        u64 before = 0;
        for (u32 j = 0; j < length; j++) {
            Element e = {bucket_codes[j], bucket_places[j]};
            before += is_before(e, mine) ? counted(s, e, how) : 0;
        }
        if (before <= number && number < before + counted(s, mine, how)) {
            found = i;
        }
    }
    __syncthreads();
    Element e = {bucket_codes[found], bucket_places[found]};
    __syncthreads();
    return e;
}

// The first element at which the sum of the kept ones goes beyond a number; the buckets were added up already.
__device__ __noinline__ Element select_added(const Selection& s, u32 how, u64 number) {
    find_sum(BUCKETS, number);
    u32 bucket = found;
    number = found_rest;
    u32 length = list_bucket(s, bucket);
    if (0 < length && length <= MOST_IN_BUCKET) {
        return select_listed(s, how, length, number);
    }
    Element prefix = {0, 0};
    for (u32 i = 0; i < 7; i++) {
        add_up_digits(s, how, bucket, i, prefix);
        find_sum(DIGITS, number);
        number = found_rest;
        if (i < 4) {
            prefix.code |= found << (24 - 8 * i);
        } else {
            prefix.place |= found << (48 - 8 * i);
        }
    }
    return prefix;
}

// Keeps the `k` largest, in a list if there is room.
INLINE void keep_largest(Selection& s, u32 k) {
    if (k >= s.length) {
        return;
    }
    add_up(s, EACH);
    s.last = select_added(s, EACH, k - 1);
    if (k > LISTED) {
        return;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        list_length = 0;
    }
    __syncthreads();
    for_each(s, [&](Element e) {
        if (is_kept(s, e)) {
            u32 at = atomicAdd(&list_length, 1);
            // There are no more, unless somebody has written the row meanwhile.
            if (at < LISTED) {
                list_codes[at] = e.code;
                list_places[at] = e.place;
            }
        }
    });
    __syncthreads();
    s.is_listed = true;
    s.listed = min(list_length, LISTED);
}
