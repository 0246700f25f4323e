// compute: 61 80
// MUL_MAT of Q5_1 with few columns.
#include "mul_mat_vec.cuh"

MAKE_BLOCK(Q5_1)
