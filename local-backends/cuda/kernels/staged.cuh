// Products of blocks with one column, whose bytes come by way of shared memory. Blocks are of 17 to 210 bytes, so that lanes which read one each from
// global memory touch every sector of 32 bytes many times. Here a warp reads vectors of 16 bytes, each once, and its lanes find the blocks in shared
// memory.
//
// A warp takes a window of its rows at a time: all of it is on its way at once, and what one warp waits for others do not.
#include "packed.cuh"
#include "copies.cuh"

// Weights of a window of a row, and of one of blocks of 17 bytes.
const u32 WINDOW = 2048, LONG_WINDOW = 4096;

// A lane takes units of 32 weights, so many of a window.
template <int T>
constexpr u32 LANE_UNITS = (T == MXFP4 ? LONG_WINDOW : WINDOW) / (32 * WARP);

// Whether a lane's units are side by side, those of its neighbour behind them. Two blocks of 18 bytes are 9 words, an odd number, so that all lanes read
// from different banks; one is 4.5, and some would meet. The same holds for 22 and 34 bytes, and for four blocks of 17. Of blocks of 256, two units
// that are side by side have the same scales.
template <int T>
constexpr bool IS_SIDE_BY_SIDE = T == MXFP4 || T == Q4_0 || T == Q5_0 || T == Q8_0 || T == IQ4_NL || T == Q4_K || T == Q5_K || T == IQ4_XS;

// Of other blocks of 256, eight lanes take one. The next eight take that behind so many, for the same reason: two blocks of 110 and 210 bytes are an odd
// number of words.
template <int T>
constexpr u32 GROUP_BLOCKS = T == Q3_K || T == Q6_K ? 2 : 1;

// A window of a row: bytes of weights, and vectors that have them if the first one begins before them.
template <int T>
struct Window {
    static constexpr u32 WEIGHTS = T == MXFP4 ? LONG_WINDOW : WINDOW;
    static constexpr u32 BYTES = WEIGHTS / (is_of_32<T> ? 32 : QK) * block_bytes<T>();
    static constexpr u32 VECTORS = (BYTES + 15 + 15) / 16;
    // Blocks are read in vectors or double words: then the first one begins at one.
    static constexpr bool IS_ALIGNED = block_bytes<T>() % 8 == 0;
    // Units of a lane that are of one block.
    static constexpr u32 TOGETHER = !is_of_32<T> && IS_SIDE_BY_SIDE<T> ? LANE_UNITS<T> : 1;
    // Of the column, its bytes and groups. Where neighbours read neighbouring pairs of sixteen bytes, they need not be here.
    static constexpr bool HAS_COLUMN = is_of_32<T> || IS_SIDE_BY_SIDE<T>;
    static constexpr u32 BYTE_VECTORS = HAS_COLUMN ? WEIGHTS / 16 : 0;
    static constexpr u32 COLUMN_VECTORS = HAS_COLUMN ? WEIGHTS / 16 + WEIGHTS / 64 : 0;
};

template <int T>
INLINE u32 windows_of(u32 n) {
    return (n + Window<T>::WEIGHTS - 1) / Window<T>::WEIGHTS;
}

// What all warps have, one behind the other. The host makes room for it (src/launch.rs).
extern __shared__ uint4 staged[];

// Vectors of a warp: windows of so many rows, and one of the column.
template <int T, u32 ROWS>
constexpr u32 STAGED = ROWS * Window<T>::VECTORS + Window<T>::COLUMN_VECTORS;

// Where vector `i` of a column is: lanes that are 1, 2, 4 or 8 vectors apart read from different banks.
INLINE u32 place_of(u32 i) {
    return i ^ (i >> 3 & 7);
}

// Up to MOST vectors on their way to shared memory; a lane brings each 32nd. Those of the column go to their places (`place_of`). All copies begin before
// the first one ends, so that they are on their way together.
template <u32 MOST, bool IS_COLUMN>
struct Copies {
    static constexpr u32 EACH = (MOST + WARP - 1) / WARP;
    uint4* to;
    u32 count;
#if __CUDA_ARCH__ < 800
    uint4 vectors[EACH];
#endif

    // Calls `what` with each of this lane's vectors: its number among them and among all, and where it goes.
    template <class Do>
    INLINE void each(Do what) {
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            u32 at = threadIdx.x % WARP + i * WARP;
            if (at < count) {
                what(i, at, to + (IS_COLUMN ? place_of(at) : at));
            }
        }
    }

    INLINE void begin(uint4* target, const uint4* from, u32 all) {
        to = target;
        count = all;
        each([&](u32 i, u32 at, uint4* place) {
#if __CUDA_ARCH__ < 800
            vectors[i] = from[at];
#else
            if (IS_COLUMN) {
                copy_16_cached(shared_address(place), from + at);
            } else {
                copy_16(shared_address(place), from + at);
            }
#endif
        });
    }

    INLINE void end() {
#if __CUDA_ARCH__ < 800
        each([&](u32 i, u32, uint4* place) { *place = vectors[i]; });
#endif
    }
};

// Blocks whose words do not lie where vectors do: rows of a view may begin there, those of a file do not.
INLINE void copy_words(u32* to, const u32* from, u32 count) {
    for (u32 at = threadIdx.x % WARP; at < count; at += WARP) {
#if __CUDA_ARCH__ < 800
        to[at] = from[at];
#else
        copy_word(shared_address(to + at), from + at);
#endif
    }
}

// The number in a window of this lane's unit `i`.
template <int T>
INLINE u32 unit_of(u32 i) {
    u32 lane = threadIdx.x % WARP;
    if (IS_SIDE_BY_SIDE<T>) {
        return lane * LANE_UNITS<T> + i;
    } else if (is_of_32<T>) {
        return i * WARP + lane;
    }
    constexpr u32 blocks = GROUP_BLOCKS<T>;
    return ((i / blocks * (WARP / 8) + lane / 8) * blocks + i % blocks) * 8 + lane % 8;
}

// Two groups of a column. A compiler that finds that of each only the scale is used would read words, and these from few banks.
template <int T>
INLINE uint4 both_groups(const uint4* at) {
    if constexpr (has_no_offset<T>) {
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(shared_address(at))
                     : "memory");
        return v;
    } else {
        return *at;
    }
}

// The elements of the column that belong to a unit: in shared memory if it is there, or else in place.
template <int T>
INLINE void column_of(const uint4* here, const u8* column, u32 n, u32 first, u32 unit, Sixteen& low, Sixteen& high) {
    if constexpr (Window<T>::HAS_COLUMN) {
        u32 piece = first_of<T>(unit) / 16;
        uint4 groups = both_groups<T>(here + Window<T>::BYTE_VECTORS + place_of(unit / 2));
        uint2 one = make_uint2(groups.x, groups.y), other = make_uint2(groups.z, groups.w);
        bool is_odd = unit % 2 != 0, has_one = has_one_scale<T>;
        low = sixteen(here[place_of(piece)], has_one && is_odd ? other : one, !has_one && is_odd);
        high = sixteen(here[place_of(piece + BEHIND<T> / 16)], has_one && !is_odd ? one : other, has_one || is_odd);
    } else {
        sixteens_of<T>(column, n, first / 32 + unit, low, high);
    }
}

// A warp's windows in shared memory.
template <int T, u32 ROWS>
struct Windows {
    using W = Window<T>;
    uint4* rows;
    uint4* column;
    // Where the first block of each row is.
    const u8* blocks[ROWS];

    INLINE explicit Windows(u32 warp) {
        rows = staged + warp * STAGED<T, ROWS>;
        column = rows + ROWS * W::VECTORS;
    }

    // Brings the rows' windows, `bytes` of each from `from` on, and the column's: so many `elements`, whose bytes and groups are there.
    INLINE void bring(const u8* const (&from)[ROWS], u32 bytes, const u8* column_bytes, const u8* groups, u32 elements) {
        Copies<W::VECTORS, false> of_rows[ROWS];
        Copies<W::HAS_COLUMN ? W::BYTE_VECTORS : 1, true> of_column;
        Copies<W::HAS_COLUMN ? W::COLUMN_VECTORS - W::BYTE_VECTORS : 1, true> of_groups;
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            uint4* to = rows + r * W::VECTORS;
            u32 before = u32(u64(from[r])) % 16;
            bool by_words = W::IS_ALIGNED && before != 0;
            if (by_words) {
                copy_words((u32*)to, (const u32*)from[r], bytes / 4);
            }
            blocks[r] = (const u8*)to + (by_words ? 0 : before);
            of_rows[r].begin(to, (const uint4*)(from[r] - before), by_words ? 0 : (before + bytes + 15) / 16);
        }
        if constexpr (W::HAS_COLUMN) {
            of_column.begin(column, (const uint4*)column_bytes, elements / 16);
            of_groups.begin(column + W::BYTE_VECTORS, (const uint4*)groups, (elements + 63) / 64);
            of_column.end();
            of_groups.end();
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            of_rows[r].end();
        }
        end_group();
        wait_groups<0>();
        __syncwarp();
    }
};

// Which windows of its rows a warp takes.
struct Share {
    u32 first, step;
};

// Adds what this lane has of the products of some rows with a column. Each warp of a block, by its number, has shared memory of its own.
template <int T, u32 ROWS>
INLINE void multiply_staged(const u8* const (&rows)[ROWS], const u8* column, u32 n, u32 warp, Share share, float (&sums)[ROWS]) {
    using W = Window<T>;
    Windows<T, ROWS> here(warp);
    for (u32 window = share.first; window * W::WEIGHTS < n; window += share.step) {
        u32 first = window * W::WEIGHTS, count = min(n - first, W::WEIGHTS);
        const u8* from[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            from[r] = rows[r] + u64(window) * W::BYTES;
        }
        here.bring(from, count / (is_of_32<T> ? 32 : QK) * block_bytes<T>(), column + first, column + n + first / 4, count);
#pragma unroll
        for (u32 i = 0; i < LANE_UNITS<T>; i += W::TOGETHER) {
            if (32 * unit_of<T>(i) < count) {
                Sixteen low[W::TOGETHER], high[W::TOGETHER];
#pragma unroll
                for (u32 j = 0; j < W::TOGETHER; j++) {
                    column_of<T>(here.column, column, n, first, unit_of<T>(i + j), low[j], high[j]);
                }
#pragma unroll
                for (u32 k = 0; k < ROWS * W::TOGETHER; k++) {
                    u32 r = k / W::TOGETHER, j = k % W::TOGETHER;
                    sums[r] += product<T>(weights_at<T, W::IS_ALIGNED>(here.blocks[r], unit_of<T>(i + j)), low[j], high[j]);
                }
            }
        }
        // Nobody reads what the next windows take the place of.
        __syncwarp();
    }
}
