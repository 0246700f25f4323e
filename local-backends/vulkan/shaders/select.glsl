// Places in a row by size without sorting it: largest first, equals by index. A workgroup counts what begins with each
// digit of a code, goes on with the digit in which the place is, and so finds the element digit by digit.

// What NaN stands for: nothing, or what comes before everything.
#ifndef CODE_OF_NAN
#define CODE_OF_NAN 0xff800000
#endif

// Elements that are kept in a list of their own once there are so few.
const uint LISTED = 256;
const uint DIGITS = 256;

// How elements count.
const uint EACH = 0, PLAIN = 1, SCALED = 2;

// A number of 64 bits, the low half first.
#define u64 uvec2

// What the elements with a digit weigh, in parts of 11 bits, whose sums do not overflow.
shared uint sums[DIGITS][3];
shared u64 found_rest;
shared uint found_digit;
shared u64 blocks[16];
shared uint list_length;
shared uint list_codes[LISTED], list_places[LISTED];

// The row, the code and place of its largest element, and which of its elements are kept: those up to a code and place that weigh enough.
uvec2 elements;
uint length;
uvec2 first;
bool is_listed = false;
uint last_code = ~0u, last_place = ~0u, least = 0;
// One over the temperature.
float scale = 1.0;

u64 add(u64 a, u64 b) {
    uint carry;
    uint low = uaddCarry(a.x, b.x, carry);
    return u64(low, a.y + b.y + carry);
}

u64 subtract(u64 a, u64 b) {
    uint borrow;
    uint low = usubBorrow(a.x, b.x, borrow);
    return u64(low, a.y - b.y - borrow);
}

bool is_above(u64 a, u64 b) {
    return a.y > b.y || a.y == b.y && a.x > b.x;
}

u64 multiply_wide(uint a, uint b) {
    uint high, low;
    umulExtended(a, b, high, low);
    return u64(low, high);
}

// The product's lower half.
u64 multiply_low(u64 a, u64 b) {
    u64 product = multiply_wide(a.x, b.x);
    product.y += a.x * b.y + a.y * b.x;
    return product;
}

// So many parts of 2^24 of a sum below 2^51.
u64 share(u64 sum, uint parts) {
    u64 low = multiply_wide(sum.x, parts), high = multiply_wide(sum.y, parts);
    return add(u64(low.x >> 24 | low.y << 8, low.y >> 24), u64(high.x << 8, high.x >> 24 | high.y << 8));
}

// Codes grow as numbers fall. Of bits alone: a driver may take the smallest numbers for 0.
uint code_of(uint bits) {
    uint size = bits & 0x7fffffff;
    if (size > 0x7f800000) {
        return CODE_OF_NAN;
    }
    bits = size == 0 ? 0 : bits;
    return (bits & 0x80000000) != 0 ? bits : ~bits & 0x7fffffff;
}

float number_of(uint code) {
    return uintBitsToFloat((code & 0x80000000) != 0 ? code : ~code & 0x7fffffff);
}

// As `weight` in core/src/op/sample.rs, to the bit.
uint weight_of(uint code, float scale) {
    if (code == first.x) {
        return 0x80000000;
    }
    precise float below = number_of(first.x) - number_of(code);
    precise float distance = below * scale;
    precise float halvings = distance * 1.44269504088896341;
    if (!(halvings < 32.0)) {
        return 0;
    }
    const uint POWER_OF_HALF[7] = uint[](0xb17217f7, 0x3d7f7bcb, 0x0e358127, 0x027641a9, 0x005728b0, 0x0009c200, 0xbda6);
    uint fixed_ = uint(halvings * 16777216.0), sum = 0;
    [[unroll]] for (int i = 6; i >= 0; i--) {
        sum = POWER_OF_HALF[i] - multiply_wide(fixed_ << 8, sum).y;
    }
    return 0x80000000 - (multiply_wide(fixed_ << 8, sum).y >> 1) >> (fixed_ >> 24);
}

// Of one element, the code and the place.
uvec2 element(uint i) {
    return is_listed ? uvec2(list_codes[i], list_places[i]) : uvec2(code_of(word(plus(elements, i, 4))), i);
}

// The first of all, code and place.
uvec2 first_of_all() {
    uint lane = gl_LocalInvocationID.x;
    uvec2 best = uvec2(~0u);
    for (uint i = lane; i < length; i += LANES) {
        uvec2 e = element(i);
        best = e.x < best.x || e.x == best.x && e.y < best.y ? e : best;
    }
    list_codes[lane] = best.x;
    list_places[lane] = best.y;
    barrier();
    for (uint i = 0; i < LANES; i++) {
        uvec2 e = uvec2(list_codes[i], list_places[i]);
        best = e.x < best.x || e.x == best.x && e.y < best.y ? e : best;
    }
    barrier();
    return best;
}

uint count() {
    return is_listed ? list_length : length;
}

bool is_kept(uvec2 e) {
    bool before = e.x < last_code || e.x == last_code && e.y <= last_place;
    return before && (least == 0 || weight_of(e.x, 1.0) >= least);
}

uint counted(uvec2 e, uint how) {
    return how == EACH ? 1 : weight_of(e.x, how == PLAIN ? 1.0 : scale);
}

u64 sum_of_digit(uint digit) {
    uint a = sums[digit][0], b = sums[digit][1], c = sums[digit][2];
    return add(add(u64(a, 0), u64(b << 11, b >> 21)), u64(c << 22, c >> 10));
}

// Adds up the kept elements whose code and place have these digits in front of digit `number`, by that digit.
void add_up(uint how, uint number, uvec2 prefix) {
    uint lane = gl_LocalInvocationID.x, shift = number < 4 ? 24 - 8 * number : 48 - 8 * number;
    uvec2 mask = number < 4 ? uvec2(number == 0 ? 0 : ~0u << (32 - 8 * number), 0) : uvec2(~0u, number == 4 ? 0 : ~0u << (56 - 8 * number));
    barrier();
    for (uint i = lane; i < DIGITS; i += LANES) {
        sums[i][0] = sums[i][1] = sums[i][2] = 0;
    }
    barrier();
    for (uint i = lane; i < count(); i += LANES) {
        uvec2 e = element(i);
        if ((e & mask) == prefix && is_kept(e)) {
            uint digit = (number < 4 ? e.x : e.y) >> shift & (DIGITS - 1), weight = counted(e, how);
            atomicAdd(sums[digit][0], weight & 0x7ff);
            atomicAdd(sums[digit][1], weight >> 11 & 0x7ff);
            atomicAdd(sums[digit][2], weight >> 22);
        }
    }
    barrier();
    // Of sixteen digits each.
    if (lane < 16) {
        u64 sum = u64(0);
        for (uint i = 0; i < 16; i++) {
            sum = add(sum, sum_of_digit(16 * lane + i));
        }
        blocks[lane] = sum;
    }
    barrier();
}

// What all that were added up weigh.
u64 sum_of_all() {
    u64 sum = u64(0);
    for (uint i = 0; i < 16; i++) {
        sum = add(sum, blocks[i]);
    }
    return sum;
}

// The digit in which the sum goes beyond a number, and what is left of the number in front of it.
void find_digit(u64 number) {
    if (gl_LocalInvocationID.x == 0) {
        uint block = 0;
        while (block < 15 && !is_above(blocks[block], number)) {
            number = subtract(number, blocks[block++]);
        }
        uint digit = 16 * block;
        while (digit < 16 * block + 15 && !is_above(sum_of_digit(digit), number)) {
            number = subtract(number, sum_of_digit(digit++));
        }
        found_digit = digit;
        found_rest = number;
    }
    barrier();
}

// The first element, code and place, at which the sum of the kept ones goes beyond a number; the digits of the code were added up already
// for the first of them.
uvec2 select_added(uint how, u64 number) {
    uvec2 prefix = uvec2(0);
    for (uint i = 0; i < 7; i++) {
        if (i > 0) {
            add_up(how, i, prefix);
        }
        find_digit(number);
        number = found_rest;
        if (i < 4) {
            prefix.x |= found_digit << (24 - 8 * i);
        } else {
            prefix.y |= found_digit << (48 - 8 * i);
        }
        barrier();
    }
    return prefix;
}

uvec2 select(uint how, u64 number) {
    add_up(how, 0, uvec2(0));
    return select_added(how, number);
}

// Keeps the `k` largest, in a list if there is room.
void keep_largest(uint k) {
    if (k >= length) {
        return;
    }
    uvec2 last = select(EACH, u64(k - 1, 0));
    last_code = last.x;
    last_place = last.y;
    if (k > LISTED) {
        return;
    }
    list_length = 0;
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < length; i += LANES) {
        uvec2 e = element(i);
        if (is_kept(e)) {
            uint at = atomicAdd(list_length, 1);
            // Whatever a driver counts.
            if (at < LISTED) {
                list_codes[at] = e.x;
                list_places[at] = e.y;
            }
        }
    }
    barrier();
    if (gl_LocalInvocationID.x == 0) {
        list_length = min(list_length, LISTED);
    }
    barrier();
    is_listed = true;
}
