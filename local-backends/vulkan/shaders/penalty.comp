// PENALTY: a workgroup for each row. It goes through the vocabulary in parts, and counts for each how often the tokens of the part come in the
// window.
#version 460

#include "common.glsl"

layout(constant_id = 1) const uint PART = 2048;

shared uint counts[PART];

float finite(float x, float otherwise) {
    return isnan(x) || isinf(x) ? otherwise : x;
}

// Positions of the history that count, from `begin` to before `end`, and the sequence's column of the table.
struct Window {
    uint begin, end, column;
};

Window window_of(uint r, uint last_n, uint block) {
    Tensor history = tensor(1), steps = tensor(2), table = tensor(4), seqs = tensor(5);
    Window w = Window(0, 0, 0);
    uint positions = history.ne.x;
    if (block != 0) {
        int seq = read_i32(plus(seqs.at, r, seqs.nb.x));
        if (uint(seq) >= table.ne.y) {
            wrong(SEQUENCE, seq, table.ne.y);
            return w;
        }
        w.column = uint(seq);
        positions = table.ne.x * block;
    }
    int step_ = read_i32(plus(steps.at, r, steps.nb.x));
    if (uint(step_) >= positions) {
        wrong(STEP, step_, positions);
        return w;
    }
    w.end = uint(step_) + 1;
    w.begin = w.end - min(last_n, w.end);
    return w;
}

// The token at position j, or a number that is none.
uint token_at(uint j, uint column, uint block, uint n) {
    Tensor history = tensor(1), table = tensor(4);
    if (block != 0) {
        int at = read_i32(plus(row(table, column, 0, 0), j / block, table.nb.x));
        uint blocks = history.ne.x / block;
        if (uint(at) >= blocks) {
            wrong(BLOCK, at, blocks);
            return ~0u;
        }
        j = uint(at) * block + j % block;
    }
    int token = read_i32(plus(history.at, j, history.nb.x));
    if (uint(token) >= n) {
        wrong(TOKEN, token, n);
        return ~0u;
    }
    return uint(token);
}

void main() {
    Tensor x = tensor(0), params = tensor(3), y = tensor(RESULT);
    uint r = group(), n = x.ne.x, lane = gl_LocalInvocationID.x, block = param(0);
    if (r >= x.ne.y) {
        return;
    }
    uvec2 numbers = row(params, r), from = row(x, r), to = row(y, r);
    float last_n = read_f32(numbers), repeat = finite(read_f32(plus(numbers, 4)), 1.0);
    float frequency = finite(read_f32(plus(numbers, 8)), 0.0), presence = finite(read_f32(plus(numbers, 12)), 0.0);
    repeat = repeat > 0.0 ? repeat : 1.0;
    Window w = window_of(r, last_n >= 1.0 ? uint(min(last_n, 4294967040.0)) : 0, block);
    for (uint begin = 0; begin < n; begin += PART) {
        barrier();
        for (uint i = lane; i < PART; i += LANES) {
            counts[i] = 0;
        }
        barrier();
        for (uint j = w.begin + lane; j < w.end; j += LANES) {
            uint token = token_at(j, w.column, block, n);
            if (token - begin < PART) {
                atomicAdd(counts[token - begin], 1);
            }
        }
        barrier();
        for (uint i = lane; i < PART && begin + i < n; i += LANES) {
            float logit = read_f32(plus(from, begin + i, 4));
            if (counts[i] > 0) {
                logit = logit > 0.0 ? logit / repeat : logit * repeat;
                logit -= float(counts[i]) * frequency + presence;
            }
            write_f32(plus(to, begin + i, 4), logit);
        }
    }
}
