// The rotation of a row by ROPE with YaRN.

// What becomes of row `r`: `put` is given each element with its place. A thread may write where it has read.
template <typename Put>
INLINE void rotate(const Node& node, u32 r, Put put) {
    const Tensor &x = node.t[0], &pos = node.t[1], &factors = node.t[2];
    u32 n_dims = node.p[0], half = n_dims / 2;
    bool neox = node.p[2] != 0;
    float amplitude = number_param(node, 1);
    // Radians of a position for each pair, which the host has computed.
    const float* rates = (const float*)node.table;
    const float* from = (const float*)row(x, r);
    float position = read_i32(pos.at + r / x.ne[1] % x.ne[2] * pos.nb[0]);
    for (u32 pair = threadIdx.x; pair < half; pair += blockDim.x) {
        u32 i = neox ? pair : 2 * pair, j = neox ? pair + half : 2 * pair + 1;
        float factor = factors.at != 0 ? read_f32(factors.at + pair * factors.nb[0]) : 1.0f;
        float angle = position * rates[pair] / factor, s, c;
        sincosf(angle, &s, &c);
        s *= amplitude;
        c *= amplitude;
        float a = from[i], b = from[j];
        put(i, a * c - b * s);
        put(j, a * s + b * c);
    }
    for (u32 i = n_dims + threadIdx.x; i < x.ne[0]; i += blockDim.x) {
        put(i, from[i]);
    }
}
