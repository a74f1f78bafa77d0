#version 450
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) buffer Buffer_out0 { float out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_out0;
    uint rows;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

// natural logarithm
float log_(float x) {
    bool t0 = is_nan(x);
    float t1 = uintBitsToFloat(0x7f800000u);
    bool t2 = (bits_to_uint(x) == 2139095040u);
    bool t3 = is_within(x, 1u, 2139095040u);
    int t4 = bits_to_int(x);
    int t5 = (t4 - 1060439283);
    int t6 = shift_right(t5, 23);
    float t7 = to_float(t6);
    float t8 = mul(t7, 0.69314575);
    int t9 = shift_left(t6, 23);
    int t10 = (t4 - t9);
    float t11 = bits_to_float(t10);
    float t12 = sub(t11, 1.0);
    uint t13 = bits_to_uint(t12);
    uint t14 = (t13 & 0xfffff000u);
    float t15 = bits_to_float(t14);
    float t16 = mul(0.5, t15);
    float t17 = mul(t16, t15);
    float t18 = negate(t17);
    float t19 = add(t12, t18);
    float t20 = add(t8, t19);
    float t21 = sub(t20, t8);
    float t22 = sub(t19, t21);
    float t23 = sub(t19, t12);
    float t24 = sub(t18, t23);
    float t25 = mul(t12, t12);
    float t26 = mul(t25, t12);
    float t27 = mul(0.06749538, t12);
    float t28 = add(t27, -0.11670184);
    float t29 = mul(t28, t12);
    float t30 = add(t29, 0.11883472);
    float t31 = mul(t30, t12);
    float t32 = add(t31, -0.12406208);
    float t33 = mul(t32, t12);
    float t34 = add(t33, 0.14220363);
    float t35 = mul(t34, t12);
    float t36 = add(t35, -0.1666799);
    float t37 = mul(t36, t12);
    float t38 = add(t37, 0.20002072);
    float t39 = mul(t38, t12);
    float t40 = add(t39, -0.2500001);
    float t41 = mul(t40, t12);
    float t42 = add(t41, 0.33333313);
    float t43 = mul(t26, t42);
    float t44 = sub(t12, t15);
    float t45 = mul(0.5, t44);
    float t46 = add(t12, t15);
    float t47 = mul(t45, t46);
    float t48 = sub(t43, t47);
    float t49 = add(t24, t48);
    float t50 = mul(t7, 1.428606765330187e-06);
    float t51 = add(t49, t50);
    float t52 = add(t22, t51);
    float t53 = add(t20, t52);
    bool t54 = either((bits_to_uint(x) == 0u), (bits_to_uint(x) == 2147483648u));
    float t55 = uintBitsToFloat(0xff800000u);
    float t56 = uintBitsToFloat(0x7fc00000u);
    float t57 = (t54 ? t55 : t56);
    float t58 = (t3 ? t53 : t57);
    float t59 = (t2 ? x : t58);
    float t60 = (t0 ? x : t59);
    return t60;
}

// e^x
float exp_(float x) {
    bool t0 = is_nan(x);
    int t1 = bits_to_int(x);
    bool t2 = (1118925335 < t1);
    float t3 = uintBitsToFloat(0x7f800000u);
    uint t4 = bits_to_uint(x);
    bool t5 = (0xc2aeac4fu < t4);
    float t6 = mul(x, 1.442695);
    float t7 = add(t6, 12582912.0);
    float t8 = sub(t7, 12582912.0);
    float t9 = mul(t8, 0.69314575);
    float t10 = sub(x, t9);
    float t11 = mul(t8, 1.428606765330187e-06);
    float t12 = negate(t11);
    float t13 = add(t10, t12);
    float t14 = add(1.0, t13);
    float t15 = sub(t14, 1.0);
    float t16 = sub(t13, t15);
    float t17 = mul(t13, t13);
    float t18 = mul(0.00019739557, t13);
    float t19 = add(t18, 0.0013935097);
    float t20 = mul(t19, t13);
    float t21 = add(t20, 0.008333571);
    float t22 = mul(t21, t13);
    float t23 = add(t22, 0.041666463);
    float t24 = mul(t23, t13);
    float t25 = add(t24, 0.16666666);
    float t26 = mul(t25, t13);
    float t27 = add(t26, 0.5);
    float t28 = mul(t17, t27);
    float t29 = sub(t13, t10);
    float t30 = sub(t12, t29);
    float t31 = mul(t30, t14);
    float t32 = add(t28, t31);
    float t33 = add(t16, t32);
    float t34 = add(t14, t33);
    uint t35 = bits_to_uint(t34);
    uint t36 = bits_to_uint(t7);
    uint t37 = shift_left(t36, 23u);
    uint t38 = (t35 + t37);
    float t39 = bits_to_float(t38);
    float t40 = (t5 ? ZERO : t39);
    float t41 = (t2 ? t3 : t40);
    float t42 = (t0 ? x : t41);
    return t42;
}

// e**(part - top): what brings sums of e**(x - part) to the maximum top; 0 where part is -inf, a sum of nothing.
float softmax_rescale_(float x0, float x1) {
    float t0 = uintBitsToFloat(0xff800000u);
    bool t1 = (bits_to_uint(x0) == 4286578688u);
    float t2 = sub(x0, x1);
    float t3 = exp_(t2);
    float t4 = (t1 ? ZERO : t3);
    return t4;
}

// Rows of 200 elements. Order of each reduction: lane j takes elements j, j + 128, ... in sequence,
// then a tree over the lanes (stride 64, 32, ... 1); lanes past the end hold the identity.
struct logsumexp_ff { float top; float total; };
// m = max(a, b), s e**(a - m) + t e**(b - m), of which one factor is 1 (Milakov and Gimelshein 2018).
logsumexp_ff merge_logsumexp_ff(logsumexp_ff a, logsumexp_ff b) {
    float a_top = a.top;
    float a_total = a.total;
    float b_top = b.top;
    float b_total = b.total;
    float t0 = maximum(a_top, b_top);
    float t1 = uintBitsToFloat(0xff800000u);
    bool t2 = (bits_to_uint(a_top) == 4286578688u);
    bool t3 = is_less(a_top, b_top);
    bool t4 = (t2 || t3);
    float t5 = (t4 ? b_total : a_total);
    float t6 = (t4 ? a_total : b_total);
    float t7 = (t4 ? a_top : b_top);
    bool t8 = is_equal(t7, t0);
    float t9 = softmax_rescale_(t7, t0);
    float t10 = (t8 ? 1.0 : t9);
    float t11 = mul(t6, t10);
    float t12 = add(t5, t11);
    return logsumexp_ff(t0, t12);
}

// One invocation a row. Lanes are visited in bit-reversed order, so that the tree needs a stack of partial results
// only: level k of the stack waits for its sibling, as a carry does in a binary counter.
void main() {
    for (uint row = gl_GlobalInvocationID.x; row < rows; row += gl_NumWorkGroups.x * 128u) {
        uint i0 = row;

        logsumexp_ff waiting0[8];
        for (uint step = 0u; step < 128u; ++step) {
            logsumexp_ff partial0 = logsumexp_ff(uintBitsToFloat(0xff800000u), ZERO);
            for (uint e = bitfieldReverse(step) >> 25u; e < 200u; e += 128u) {
                uint i1 = e;
                float t0 = in0[base_in0 + i0 * 200u + i1];
                partial0 = merge_logsumexp_ff(partial0, logsumexp_ff(t0, 1.0));
            }
            uint level = 0u;
            for (uint carry = step; (carry & 1u) != 0u; carry >>= 1u) {
                partial0 = merge_logsumexp_ff(waiting0[level], partial0);
                ++level;
            }
            waiting0[level] = partial0;
        }
        logsumexp_ff reduced0 = waiting0[7];
        float reduced0_top = reduced0.top;
        float reduced0_total = reduced0.total;
        float t3 = log_(reduced0_total);
        float t5 = add(t3, reduced0_top);
        out0[base_out0 + i0] = t5;
    }
}
