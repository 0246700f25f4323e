// compute: 61
// MUL_MAT of BF16 with few columns.
#include "mul_mat_vec.cuh"

MAKE_ELEMENT(BF16)
