// compute: 61 80
// MUL_MAT of Q8_0 with few columns.
#include "mul_mat_vec.cuh"

MAKE_BLOCK(Q8_0)
