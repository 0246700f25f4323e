// Columns of a product as halves, where its passes leave numbers for one another: first what each column is to be multiplied with again, then
// the halves of each, filled up with zeros to a multiple of 64.

const float INFINITY = 1.0 / 0.0;

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Twos {
    uvec2 v[];
};

// Words of a column of `k`.
uint words_of_column(uint k) {
    return (k + 63) / 64 * 32;
}

uvec2 halves_at(Tensor b, uint column) {
    uint columns = b.ne.y * b.ne.z * b.ne.w;
    return plus(plus(constants(), (columns + 3) / 4 * 4, 4), column, words_of_column(b.ne.x) * 4);
}

// What a column is to be multiplied with again: an infinity where it has values that are none.
float over_scale(uint column) {
    return read_f32(plus(constants(), column, 4));
}
