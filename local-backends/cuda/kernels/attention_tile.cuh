// What a tile of attention is: 64 rows, which are queries with the heads that share keys and values; and which keys it takes, step by step.

const u32 ROWS = 64, NONE = 0xffffffff;

// What the rows of the tile see: the first key, the one behind the last, and the sequence's column in the table, counted from 1. A row that sees
// nothing has zeros.
__shared__ u32 begins[ROWS], ends[ROWS], columns[ROWS];

INLINE u32 least_of_warp(u32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(ALL_LANES, x);
#else
#pragma unroll
    for (u32 by = WARP / 2; by > 0; by /= 2) {
        x = min(x, __shfl_xor_sync(ALL_LANES, x, by));
    }
    return x;
#endif
}

// Over all rows of the tile; every lane has the result.
template <class Of>
INLINE u32 least(Of of) {
    u32 lane = threadIdx.x % WARP;
    return least_of_warp(min(of(lane), of(lane + WARP)));
}

template <class Of>
INLINE u32 most(Of of) {
    u32 lane = threadIdx.x % WARP;
    return ~least_of_warp(~max(of(lane), of(lane + WARP)));
}

// Keys of a sequence that are taken at once: from the first one that a row sees to the end of what is seen, or of as many as there is room for.
struct Step {
    u32 column, first, end;
};

// The next keys that some row of the tile sees: those of a sequence in their order, then those of the next one. The column is NONE behind the last.
template <u32 KEYS>
INLINE void go_on(Step& s) {
    u32 from = s.first / KEYS * KEYS + KEYS;
    while (true) {
        s.first = least([&](u32 r) { return columns[r] == s.column && ends[r] > from ? max(begins[r], from) : NONE; });
        if (s.first != NONE) {
            return;
        }
        u32 before = s.column;
        s.column = least([&](u32 r) { return columns[r] > before ? columns[r] : NONE; });
        if (s.column == NONE) {
            return;
        }
        s.end = most([&](u32 r) { return columns[r] == s.column ? ends[r] : 0; });
        from = 0;
    }
}

// A row of the tile: its query and its head.
struct Row {
    u32 query, head;
    bool is_there;
};

// The tile: its first row, counted over queries and the heads that share keys and values; these heads' number; the part of the keys.
struct Place {
    u32 first, kv, part;

    INLINE Row row(const Node& node, u32 r) const {
        const Tensor& q = node.t[0];
        u32 sharing = q.ne[2] / node.t[1].ne[2], query = (first + r) / sharing;
        return {query, kv * sharing + (first + r) % sharing, query < q.ne[1]};
    }
};

// Blocks are counted by part, then by heads, then by tile. The last queries see most, so they come first.
INLINE Place place_of(const Node& node) {
    u32 parts = node.p[4], shared = node.t[1].ne[2], number = blockIdx.x / parts;
    u32 tile = gridDim.x / parts / shared - 1 - number / shared;
    return {tile * ROWS, number % shared, blockIdx.x % parts};
}

// Finds what each row sees of the part's keys: as many for each part, in whole steps, from the first that the tile sees.
template <u32 KEYS>
INLINE void find_rows(const Node& node, const Place& place) {
    u32 r = threadIdx.x, parts = node.p[4];
    Seen s = {0, 0, 0};
    if (r < ROWS) {
        Row row = place.row(node, r);
        if (row.is_there) {
            s = seen(node, row.query, node.t[1].ne[1], node.p[3]);
        }
        begins[r] = s.begin;
        ends[r] = s.end;
    }
    if (parts > 1) {
        __syncthreads();
        u32 low = least([](u32 r) { return begins[r] < ends[r] ? begins[r] : NONE; }) / KEYS * KEYS, high = most([](u32 r) { return ends[r]; });
        u32 count = (max(high, low) - low + parts * KEYS - 1) / (parts * KEYS) * KEYS;
        s.begin = max(s.begin, low + place.part * count);
        s.end = min(s.end, low + place.part * count + count);
        __syncthreads();
    }
    if (r < ROWS) {
        bool sees = s.begin < s.end;
        begins[r] = sees ? s.begin : 0;
        ends[r] = sees ? s.end : 0;
        columns[r] = sees ? s.column + 1 : 0;
    }
    __syncthreads();
}
