// compute: 61
// What attention does before it looks at keys: ROPE of queries, ROPE of keys and SET_ROWS of them, SET_ROWS of values. A block for each row.
#include "common.cuh"
#include "rope.cuh"
#include "set_rows.cuh"

// Three nodes of a graph. Of the second, t[3] are the indices, t[4] is where the rotated keys lie as [d, heads, tokens], and p[3] is the cache's type.
struct Nodes {
    Node queries, keys, values;
};

INLINE void rotate_into_cache(const Node& node, u32 r) {
    const Tensor &x = node.t[0], &ids = node.t[3], &rotated = node.t[4];
    // The cache has a head's rows one behind the other: row `r` of [d, tokens, heads].
    Tensor src = rotated;
    src.ne[1] = rotated.ne[2];
    src.ne[2] = rotated.ne[1];
    u32 head = r % x.ne[1], token = r / x.ne[1];
    u8* to = written_row(node, src, ids, head * src.ne[1] + token);
    float* kept = (float*)row(rotated, r);
    int type = node.p[3];
    u32 size = size_of(type);
    rotate(node, r, [&](u32 i, float v) {
        kept[i] = v;
        if (to != nullptr) {
            write_element(type, to + u64(i) * size, v);
        }
    });
}

KERNEL rope_cache(const Nodes nodes) {
    u32 r = blockIdx.x, queries = rows_of(nodes.queries.t[0]), keys = rows_of(nodes.keys.t[0]);
    if (r < queries) {
        float* to = (float*)row(nodes.queries.t[RESULT], r);
        rotate(nodes.queries, r, [&](u32 i, float x) { to[i] = x; });
    } else if (r < queries + keys) {
        rotate_into_cache(nodes.keys, r - queries);
    } else {
        set_row(nodes.values, r - queries - keys);
    }
}
