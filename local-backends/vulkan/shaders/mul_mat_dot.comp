// MUL_MAT with many columns, in tiles, by products of whole numbers: the second pass, behind quantize.
#version 460

#include "common.glsl"
#include "dot_tile.glsl"

#include "mul_mat.glsl"
