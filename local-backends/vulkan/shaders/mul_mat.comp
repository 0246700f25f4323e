// MUL_MAT with many columns, in tiles.
#version 460

#include "common.glsl"
#include "blocks.glsl"
#include "tile.glsl"

#include "mul_mat.glsl"
