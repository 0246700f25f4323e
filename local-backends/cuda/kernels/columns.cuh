// Products of rows of weights, which are no blocks, with some columns of floats.

// How rows and columns lie: whether four elements can be read in one word.
struct Wide {
    bool weights, columns;
};

INLINE Wide wide_of(const Node& node) {
    return {node.p[1] != 0, node.p[0] != 0};
}

// Adds what this lane has of the products of some rows with some columns: of the fours with numbers from `first` on, each `step`.
template <int T, u32 ROWS, u32 COLUMNS, bool WIDE>
INLINE void multiply(const u8* const (&rows)[ROWS], const u8* const (&columns)[COLUMNS], u32 n, u32 first, u32 step, float (&sums)[ROWS * COLUMNS]) {
#pragma unroll 2
    for (u32 u = first; 4 * u < n; u += step) {
        Four w[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            w[r] = quad_wide<T>(rows[r], 4 * u, n, WIDE);
        }
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) {
            Four x = quad_wide<F32>(columns[c], 4 * u, n, WIDE);
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) {
                sums[r * COLUMNS + c] += dot(w[r], x);
            }
        }
    }
}
