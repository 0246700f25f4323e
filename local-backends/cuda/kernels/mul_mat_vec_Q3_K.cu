// compute: 61 80
// MUL_MAT of Q3_K with few columns.
#include "mul_mat_vec.cuh"

MAKE_BLOCK(Q3_K)
