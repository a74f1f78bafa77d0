// Exact float32 arithmetic: the twins of vkdnn/numerics/basic.py, with the same bits on every device.
// Every value is flushed (no subnormals) on entry and on return. The device's strategies choose the form:
//   VKDNN_SUBNORMALS_SOFTWARE  the device keeps subnormals: results are flushed here
//   VKDNN_DIVIDE_REMAINDER     its division is not correctly rounded: quotients are settled by integer remainder
//   VKDNN_DIVIDE_FMA           the same, but its fma() is fused, as the probe found: settled by the remainder of that
//   VKDNN_SQRT_REMAINDER, VKDNN_SQRT_FMA  the same for its square root
// Contraction is forbidden later, on the SPIR-V, where fma() is refused outside of fused(). Tests for NaN look at bits: compilers delete isnan().
// Choices are between plain names, so that they become selections: branches by the hundred overwhelm some compilers.

// Zeros that no compiler can know: some drop a known zero from x + 0.0 or make x * 0.0 zero, as if zeros had no sign.
// A kernel defines ZERO_BITS by something that is 0 at run time.
#ifndef ZERO_BITS
#define ZERO_BITS 0u
#endif
float ZERO = uintBitsToFloat(ZERO_BITS);
float NEGATIVE_ZERO = uintBitsToFloat(0x80000000u | ZERO_BITS);
float ONE = uintBitsToFloat(0x3f800000u | ZERO_BITS);  // and one that no compiler drops from a product
const uint NAN_BITS = 0x7fc00000u;
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

uint flush_bits(uint u) {
    uint sign = u & 0x80000000u;
    return (u & 0x7f800000u) == 0u ? sign : u;
}
float flush(float x) { return uintBitsToFloat(flush_bits(floatBitsToUint(x))); }
#ifdef VKDNN_SUBNORMALS_SOFTWARE
float bits_to_float(uint u) { return uintBitsToFloat(flush_bits(u) | ZERO_BITS); }
#else
float bits_to_float(uint u) { return uintBitsToFloat(u) * ONE; }  // a product flushes, in one instruction
#endif
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

#if defined(VKDNN_DIVIDE_FMA) || defined(VKDNN_SQRT_FMA)
float fused(float a, float b, float c) { return fma(a, b, c); }  // a b + c, rounded once
#endif

#ifdef VKDNN_DIVIDE_FMA
// a / b = (n / m) (A B): mantissas n and m, signed powers of two A and 1 / B. All of b comes first, for loops with one
// divisor. r = (1 - off) / m, where off is exact and below 2^-23 if the estimate is right to 2^-12. Then q is within
// 0.51 units in the last place of n / m, its remainder n - m q is exact, and what is rounded last is n / m +
// t (n / m - q), |t| about 2^-24. That is enough: a quotient of 24-bit integers N / M is 1 / 2M units or more away from the
// middle between two floats, so a wrong side would need |t| >= 1 / (M + 1). (t comes from rounding the second remainder:
// 2^-24, and 2/3 of that where M >= 3/2 2^23, since the remainder next to such a middle is then in the upper half between
// powers of two. The one that is a power of two itself, n = 1 over m = 2 - 2^-23, is a tie, which the unit added to off
// settles.) m is in [1/2, 1) for |b| < 1 and in [2, 4) for |b| >= 2, so that A B leaves the normal range only where the
// quotient does.
float divide(float a, float b) {
    uint ua = floatBitsToUint(a), ub = magnitude_bits(b), exponent = ub & 0x7f800000u;
    uint shift = uint(clamp(int(exponent) - 0x3f800000, -0x00800000, 0x00800000));
    float m = uintBitsToFloat(((ub & 0x007fffffu) | 0x3f800000u) + shift);
    float r = 1.0 / m;
    r = fused(r, fused(-m, r, 1.0), r);
    float off = uintBitsToFloat(floatBitsToUint(fused(-m, r, 1.0)) + 1u);
    float rest = r * off;
    uint inverse = 0x7f000000u - exponent + shift;
    inverse = ub == 0u ? 0x7f800000u : inverse;
    inverse = ub > 0x7f800000u ? NAN_BITS : inverse;
    float B = uintBitsToFloat(inverse | (floatBitsToUint(b) & 0x80000000u));
    float n = uintBitsToFloat((ua & 0x007fffffu) | 0x3f800000u);
    uint power = ua & 0xff800000u;
    power = (~ua & 0x7f800000u) == 0u ? ua : power;  // a NaN stays one
    float q = fused(n, r, n * rest);
    float remainder = fused(-m, q, n);
    q = fused(fused(remainder, off, remainder), r, q);
    return mul(q, mul(uintBitsToFloat(power), B));
}
#elif defined(VKDNN_DIVIDE_REMAINDER)
// Quotient of the 24-bit mantissas to 25 bits, exactly: a guess in float is corrected by its remainder, which is exact
// modulo 2^32 because it is small. 25 bits round to 24 without ties: a tie would need b to divide a power of two.
float divide(float a, float b) {
    uint ua = magnitude_bits(a), ub = magnitude_bits(b);
    uint sign = (floatBitsToUint(a) ^ floatBitsToUint(b)) & 0x80000000u;
    uint ma = (ua & 0x007fffffu) | 0x00800000u, mb = (ub & 0x007fffffu) | 0x00800000u;
    bool less = ma < mb;
    float fb = float(mb);
    float scale = less ? 33554432.0 : 16777216.0;
    uint shift = less ? 25u : 24u;
    uint q = uint(float(ma) / fb * scale);  // in [2^24, 2^25], off by a few units
    int remainder = int((ma << shift) - q * mb);
    int step_ = int(float(remainder) / fb + 64.5) - 64;  // nearest integer: leaves a remainder within half of mb
    remainder -= step_ * int(mb);
    q += uint(step_ - (remainder < 0 ? 1 : 0));
    // q = floor(2^24 or 2^25 ma / mb) now; rounding may carry into the exponent, which is then right.
    int e = int(ua >> 23) - int(ub >> 23) + (less ? 126 : 127);
    int r = ((e - 1) << 23) + int((q + 1u) >> 1);
    uint u = uint(r);
    u = r < 0x00800000 ? 0u : u;
    u = e < 0 ? 0u : u;
    u = r > 0x7f800000 ? 0x7f800000u : u;
    u = e > 254 ? 0x7f800000u : u;
    u = ua == 0u ? 0u : u;
    u = ub == 0x7f800000u ? 0u : u;
    u = ub == 0u ? 0x7f800000u : u;
    u = ua == 0x7f800000u ? 0x7f800000u : u;
    u |= sign;
    u = max(ua, ub) > 0x7f800000u ? NAN_BITS : u;
    u = (ua | ub) == 0u ? NAN_BITS : u;                    // 0 / 0
    u = min(ua, ub) == 0x7f800000u ? NAN_BITS : u;         // inf / inf
    return uintBitsToFloat(u);
}
#elif defined(VKDNN_SUBNORMALS_SOFTWARE)
float divide(float a, float b) { return flush_tiny(a / b, (a * 16777216.0) / b); }
#else
float divide(float a, float b) { return a / b; }
#endif

#ifdef VKDNN_SQRT_FMA
// x = m 4^k, m in [1, 4). The root g of m is less than a unit in the last place off if the estimate is right to 2^-13;
// its remainder m - g^2 is exact then. g + unit / 2 is below the root where g^2 + g unit < m: both sides are multiples
// of unit^2, so the square of unit / 2 decides nothing but on which side of equality the root lies.
float square_root(float x) {
    uint u = floatBitsToUint(x);
    uint even = (u >> 23) & 1u;  // of the unbiased exponent
    float m = uintBitsToFloat((u & 0x007fffffu) | (0x40000000u - (even << 23)));
    float y = inversesqrt(m), g = m * y;
    g = fused(g, 0.5 * fused(-g, y, 1.0), g);
    float remainder = fused(-g, g, m), unit = g * 1.1920928955078125e-7;
    uint root = floatBitsToUint(g) + (((u >> 23) + 1u) >> 1 << 23) - 0x20000000u;
    root += uint(remainder > unit);
    root -= uint(remainder <= -unit);
    root = u == 0x7f800000u ? u : root;
    root = u > 0x7f800000u ? NAN_BITS : root;
    root = (u & 0x7fffffffu) == 0u ? u : root;
    return uintBitsToFloat(root);
}
#elif defined(VKDNN_SQRT_REMAINDER)
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
    root = u == 0x7f800000u ? u : root;
    root = u > 0x7f800000u ? NAN_BITS : root;
    root = (u & 0x7fffffffu) == 0u ? u : root;
    return uintBitsToFloat(root);
}
#else
float square_root(float x) {
    float root = sqrt(x);
    return magnitude_bits(x) == 0u ? x : root;
}
#endif

// ---- shifts by the count modulo 32: others are undefined

int shift_left(int a, int b) { return a << (b & 31); }
uint shift_left(uint a, uint b) { return a << (b & 31u); }
int shift_right(int a, int b) { return a >> (b & 31); }
uint shift_right(uint a, uint b) { return a >> (b & 31u); }

// ---- comparison, on bits: a compiler may turn a choice by a float comparison into a minimum that drops NaN

// Ascending with x, the same for both zeros; NaN becomes what makes the comparison false.
int order_key(float x, int of_nan) {
    int i = floatBitsToInt(x);
    int magnitude = i & 0x7fffffff;
    int below = -magnitude;
    int key = i < 0 ? below : i;
    return magnitude > 0x7f800000 ? of_nan : key;
}
bool is_less(float a, float b) { return order_key(a, 0x7fffffff) < order_key(b, -0x7fffffff); }
bool is_less_equal(float a, float b) { return order_key(a, 0x7fffffff) <= order_key(b, -0x7fffffff); }
bool is_equal(float a, float b) {
    uint ua = floatBitsToUint(a), ub = floatBitsToUint(b);
    bool same = ua == ub, number = (ua & 0x7fffffffu) <= 0x7f800000u, zeros = ((ua | ub) & 0x7fffffffu) == 0u;
    bool equal = same && number;
    return equal || zeros;
}
// The bits of x are from low to high: of comparisons with constants.
bool is_within(float x, uint low, uint high) { return floatBitsToUint(x) - low <= high - low; }

// NaN if either is NaN; -0 below +0.
float maximum(float a, float b) {
    uint same = floatBitsToUint(a) & floatBitsToUint(b);
    uint larger = floatBitsToUint(max(a, b));
    larger = a == b ? same : larger;
    bool nan = max(magnitude_bits(a), magnitude_bits(b)) > 0x7f800000u;
    return uintBitsToFloat(nan ? NAN_BITS : larger);
}
float minimum(float a, float b) {
    uint same = floatBitsToUint(a) | floatBitsToUint(b);
    uint smaller = floatBitsToUint(min(a, b));
    smaller = a == b ? same : smaller;
    bool nan = max(magnitude_bits(a), magnitude_bits(b)) > 0x7f800000u;
    return uintBitsToFloat(nan ? NAN_BITS : smaller);
}

// Keys that ascend with x, -0 below +0, -inf at 0 and NaN at the top: as integers all folds of extremes are exact.
uint order_of(float x) {
    int i = floatBitsToInt(x);
    return (uint(i) ^ (uint(i >> 31) | 0x80000000u)) - 0x007fffffu;
}
uint order_of_negative(float x) { return order_of(-x); }
float of_order(uint key) {
    uint u = key + 0x007fffffu, positive = u ^ 0x80000000u, negative = ~u;
    return uintBitsToFloat((u >> 31) != 0u ? positive : negative);
}

// ---- signs and neighbours

float sign_(float x) {
    uint m = magnitude_bits(x), zero = ZERO_BITS;
    uint one = 0x3f800000u | (floatBitsToUint(x) & 0x80000000u);
    one = m == 0u ? zero : one;
    one = m > 0x7f800000u ? NAN_BITS : one;
    return uintBitsToFloat(one);
}
int sign_(int x) { return sign(x); }
uint sign_(uint x) { return min(x, 1u); }

// The sign of a NaN is not one: it counts as +.
float copy_sign(float a, float b) {
    uint sign = floatBitsToUint(b) & 0x80000000u;
    sign = is_nan(b) ? 0u : sign;
    return uintBitsToFloat(magnitude_bits(a) | sign);
}

// The next float after a in the direction of b; next to zero are the smallest normal numbers.
float next_after(float a, float b) {
    uint u = floatBitsToUint(a), same = floatBitsToUint(b), up = u + 1u, down = u - 1u;
    uint smallest = 0x00800000u | (same & 0x80000000u);
    bool nan = max(magnitude_bits(a), magnitude_bits(b)) > 0x7f800000u;
    bool outward = (floatBitsToInt(a) < 0) == is_less(b, a);
    uint next = flush_bits(outward ? up : down);
    next = magnitude_bits(a) == 0u ? smallest : next;
    next = is_equal(a, b) ? same : next;
    return uintBitsToFloat(nan ? NAN_BITS : next);
}

// ---- rounding to integers; a zero result has the sign of x

float round_even(float x) {
    float magnitude = abs(x);
    float rounded = (magnitude + 8388608.0) - 8388608.0;  // 2^23: the sum has no bits for a fraction
    float signed_ = with_sign_of(rounded, x);
    return magnitude_bits(x) < 0x4b000000u ? signed_ : x;
}
float trunc_(float x) {
    uint u = magnitude_bits(x);
    uint fraction = 0x007fffffu >> (clamp(u >> 23, 127u, 150u) - 127u);
    uint kept = u & ~fraction;
    kept = u < 0x3f800000u ? 0u : kept;
    float whole = with_sign_of(uintBitsToFloat(kept), x);
    return u < 0x4b000000u ? whole : x;
}
float floor_(float x) {
    float t = trunc_(x), below = t - 1.0;
    return t > x ? below : t;
}
float ceil_(float x) {
    float t = trunc_(x), above = t + 1.0;
    return t < x ? above : t;
}

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
    bound = u > 0x7f800000u ? 0 : bound;
    bool fits = u < 0x4f000000u;
    int inside = int(fits ? x : 0.0);
    return fits ? inside : bound;
}
int to_int(uint x) { return int(x); }
int to_int(bool x) { return x ? 1 : 0; }
int to_int(int x) { return x; }

uint to_uint(float x) {
    uint u = floatBitsToUint(x);
    bool fits = u < 0x4f800000u;
    uint inside = uint(fits ? x : 0.0);
    uint bound = u > 0x7f800000u ? 0u : 0xffffffffu;
    return fits ? inside : bound;
}
uint to_uint(int x) { return uint(x); }
uint to_uint(bool x) { return x ? 1u : 0u; }
uint to_uint(uint x) { return x; }

// ---- storage types of 16 bits, two elements a word; the value of an element is a float

uint half_of(uint word, uint element) { return (word >> ((element & 1u) * 16u)) & 0xffffu; }

// Rounded to nearest, ties to even. Adding 0.5, whose last place is 2^-24, rounds to float16's subnormals.
uint float_to_float16(float x) {
    uint u = magnitude_bits(x);
    uint tiny = floatBitsToUint(abs(x) + 0.5) - 0x3f000000u;
    uint h = (u + 0xfffu + ((u >> 13) & 1u) - 0x38000000u) >> 13;
    h = u < 0x38800000u ? tiny : h;
    h = u >= 0x47800000u ? 0x7c00u : h;
    h = u > 0x7f800000u ? 0x7e00u : h;
    return h | ((floatBitsToUint(x) >> 16) & 0x8000u);
}
float float16_to_float(uint h) {
    uint m = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    uint tiny = floatBitsToUint(veiled(uintBitsToFloat(m + 0x3f000000u) - 0.5));  // the last place of 0.5 is 2^-24
    uint u = (m << 13) + 0x38000000u;
    u = m < 0x400u ? tiny : u;
    u = m >= 0x7c00u ? u + 0x38000000u : u;
    return uintBitsToFloat(u | sign);
}
uint float_to_bfloat16(float x) {
    uint u = floatBitsToUint(x);
    uint h = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return is_nan(x) ? 0x7fc0u : h;
}
float bfloat16_to_float(uint h) { return uintBitsToFloat(h << 16); }
float round_float16(float x) { return float16_to_float(float_to_float16(x)); }
float round_bfloat16(float x) { return bfloat16_to_float(float_to_bfloat16(x)); }

bool to_bool(float x) { return magnitude_bits(x) != 0u; }
bool to_bool(int x) { return x != 0; }
bool to_bool(uint x) { return x != 0u; }
bool to_bool(bool x) { return x; }

bool both(bool a, bool b) { return a && b; }
bool either(bool a, bool b) { return a || b; }

// ---- remainders, rounded quotients, integer powers

// The mantissa of a, shifted by the difference of the exponents (8 bits at a time), modulo that of b: exact.
float fmod_(float a, float b) {
    uint ua = magnitude_bits(a), ub = magnitude_bits(b);
    uint ma = (ua & 0x007fffffu) | 0x00800000u, mb = (ub & 0x007fffffu) | 0x00800000u;
    int distance = int(ua >> 23) - int(ub >> 23);
    uint rest = ma % mb;
    for (int left = distance; left > 0; left -= 8) {
        rest = (rest << uint(min(left, 8))) % mb;
    }
    uint f = floatBitsToUint(float(rest));  // exact; rest is in units of 2^-23 of the exponent of b
    int e = int(f >> 23) + int(ub >> 23) - 150;
    uint u = (f & 0x007fffffu) | (uint(e) << 23);
    u = e <= 0 ? 0u : u;
    u = rest == 0u ? 0u : u;
    u = distance < 0 ? ua : u;
    u |= floatBitsToUint(a) & 0x80000000u;
    u = ua >= 0x7f800000u ? NAN_BITS : u;
    u = ub > 0x7f800000u ? NAN_BITS : u;
    u = ub == 0u ? NAN_BITS : u;
    return uintBitsToFloat(u);
}
bool opposite(float a, float b) { return ((floatBitsToUint(a) ^ floatBitsToUint(b)) >> 31) != 0u; }
float remainder_(float a, float b) {
    float rest = fmod_(a, b), other = add(rest, b);
    uint zero = (floatBitsToUint(b) & 0x80000000u) | ZERO_BITS;
    float moved = opposite(rest, b) ? other : rest;
    uint u = floatBitsToUint(moved);
    return uintBitsToFloat(magnitude_bits(rest) == 0u ? zero : u);
}
float floor_divide_(float a, float b) {
    float rest = fmod_(a, b), plain = divide(a, b);
    float quotient = divide(sub(a, rest), b), below = sub(quotient, 1.0);
    bool differ = opposite(rest, b);
    differ = magnitude_bits(rest) == 0u ? false : differ;
    quotient = differ ? below : quotient;
    float whole = floor_(quotient), above = add(whole, 1.0);
    whole = is_less(0.5, sub(quotient, whole)) ? above : whole;
    uint u = floatBitsToUint(whole), zero = (floatBitsToUint(plain) & 0x80000000u) | ZERO_BITS;
    u = magnitude_bits(quotient) == 0u ? zero : u;
    uint limit = floatBitsToUint(plain);
    return uintBitsToFloat(magnitude_bits(b) == 0u ? limit : u);
}

// Of integers: 0 for a divisor of 0. GLSL leaves % open for negative operands, so magnitudes are divided.
uint magnitude_of(int x) {
    uint flip = uint(x >> 31);
    return (uint(x) ^ flip) - flip;
}
uint fmod_(uint a, uint b) { return a % max(b, 1u); }
int fmod_(int a, int b) {
    int flip = a >> 31;
    return (int(fmod_(magnitude_of(a), magnitude_of(b))) ^ flip) - flip;
}
uint remainder_(uint a, uint b) { return fmod_(a, b); }
int remainder_(int a, int b) {
    int rest = fmod_(a, b), other = rest + b;
    int moved = (rest ^ b) < 0 ? other : rest;
    return rest == 0 ? 0 : moved;
}
uint floor_divide_(uint a, uint b) {
    uint quotient = a / max(b, 1u);
    return b == 0u ? 0u : quotient;
}
int floor_divide_(int a, int b) {
    uint quotient = floor_divide_(magnitude_of(a), magnitude_of(b));
    uint above = quotient + (fmod_(a, b) == 0 ? 0u : 1u);
    int plain = int(quotient), negative = -int(above);
    int whole = (a ^ b) < 0 ? negative : plain;
    return b == 0 ? 0 : whole;
}
uint power_(uint a, uint b) {
    uint result = 1u;
    for (uint left = b; left != 0u; left >>= 1) {
        uint more = result * a;
        result = (left & 1u) != 0u ? more : result;
        a *= a;
    }
    return result;
}
int power_(int a, int b) {
    int whole = int(power_(uint(a), uint(b)));
    int inverse = magnitude_of(a) == 1u ? whole : 0;
    return b < 0 ? inverse : whole;
}

uint multiply_high(uint a, uint b) {
    uint high, low;
    umulExtended(a, b, high, low);
    return high;
}
