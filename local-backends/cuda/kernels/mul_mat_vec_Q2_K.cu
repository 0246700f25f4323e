// compute: 61 80
// MUL_MAT of Q2_K with few columns.
#include "mul_mat_vec.cuh"

MAKE_BLOCK(Q2_K)
