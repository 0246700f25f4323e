// Copies from global to shared memory that go on by themselves (PTX ISA, "cp.async"). Before compute capability 8.0 there are none: `copy_16` with a
// condition goes by way of registers there, and whoever uses the others has code of its own.

INLINE u32 shared_address(const void* at) {
    return __cvta_generic_to_shared(at);
}

#if __CUDA_ARCH__ >= 800
// Sixteen bytes into shared memory.
INLINE void copy_16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The same, or as many zeros.
INLINE void copy_16(u32 to, const void* from, bool is_there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}

// The same of bytes that other blocks of the multiprocessor will read, too: they stay in its cache.
INLINE void copy_16_cached(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

INLINE void copy_word(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

INLINE void end_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until this thread's groups of copies are there, but for the last so many.
template <int LEFT>
INLINE void wait_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
#else
// The same by way of registers: they are there when the call returns.
INLINE void copy_16(u32 to, const void* from, bool is_there) {
    uint4 v = is_there ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

INLINE void end_group() {}

template <int LEFT>
INLINE void wait_groups() {}
#endif
