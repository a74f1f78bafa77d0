// Exact float32 arithmetic: the twins of vkdnn/numerics/basic.py, with the same bits on every device.
// Every value is flushed (no subnormals) on entry and on return. The device's strategies choose the form:
//   VKDNN_SUBNORMALS_SOFTWARE  the device keeps subnormals: results are flushed here
//   VKDNN_DIVIDE_REMAINDER     its division is not correctly rounded: quotients are settled by integer remainder
//   VKDNN_SQRT_REMAINDER       its square root is not: the same
// Contraction is forbidden later, on the SPIR-V. Tests for NaN look at bits: compilers delete isnan().

// Zeros that no compiler can know: some drop a known zero from x + 0.0 or make x * 0.0 zero, as if zeros had no sign.
// A kernel defines ZERO_BITS by something that is 0 at run time.
#ifndef ZERO_BITS
#define ZERO_BITS 0u
#endif
#define ZERO uintBitsToFloat(ZERO_BITS)
#define NEGATIVE_ZERO uintBitsToFloat(0x80000000u | ZERO_BITS)
float veiled(float x) { return uintBitsToFloat(floatBitsToUint(x) | ZERO_BITS); }  // x, which may be a known zero

// ---- bits

uint bits_to_uint(float x) { return floatBitsToUint(x); }
uint bits_to_uint(int x) { return uint(x); }
uint bits_to_uint(uint x) { return x; }
int bits_to_int(float x) { return floatBitsToInt(x); }
int bits_to_int(uint x) { return int(x); }
int bits_to_int(int x) { return x; }

uint magnitude_bits(float x) { return floatBitsToUint(x) & 0x7fffffffu; }
bool is_nan(float x) { return magnitude_bits(x) > 0x7f800000u; }
bool is_inf(float x) { return magnitude_bits(x) == 0x7f800000u; }
bool is_finite(float x) { return magnitude_bits(x) < 0x7f800000u; }

uint flush_bits(uint u) { return (u & 0x7f800000u) == 0u ? u & 0x80000000u : u; }
float flush(float x) { return uintBitsToFloat(flush_bits(floatBitsToUint(x))); }
float bits_to_float(uint u) { return uintBitsToFloat(flush_bits(u) | ZERO_BITS); }
float bits_to_float(int i) { return bits_to_float(uint(i)); }
float bits_to_float(float x) { return x; }

float with_sign_of(float magnitude, float x) {
    return uintBitsToFloat(floatBitsToUint(magnitude) | (floatBitsToUint(x) & 0x80000000u));
}

// ---- arithmetic

float negate(float x) { return -x; }
float absolute(float x) { return abs(x); }

#ifdef VKDNN_SUBNORMALS_SOFTWARE
// Operands are multiples of 2^-149, so a sum below 2^-126 is exact: flushing what came out is the rule.
float add(float a, float b) { return flush(a + b); }
float sub(float a, float b) { return flush(a - b); }

// The result of a product or quotient is flushed when, rounded to 24 bits with unbounded exponent, it is below 2^-126.
// The subnormal grid rounds some of these up to 2^-126, so the decision looks at the operation with a scaled by 2^24,
// which keeps 24 bits there. The scaling overflows only from |a| = 2^104 on, where the true result is at least 2^-24
// or exactly zero; then scaled is infinite or NaN and the result stays, as it must.
float flush_tiny(float result, float scaled) {
    return uintBitsToFloat(floatBitsToUint(result) & (abs(scaled) < 1.9721522630525295e-31 ? 0x80000000u : 0xffffffffu));
}
float mul(float a, float b) { return flush_tiny(a * b, (a * 16777216.0) * b); }
#else
float add(float a, float b) { return a + b; }
float sub(float a, float b) { return a - b; }
float mul(float a, float b) { return a * b; }
#endif

#ifdef VKDNN_DIVIDE_REMAINDER
// Quotient of the 24-bit mantissas to 25 bits, exactly: a guess in float is corrected by its remainder, which is exact
// modulo 2^32 because it is small. 25 bits round to 24 without ties: a tie would need b to divide a power of two.
float divide(float a, float b) {
    uint ua = magnitude_bits(a), ub = magnitude_bits(b);
    uint sign = (floatBitsToUint(a) ^ floatBitsToUint(b)) & 0x80000000u;
    uint ma = (ua & 0x007fffffu) | 0x00800000u, mb = (ub & 0x007fffffu) | 0x00800000u;
    bool less = ma < mb;
    float fb = float(mb);
    uint q = uint(float(ma) / fb * (less ? 33554432.0 : 16777216.0));  // in [2^24, 2^25], off by a few units
    int remainder = int((ma << (less ? 25u : 24u)) - q * mb);
    int step_ = int(float(remainder) / fb + 64.5) - 64;  // nearest integer: leaves a remainder within half of mb
    remainder -= step_ * int(mb);
    q += uint(step_ - (remainder < 0 ? 1 : 0));
    // q = floor(2^24 or 2^25 ma / mb) now; rounding may carry into the exponent, which is then right.
    int e = int(ua >> 23) - int(ub >> 23) + (less ? 126 : 127);
    int r = ((e - 1) << 23) + int((q + 1u) >> 1);
    uint u = e < 0 || r < 0x00800000 ? 0u : uint(r);
    u = e > 254 || r > 0x7f800000 ? 0x7f800000u : u;
    u = ua == 0u || ub == 0x7f800000u ? 0u : u;
    u = ub == 0u || ua == 0x7f800000u ? 0x7f800000u : u;
    bool nan = ua > 0x7f800000u || ub > 0x7f800000u || (ua == ub && (ua == 0u || ua == 0x7f800000u));
    return uintBitsToFloat(nan ? 0x7fc00000u : u | sign);
}
#elif defined(VKDNN_SUBNORMALS_SOFTWARE)
float divide(float a, float b) { return flush_tiny(a / b, (a * 16777216.0) / b); }
#else
float divide(float a, float b) { return a / b; }
#endif

#ifdef VKDNN_SQRT_REMAINDER
// Root of the mantissa scaled to [2^48, 2^50), to 25 bits, in the same way; again there are no ties.
float square_root(float x) {
    uint u = floatBitsToUint(x);
    uint m = (u & 0x007fffffu) | 0x00800000u;
    uint odd = 1u - ((u >> 23) & 1u);  // the unbiased exponent is odd where the field is even
    uint q = uint(sqrt(float(m << (1u + odd))) * 4096.0);
    int remainder = int((m << (25u + odd)) - q * q);
    q += uint(int(float(remainder) / (2.0 * float(q)) + 64.5) - 64);
    remainder = int((m << (25u + odd)) - q * q);
    q -= remainder < 0 ? 1u : 0u;
    uint root = ((((u >> 23) + 125u) >> 1) << 23) + ((q + 1u) >> 1);
    root = u == 0u || u == 0x80000000u || u == 0x7f800000u ? u : root;
    return uintBitsToFloat(u > 0x7f800000u && u != 0x80000000u ? 0x7fc00000u : root);
}
#else
float square_root(float x) { return magnitude_bits(x) == 0u ? x : sqrt(x); }
#endif

// ---- comparison, on bits: a compiler may turn a choice by a float comparison into a minimum that drops NaN

int order_key(float x) {  // ascending with x; the same for both zeros
    int i = floatBitsToInt(x);
    return i < 0 ? -(i & 0x7fffffff) : i;
}
bool is_ordered(float a, float b) { return max(magnitude_bits(a), magnitude_bits(b)) <= 0x7f800000u; }
bool is_less(float a, float b) { return is_ordered(a, b) && order_key(a) < order_key(b); }
bool is_less_equal(float a, float b) { return is_ordered(a, b) && order_key(a) <= order_key(b); }
bool is_equal(float a, float b) { return is_ordered(a, b) && order_key(a) == order_key(b); }

// NaN if either is NaN; -0 below +0.
float maximum(float a, float b) {
    uint same = floatBitsToUint(a) & floatBitsToUint(b);
    float larger = a == b ? uintBitsToFloat(same) : (a > b ? a : b);
    return is_nan(a) || is_nan(b) ? uintBitsToFloat(0x7fc00000u) : larger;
}
float minimum(float a, float b) {
    uint same = floatBitsToUint(a) | floatBitsToUint(b);
    float smaller = a == b ? uintBitsToFloat(same) : (a < b ? a : b);
    return is_nan(a) || is_nan(b) ? uintBitsToFloat(0x7fc00000u) : smaller;
}

// ---- rounding to integers; a zero result has the sign of x

float round_even(float x) {
    float magnitude = abs(x);
    float rounded = (magnitude + 8388608.0) - 8388608.0;  // 2^23: the sum has no bits for a fraction
    return magnitude_bits(x) < 0x4b000000u ? with_sign_of(rounded, x) : x;
}
float trunc_(float x) {
    uint u = magnitude_bits(x);
    uint fraction = 0x007fffffu >> (clamp(u >> 23, 127u, 150u) - 127u);
    uint kept = u < 0x3f800000u ? 0u : u & ~fraction;
    return u < 0x4b000000u ? with_sign_of(uintBitsToFloat(kept), x) : x;
}
float floor_(float x) { float t = trunc_(x); return t > x ? t - 1.0 : t; }
float ceil_(float x) { float t = trunc_(x); return t < x ? t + 1.0 : t; }

// ---- conversion

// Two exact halves and one rounding: a device's own conversion of wide integers need not round to nearest.
float to_float(uint x) { return veiled(float(x >> 16) * 65536.0 + float(x & 0xffffu)); }
float to_float(int x) { return veiled(float(x >> 16) * 65536.0 + float(x & 0xffff)); }
float to_float(bool x) { return x ? 1.0 : ZERO; }
float to_float(float x) { return x; }

// Truncated and saturated, NaN gives 0; the conversion itself only sees values that fit.
int to_int(float x) {
    uint u = magnitude_bits(x);
    int bound = floatBitsToInt(x) < 0 ? -2147483647 - 1 : 2147483647;
    bool fits = u < 0x4f000000u;
    int inside = int(fits ? x : 0.0);
    return fits ? inside : (u > 0x7f800000u ? 0 : bound);
}
int to_int(uint x) { return int(x); }
int to_int(bool x) { return x ? 1 : 0; }
int to_int(int x) { return x; }

uint to_uint(float x) {
    uint u = floatBitsToUint(x);
    bool fits = u < 0x4f800000u;
    uint inside = uint(fits ? x : 0.0);
    return fits ? inside : (u > 0x7f800000u ? 0u : 0xffffffffu);
}
uint to_uint(int x) { return uint(x); }
uint to_uint(bool x) { return x ? 1u : 0u; }
uint to_uint(uint x) { return x; }

bool to_bool(float x) { return magnitude_bits(x) != 0u; }
bool to_bool(int x) { return x != 0; }
bool to_bool(uint x) { return x != 0u; }
bool to_bool(bool x) { return x; }
