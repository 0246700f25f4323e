// Instructions of tensor cores (PTX ISA, "Warp level matrix instructions"): those of compute capability 8.0, and what stands for them on 7.5.
#include "copies.cuh"

// A number that is not computed again where it is used.
INLINE u32 kept(u32 x) {
    asm volatile("mov.b32 %0, %0;" : "+r"(x));
    return x;
}

// Four matrices of 8 x 8 halves; lane l says where row l % 8 of matrix l / 8 is.
INLINE void load_matrices(u32 at, u32& a, u32& b, u32& c, u32& d) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at));
}

#if __CUDA_ARCH__ < 800
// sum += a * b: 16 rows with 8 columns, 8 deep.
INLINE void multiply_add_8(float (&sum)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(b));
}
#endif

// sum += a * b: 16 rows with 8 columns, 16 deep. Tensor cores of 7.5 have no bf16.
template <int T>
INLINE void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ < 800
    static_assert(T != BF16, "there are none for it");
    multiply_add_8(sum, a[0], a[1], b0);
    multiply_add_8(sum, a[2], a[3], b1);
#else
    if constexpr (T == BF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
#endif
}

// Two floats as halves, the first in the low one.
INLINE u32 two_halves(float low, float high) {
#if __CUDA_ARCH__ < 800
    return float_to_half(low) | u32(float_to_half(high)) << 16;
#else
    u32 w;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
#endif
}

// The same four, each with rows and columns exchanged.
INLINE void load_transposed(u32 at, u32 (&b)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at));
}
