// Functions of one number, numbered as in UnaryKind::ALL.

const u32 NEG = 0, ABS = 1, SQR = 2, SQRT = 3, EXP = 4, LOG = 5, SIN = 6, COS = 7, TANH = 8, RELU = 9, SIGMOID = 10, SILU = 11, GELU = 12;
const u32 GELU_ERF = 13, GELU_QUICK = 14, SOFTPLUS = 15;

INLINE float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

INLINE float relu(float x) {
    return x < 0.0f ? 0.0f : x;
}

INLINE float silu(float x) {
    return x * sigmoid(x);
}

// (1 + tanh u) / 2 is the sigmoid of 2 u, which keeps its digits where tanh is near -1.
INLINE float gelu(float x) {
    return x * sigmoid(1.5957691216f * x * (1.0f + 0.044715f * x * x));
}

INLINE float function(u32 kind, float x) {
    switch (kind) {
    case NEG:
        return -x;
    case ABS:
        return fabsf(x);
    case SQR:
        return x * x;
    case SQRT:
        return sqrtf(x);
    case EXP:
        return expf(x);
    case LOG:
        return logf(x);
    case SIN:
        return sinf(x);
    case COS:
        return cosf(x);
    case TANH:
        return tanhf(x);
    case RELU:
        return relu(x);
    case SIGMOID:
        return sigmoid(x);
    case SILU:
        return silu(x);
    case GELU:
        return gelu(x);
    case GELU_ERF:
        return 0.5f * x * (1.0f + erff(x * 0.7071067812f));
    case GELU_QUICK:
        return x * sigmoid(1.702f * x);
    default:
        return x > 30.0f ? x : log1pf(expf(x));
    }
}
