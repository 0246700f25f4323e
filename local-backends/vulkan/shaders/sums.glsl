// What a workgroup computes that multiplies some rows of weights with some columns: its invocations share the length, and add up what they have.

layout(constant_id = 1) const uint TYPE = F32;
#define TABLE_TYPE TYPE
#include "octets.glsl"

// Rows and columns of a workgroup.
layout(constant_id = 2) const uint ROWS = 1;
layout(constant_id = 3) const uint COLUMNS = 1;
// Whether columns are whole vectors of 16 bytes, in place and length.
layout(constant_id = 4) const bool WIDE = false;

const uint RESULTS = ROWS * COLUMNS;
shared float parts[LANES * RESULTS];

// Where rows and columns begin; what is behind the last one stands for the last one.
uvec2 rows[ROWS], columns[COLUMNS];
// The sums of this invocation, those of a row one behind the other.
float sums[RESULTS];

void reduce_one(uint i) {
    float sum = subgroupAdd(sums[i]);
    if (subgroupElect()) {
        parts[gl_SubgroupID * RESULTS + i] = sum;
    }
}

// Written out: where a compiler leaves a loop, as NVIDIA's does, sums are kept in memory.
#define REDUCE(i) if (i < RESULTS) { reduce_one(i); }
#define REDUCE_4(i) REDUCE(i) REDUCE(i + 1) REDUCE(i + 2) REDUCE(i + 3)
#define REDUCE_16(i) REDUCE_4(i) REDUCE_4(i + 4) REDUCE_4(i + 8) REDUCE_4(i + 12)

// The sums of the workgroup, in the first parts. There are 32 at most.
void reduce() {
    REDUCE_16(0)
    REDUCE_16(16)
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < RESULTS; i += LANES) {
        float sum = parts[i];
        for (uint j = 1; j < gl_NumSubgroups; j++) {
            sum += parts[j * RESULTS + i];
        }
        parts[i] = sum;
    }
    barrier();
}
