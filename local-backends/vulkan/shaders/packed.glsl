// Columns of a product as signed bytes, between its passes.
//
// A number is its byte times the scale of its group of 32. Of `n` elements, n a multiple of 32, there are n bytes, and behind them for each group
// its scale, and the sums of its first and of its last sixteen bytes, 16 bits each. A column begins at a multiple of 16. The host makes room for
// as many bytes (src/launch.rs).

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Twos {
    uvec2 v[];
};

uint packed_bytes(uint n) {
    return (n + n / 4 + 15) / 16 * 16;
}

// The column of that place among all of `b`. Where there is something else in scratch memory, columns begin behind that.
uvec2 packed_column(Tensor b, uint place) {
    uint words_before = param(1);
    return plus(plus(constants(), words_before, 4), place, packed_bytes(b.ne.x));
}

uvec2 column_at(Tensor b, uint i1, uint i2, uint i3) {
    return packed_column(b, i1 + b.ne.y * (i2 + b.ne.z * i3));
}
