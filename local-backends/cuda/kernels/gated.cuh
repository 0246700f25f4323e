// The functions of gated linear units, of the parameters of the op: its kind is p[2].

const u32 REGLU = 0, GEGLU = 1, SWIGLU = 2;

INLINE float gated_unit(const Node& node, float gate, float up) {
    u32 kind = node.p[2];
    if (kind == REGLU) {
        return relu(gate) * up;
    }
    if (kind == GEGLU) {
        return gelu(gate) * up;
    }
    if (kind == SWIGLU) {
        return silu(gate) * up;
    }
    float alpha = number_param(node, 0), limit = number_param(node, 1);
    // NaN stays.
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate * sigmoid(alpha * gate) * (1.0f + up);
}
