// compute: 61 80
// MUL_MAT of IQ4_NL with few columns.
#include "mul_mat_vec.cuh"

MAKE_BLOCK(IQ4_NL)
