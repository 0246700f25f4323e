// MUL_MAT_ID: a workgroup for some rows of an expert and one column.
#version 460

#include "common.glsl"

// Whether rows of weights begin at whole words, and have whole pairs of octets.
layout(constant_id = 5) const bool ROWS_ARE_WHOLE = false;
#define WHOLE ROWS_ARE_WHOLE

#include "blocks.glsl"
#include "columns.glsl"

#include "mul_mat_id.glsl"
