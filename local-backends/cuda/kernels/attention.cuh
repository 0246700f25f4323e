// What the kernels of attention share: which keys a query sees, where they are, and what becomes of a logit.

// Parameters: where parts of results begin in scratch memory, in numbers. Before them, if so, is the result as signed bytes.
const u32 BEHIND_PACKED = 11;

INLINE float* parts_of(const Node& node) {
    return (float*)node.table + node.p[BEHIND_PACKED];
}

// Keys from `begin` to before `end` are seen; `column` is the sequence's in the table.
struct Seen {
    u32 begin, end, column;
};

INLINE Seen seen(const Node& node, u32 i, u32 n_kv, u32 block) {
    const Tensor &pos = node.t[4], &table = node.t[6], &seqs = node.t[7];
    u32 window = node.p[1], positions = n_kv;
    Seen s = {0, n_kv, 0};
    if (pos.at == 0) {
        return s;
    }
    bool right = true;
    if (block != 0) {
        int seq = read_i32(seqs.at + i * seqs.nb[0]);
        s.column = seq;
        positions = table.ne[0] * block;
        if (s.column >= table.ne[1]) {
            wrong(node, SEQUENCE, seq, table.ne[1]);
            right = false;
        }
    }
    int position = read_i32(pos.at + i * pos.nb[0]);
    if (u32(position) >= positions) {
        wrong(node, POSITION, position, positions);
        right = false;
    }
    s.end = right ? u32(position) + 1 : 0;
    s.begin = window > 0 && s.end > window ? s.end - window : 0;
    return s;
}

// The row of the cache that key j is in, or a number that is none.
INLINE u32 cache_row(const Node& node, u32 j, u32 column, u32 n_kv, u32 block) {
    if (block == 0) {
        return j;
    }
    const Tensor& table = node.t[6];
    int at = read_i32(row(table, column, 0, 0) + j / block * table.nb[0]);
    if (u32(at) >= n_kv / block) {
        wrong(node, BLOCK, at, n_kv / block);
        return ~0u;
    }
    return u32(at) * block + j % block;
}

INLINE float capped(const Node& node, float sum) {
    float softcap = number_param(node, 2);
    sum *= number_param(node, 0);
    return softcap == 0.0f ? sum : softcap * tanhf(sum / softcap);
}

// What the mask adds to a key's logits.
INLINE float masked(const Node& node, u32 i, u32 j) {
    const Tensor& mask = node.t[3];
    int type = node.p[7];
    return mask.at != 0 ? read_element(type, row(mask, i, 0, 0) + u64(j) * size_of(type)) : 0.0f;
}
