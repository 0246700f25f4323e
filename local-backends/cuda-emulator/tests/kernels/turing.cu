// compute: 75
// Matrix products of cards without cp.async.

// C (8 x 8) = A (8 x 16) B (16 x 8) in bytes, A by rows, B by columns.
extern "C" __global__ void product_s8(const unsigned *a, const unsigned *b, int *c) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4, d0 = 0, d1 = 0;
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+r"(d0), "+r"(d1) : "r"(a[g * 4 + t]), "r"(b[g * 4 + t]));
    c[g * 8 + t * 2] = d0;
    c[g * 8 + t * 2 + 1] = d1;
}

// C (16 x 8) = A (16 x 8) B (8 x 8) in f16.
extern "C" __global__ void product_f16(const unsigned *a, const unsigned *b, float *c) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4;
    float d[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[g * 4 + t]), "r"(a[(g + 8) * 4 + t]), "r"(b[g * 4 + t]));
    for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = d[i];
}
