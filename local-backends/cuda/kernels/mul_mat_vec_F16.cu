// compute: 61
// MUL_MAT of F16 with few columns.
#include "mul_mat_vec.cuh"

MAKE_ELEMENT(F16)
