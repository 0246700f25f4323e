// One invocation for each element of the result.

// The place of this invocation's element; `false` behind the last one.
bool element(Tensor of, out uvec4 i) {
    uint place = group() * LANES + gl_LocalInvocationID.x;
    i = uvec4(place % of.ne.x, place / of.ne.x % of.ne.y, 0, 0);
    uint above = place / of.ne.x / of.ne.y;
    i.zw = uvec2(above % of.ne.z, above / of.ne.z);
    return i.w < of.ne.w;
}

// An element of 4 bytes, or of any size.
uvec2 address(Tensor t, uvec4 i) {
    return plus(row(t, i.y, i.z, i.w), i.x, t.nb.x);
}
