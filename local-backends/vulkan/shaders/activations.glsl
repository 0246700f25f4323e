// Functions of one number, numbered as in UnaryKind::ALL.

const uint NEG = 0, ABS = 1, SQR = 2, SQRT = 3, EXP = 4, LOG = 5, SIN = 6, COS = 7, TANH = 8, RELU = 9, SIGMOID = 10, SILU = 11, GELU = 12;
const uint GELU_ERF = 13, GELU_QUICK = 14, SOFTPLUS = 15;

float sigmoid(float x) {
    return 1.0 / (1.0 + exp(-x));
}

// Its own: that of a driver may overflow, and loses digits near 0.
float tanh_of(float x) {
    float a = abs(x);
    if (a < 0.05) {
        return x * (1.0 - x * x * (1.0 / 3.0 - x * x * (2.0 / 15.0)));
    }
    float e = exp(-2.0 * a);
    float t = (1.0 - e) / (1.0 + e);
    return x < 0.0 ? -t : t;
}

// The error function: its Maclaurin series below 2, above that Abramowitz and Stegun, 7.1.26, whose error of 1.5e-7 is small beside 1.
float erf_of(float x) {
    float a = abs(x), value;
    if (a < 2.0) {
        float term = a, sum = a;
        for (int n = 1; n < 24; n++) {
            term *= -a * a / float(n);
            sum += term / float(2 * n + 1);
        }
        value = 1.1283791671 * sum;
    } else {
        float t = 1.0 / (1.0 + 0.3275911 * a);
        float p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
        value = 1.0 - p * exp(-a * a);
    }
    return x < 0.0 ? -value : value;
}

// log(1 + x), for x not negative.
float log1p_of(float x) {
    float u = 1.0 + x;
    return u == 1.0 ? x : log(u) * x / (u - 1.0);
}

// GLSL leaves open what exp and log make of what is no number, and of zero and infinity; SwiftShader makes numbers of them.
float exp_of(float x) {
    return isnan(x) ? x : exp(x);
}

float log_of(float x) {
    if (isnan(x) || x == -minus_infinity()) {
        return x;
    }
    return x > 0.0 ? log(x) : x == 0.0 ? minus_infinity() : uintBitsToFloat(0x7fc00000);
}

float function(uint kind, float x) {
    switch (kind) {
    case NEG:
        return -x;
    case ABS:
        return abs(x);
    case SQR:
        return x * x;
    case SQRT:
        return sqrt(x);
    case EXP:
        return exp_of(x);
    case LOG:
        return log_of(x);
    case SIN:
        return sin(x);
    case COS:
        return cos(x);
    case TANH:
        return tanh_of(x);
    case RELU:
        return x < 0.0 ? 0.0 : x;
    case SIGMOID:
        return isnan(x) ? x : sigmoid(x);
    case SILU:
        return x * sigmoid(x);
    case GELU:
        // (1 + tanh u) / 2 is the sigmoid of 2 u, which keeps its digits where tanh is near -1.
        return x * sigmoid(1.5957691216 * x * (1.0 + 0.044715 * x * x));
    case GELU_ERF:
        return 0.5 * x * (1.0 + erf_of(x * 0.7071067812));
    case GELU_QUICK:
        return x * sigmoid(1.702 * x);
    default:
        return x > 30.0 ? x : log1p_of(exp(x));
    }
}

// Kinds of gated units. The last one has two numbers: alpha, and a limit.
const uint REGLU = 0, GEGLU = 1, SWIGLU = 2, SWIGLU_OAI = 3;

float gated(uint kind, vec2 numbers, float gate, float up) {
    if (kind == REGLU) {
        return function(RELU, gate) * up;
    }
    if (kind == GEGLU) {
        return function(GELU, gate) * up;
    }
    if (kind == SWIGLU) {
        return function(SILU, gate) * up;
    }
    float alpha = numbers.x, limit = numbers.y;
    // NaN stays.
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate * sigmoid(alpha * gate) * (1.0 + up);
}
