// compute: 61
// PENALTY: a block for each row. It goes through the vocabulary in parts, and counts for each how often the tokens of the part come in the
// window.
#include "common.cuh"

const u32 PART = 2048;

__shared__ u32 counts[PART];

INLINE float finite(float x, float otherwise) {
    return isfinite(x) ? x : otherwise;
}

// Positions of the history that count, from `begin` to before `end`, and the sequence's column of the table.
struct Window {
    u32 begin, end, column;
};

INLINE Window window_of(const Node& node, u32 r, u32 last_n, u32 block) {
    const Tensor &history = node.t[1], &steps = node.t[2], &table = node.t[4], &seqs = node.t[5];
    Window w = {0, 0, 0};
    u32 positions = history.ne[0];
    if (block != 0) {
        int seq = read_i32(seqs.at + r * seqs.nb[0]);
        if (u32(seq) >= table.ne[1]) {
            wrong(node, SEQUENCE, seq, table.ne[1]);
            return w;
        }
        w.column = seq;
        positions = table.ne[0] * block;
    }
    int step = read_i32(steps.at + r * steps.nb[0]);
    if (u32(step) >= positions) {
        wrong(node, STEP, step, positions);
        return w;
    }
    w.end = u32(step) + 1;
    w.begin = w.end - min(last_n, w.end);
    return w;
}

// The token at position j, or a number that is none.
INLINE u32 token_at(const Node& node, u32 j, u32 column, u32 block, u32 n) {
    const Tensor &history = node.t[1], &table = node.t[4];
    if (block != 0) {
        int at = read_i32(row(table, column, 0, 0) + j / block * table.nb[0]);
        u32 blocks = history.ne[0] / block;
        if (u32(at) >= blocks) {
            wrong(node, BLOCK, at, blocks);
            return ~0u;
        }
        j = u32(at) * block + j % block;
    }
    int token = read_i32(history.at + j * history.nb[0]);
    if (u32(token) >= n) {
        wrong(node, TOKEN, token, n);
        return ~0u;
    }
    return token;
}

KERNEL_OF(1024) penalty(const Node node) {
    const Tensor &x = node.t[0], &params = node.t[3], &y = node.t[RESULT];
    u32 r = blockIdx.x, n = x.ne[0], block = node.p[0];
    const float *numbers = (const float*)row(params, r), *from = (const float*)row(x, r);
    float* to = (float*)row(y, r);
    float last_n = numbers[0], repeat = finite(numbers[1], 1.0f);
    float frequency = finite(numbers[2], 0.0f), presence = finite(numbers[3], 0.0f);
    repeat = repeat > 0.0f ? repeat : 1.0f;
    Window w = window_of(node, r, last_n >= 1.0f ? u32(fminf(last_n, 4294967040.0f)) : 0, block);
    for (u32 begin = 0; begin < n; begin += PART) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < PART; i += blockDim.x) {
            counts[i] = 0;
        }
        __syncthreads();
        for (u32 j = w.begin + threadIdx.x; j < w.end; j += blockDim.x) {
            u32 token = token_at(node, j, w.column, block, n);
            if (token - begin < PART) {
                atomicAdd(&counts[token - begin], 1);
            }
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < PART && begin + i < n; i += blockDim.x) {
            float logit = from[begin + i];
            if (counts[i] > 0) {
                logit = logit > 0.0f ? logit / repeat : logit * repeat;
                logit -= counts[i] * frequency + presence;
            }
            to[begin + i] = logit;
        }
    }
}
