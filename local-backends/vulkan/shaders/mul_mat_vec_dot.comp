// MUL_MAT with few columns, by products of whole numbers: the second pass, behind quantize.
#version 460

#include "common.glsl"

// Whether rows of weights begin at whole words, and have whole pairs of octets.
layout(constant_id = 5) const bool ROWS_ARE_WHOLE = false;
#define WHOLE ROWS_ARE_WHOLE

#include "blocks.glsl"
#include "dot_columns.glsl"

#include "mul_mat_vec.glsl"
