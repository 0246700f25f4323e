// compute: 61 80
// MUL_MAT of Q4_1 with few columns.
#include "mul_mat_vec.cuh"

MAKE_BLOCK(Q4_1)
