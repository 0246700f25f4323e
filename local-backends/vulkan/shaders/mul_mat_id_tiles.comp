// The second pass of MUL_MAT_ID with many tokens: a workgroup for a tile of rows and columns of one expert.
#version 460

#include "common.glsl"
#include "blocks.glsl"
#include "tile.glsl"
#include "experts.glsl"

#include "mul_mat_id_tiles.glsl"
