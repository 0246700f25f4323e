// The last pass of MUL_MAT_ID with many tokens, by products of whole numbers: behind mul_mat_id_sort and quantize.
#version 460

#include "common.glsl"
#include "dot_tile.glsl"
#include "experts.glsl"

#include "mul_mat_id_tiles.glsl"
