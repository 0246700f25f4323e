// compute: 61
// MUL_MAT of F32 with few columns.
#include "mul_mat_vec.cuh"

MAKE_ELEMENT(F32)
