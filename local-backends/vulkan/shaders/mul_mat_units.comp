// MUL_MAT with many columns by matrix units (VK_KHR_cooperative_matrix): products of halves, sums of floats. Columns are halves already, made by
// halves.comp; weights are made halves on the way to shared memory. What does not fit in halves is computed as floats, one by one.
#version 460
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#include "common.glsl"

layout(constant_id = 1) const uint TYPE = F16;
// Whether rows of weights begin at whole words, and have whole pairs of octets.
layout(constant_id = 2) const bool ROWS_ARE_WHOLE = false;
#define WHOLE ROWS_ARE_WHOLE
// What a unit multiplies: M x K with K x N.
layout(constant_id = 3) const uint M = 16;
layout(constant_id = 4) const uint N = 16;
layout(constant_id = 5) const uint K = 16;
// Units' results that a subgroup has, by rows and columns; subgroups of a workgroup, by rows and columns; invocations of a subgroup.
layout(constant_id = 6) const uint RESULTS_M = 2;
layout(constant_id = 7) const uint RESULTS_N = 2;
layout(constant_id = 8) const uint SUBGROUPS_M = 2;
layout(constant_id = 9) const uint SUBGROUPS_N = 2;
layout(constant_id = 10) const uint SUBGROUP = 32;

#include "blocks.glsl"
#define TABLE_TYPE TYPE
#include "octets.glsl"
#include "raw.glsl"
#include "halves.glsl"

const uint ROWS = RESULTS_M * SUBGROUPS_M * M, COLUMNS = RESULTS_N * SUBGROUPS_N * N;
// Octets of a step; those of a row are followed by one more, so that rows are in different banks.
const uint OCTETS = 8, STRIDE = OCTETS + 1;
// Rows that the workgroup brings at once, an octet an invocation, and how often it does.
const uint AT_ONCE = LANES / OCTETS, TIMES = ROWS / AT_ONCE, COLUMN_TIMES = COLUMNS / AT_ONCE;

shared uvec4 weights[ROWS * STRIDE], inputs[COLUMNS * STRIDE];
shared float results[SUBGROUPS_M * SUBGROUPS_N][M * N];

#define SUMS coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>

uvec2 weight_rows[TIMES], column_rows[COLUMN_TIMES];
// What is brought for the next step.
Raw raw[TIMES];
uvec4 next[COLUMN_TIMES];

void fetch(uint u, uint k) {
    bool is_there = 8 * u < k;
    [[unroll]] for (uint i = 0; i < TIMES; i++) {
        raw[i] = is_there ? fetched(TYPE, weight_rows[i], u, k) : Raw(uvec4(0), uvec4(0));
    }
    uvec2 at = octet_places(TYPE, u) / 4;
    [[unroll]] for (uint i = 0; i < COLUMN_TIMES; i++) {
        next[i] = is_there ? uvec4(Twos(column_rows[i]).v[at.x], Twos(column_rows[i]).v[at.y]) : uvec4(0);
    }
}

// Puts what was fetched where all subgroups find it.
void put(uint u, uint k) {
    uint at = gl_LocalInvocationID.x / OCTETS * STRIDE + gl_LocalInvocationID.x % OCTETS;
    [[unroll]] for (uint i = 0; i < TIMES; i++) {
        weights[at + i * AT_ONCE * STRIDE] = 8 * u < k ? unpacked(TYPE, raw[i], u) : uvec4(0);
    }
    [[unroll]] for (uint i = 0; i < COLUMN_TIMES; i++) {
        inputs[at + i * AT_ONCE * STRIDE] = next[i];
    }
}

// A product that halves cannot hold.
float of_floats(uvec2 weight_row, uvec2 column, uint k) {
    float sum = 0.0;
    for (uint i = 0; i < k; i += 4) {
        sum += dot(quad(TYPE, weight_row, i, k), quad(F32, column, i, k));
    }
    return sum;
}

void main() {
    Tensor a = tensor(0), b = tensor(1), y = tensor(RESULT);
    uint k = a.ne.x, across = (y.ne.x + ROWS - 1) / ROWS, down = (y.ne.y + COLUMNS - 1) / COLUMNS, g = group();
    uint n0 = g % down * COLUMNS, m0 = g / down % across * ROWS, batch = g / across / down;
    uint i2 = batch % y.ne.z, i3 = batch / y.ne.z;
    if (i3 >= y.ne.w) {
        return;
    }
    make_table();
    // Extents of 0 stand for weights that are not read.
    uvec2 repeats = max(y.ne.zw / max(a.ne.zw, 1), 1);
    // What is behind the last row or column stands for the last.
    uint brought = gl_LocalInvocationID.x / OCTETS, first = batch * y.ne.y;
    [[unroll]] for (uint i = 0; i < TIMES; i++) {
        weight_rows[i] = row(a, min(m0 + brought + i * AT_ONCE, y.ne.x - 1), i2 / repeats.x, i3 / repeats.y);
    }
    [[unroll]] for (uint i = 0; i < COLUMN_TIMES; i++) {
        column_rows[i] = halves_at(b, first + min(n0 + brought + i * AT_ONCE, y.ne.y - 1));
    }
    SUMS sums[RESULTS_M][RESULTS_N];
    [[unroll]] for (uint i = 0; i < RESULTS_M; i++) {
        [[unroll]] for (uint j = 0; j < RESULTS_N; j++) {
            sums[i][j] = SUMS(0.0);
        }
    }
    uint sm = gl_SubgroupID % SUBGROUPS_M * RESULTS_M, sn = gl_SubgroupID / SUBGROUPS_M * RESULTS_N;
    uint mine = gl_LocalInvocationID.x % OCTETS;
    fetch(mine, k);
    for (uint u = 0; 8 * u < k; u += OCTETS) {
        barrier();
        put(u + mine, k);
        barrier();
        fetch(u + OCTETS + mine, k);
        [[unroll]] for (uint l = 0; l < OCTETS * 8 / K; l++) {
            coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> w[RESULTS_M];
            [[unroll]] for (uint i = 0; i < RESULTS_M; i++) {
                coopMatLoad(w[i], weights, (sm + i) * M * STRIDE + l * (K / 8), STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            }
            [[unroll]] for (uint j = 0; j < RESULTS_N; j++) {
                coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> x;
                coopMatLoad(x, inputs, (sn + j) * N * STRIDE + l * (K / 8), STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint i = 0; i < RESULTS_M; i++) {
                    sums[i][j] = coopMatMulAdd(w[i], x, sums[i][j]);
                }
            }
        }
    }
    // Loops of known lengths, in steps of one: what NVIDIA's compiler does not unroll makes it keep sums in memory.
    [[unroll]] for (uint i = 0; i < RESULTS_M; i++) {
        [[unroll]] for (uint j = 0; j < RESULTS_N; j++) {
            coopMatStore(sums[i][j], results[gl_SubgroupID], 0, M, gl_CooperativeMatrixLayoutColumnMajor);
            subgroupBarrier();
            [[unroll]] for (uint z = 0; z < M * N / SUBGROUP; z++) {
                uint e = z * SUBGROUP + gl_SubgroupInvocationID, m = m0 + (sm + i) * M + e % M, n = n0 + (sn + j) * N + e / M;
                if (m < y.ne.x && n < y.ne.y) {
                    write_f32(plus(row(y, n, i2, i3), m, 4), results[gl_SubgroupID][e] * over_scale(first + n));
                }
            }
            subgroupBarrier();
        }
    }
    // What is no number now: halves cannot hold it, or floats have infinities and NaN of their own. Each invocation looks at what it wrote.
    for (uint z = gl_SubgroupInvocationID; z < RESULTS_M * RESULTS_N * M * N; z += SUBGROUP) {
        uint unit = z / (M * N), e = z % (M * N);
        uint m = m0 + (sm + unit / RESULTS_N) * M + e % M, n = n0 + (sn + unit % RESULTS_N) * N + e / M;
        if (m < y.ne.x && n < y.ne.y) {
            uvec2 at = plus(row(y, n, i2, i3), m, 4);
            if (!(abs(read_f32(at)) < INFINITY)) {
                write_f32(at, of_floats(row(a, m, i2 / repeats.x, i3 / repeats.y), row(b, n, i2, i3), k));
            }
        }
    }
}
