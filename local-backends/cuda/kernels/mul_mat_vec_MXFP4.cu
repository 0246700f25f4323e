// compute: 61 80
// MUL_MAT of MXFP4 with few columns.
#include "mul_mat_vec.cuh"

MAKE_BLOCK(MXFP4)
