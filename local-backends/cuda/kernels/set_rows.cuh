// Writing rows of a table by index, as SET_ROWS does.

// Whether all indices are rows of the table: where one is wrong, nothing is written. Whole blocks ask.
INLINE bool all_are_rows(const Node& node, const Tensor& ids, u32 rows) {
    u32 count = ids.ne[0] * ids.ne[1] * ids.ne[2];
    bool right = true;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 i1 = i / ids.ne[0];
        int id = read_i32(row(ids, i1 % ids.ne[1], i1 / ids.ne[1], 0) + i % ids.ne[0] * ids.nb[0]);
        if (u32(id) >= rows) {
            wrong(node, ROW, id, rows);
            right = false;
        }
    }
    return max_of(right ? 0.0f : 1.0f) == 0.0f;
}

// A block of 32 elements: scale, signed bytes. It may begin at any byte.
INLINE void write_q8_0(u8* to, const float* from) {
    float most = 0.0f;
    for (u32 j = 0; j < 32; j++) {
        most = fmaxf(most, fabsf(from[j]));
    }
    float d = most / 127.0f, id = d == 0.0f ? 0.0f : 1.0f / d;
    // A driver (release 580, for sm_90) stored no low byte of a half that was made in the same place: as a word it does.
    u32 scale = float_to_half_word(d);
    to[0] = scale & 0xff;
    to[1] = scale >> 8;
    for (u32 j = 0; j < 32; j++) {
        int q = roundf(__fmul_rn(from[j], id));
        to[2 + j] = max(-128, min(127, q));
    }
}

// Where row `r` of the source is written; null if some index is wrong. Whole blocks ask.
INLINE u8* written_row(const Node& node, const Tensor& src, const Tensor& ids, u32 r) {
    const Tensor& dst = node.t[RESULT];
    u32 i1 = r % src.ne[1], i2 = r / src.ne[1] % src.ne[2], i3 = r / src.ne[1] / src.ne[2];
    if (!all_are_rows(node, ids, dst.ne[1])) {
        return nullptr;
    }
    u32 id = read_i32(row(ids, i2 % ids.ne[1], i3 % ids.ne[2], 0) + i1 * ids.nb[0]);
    // Whatever became of the look at all of them.
    return id < dst.ne[1] ? row(dst, id, i2, i3) : nullptr;
}

// Row `r` of the source of a SET_ROWS. The type is parameter 0.
INLINE void set_row(const Node& node, u32 r) {
    const Tensor &src = node.t[1], &ids = node.t[2];
    u32 n = src.ne[0];
    int type = node.p[0];
    u8* to = written_row(node, src, ids, r);
    if (to == nullptr) {
        return;
    }
    const float* from = (const float*)row(src, r);
    if (type == Q8_0) {
        for (u32 i = threadIdx.x; i < n / 32; i += blockDim.x) {
            write_q8_0(to + u64(i) * 34, from + i * 32);
        }
    } else if (type == F32 || type == I32) {
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
            write_word(to + u64(i) * 4, word((const u8*)(from + i)));
        }
    } else {
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
            write_element(type, to + u64(i) * 2, from[i]);
        }
    }
}
