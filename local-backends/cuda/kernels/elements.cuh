// One thread for each element of the result.

struct Place {
    u32 i[4];
};

// The place of the element with this number.
INLINE Place place_of(const Tensor& of, u32 number) {
    u32 rows = number / of.ne[0], above = rows / of.ne[1];
    return {{number % of.ne[0], rows % of.ne[1], above % of.ne[2], above / of.ne[2]}};
}

INLINE u32 number_of_element() {
    return blockIdx.x * blockDim.x + threadIdx.x;
}

// The place of this thread's element; `false` behind the last one.
INLINE bool element(const Tensor& of, Place& place) {
    place = place_of(of, number_of_element());
    return place.i[3] < of.ne[3];
}

INLINE u8* address(const Tensor& t, Place p) {
    return row(t, p.i[1], p.i[2], p.i[3]) + p.i[0] * t.nb[0];
}

// The place in a tensor that is repeated.
INLINE Place repeated(const Tensor& t, Place p) {
    return {{p.i[0] % t.ne[0], p.i[1] % t.ne[1], p.i[2] % t.ne[2], p.i[3] % t.ne[3]}};
}
