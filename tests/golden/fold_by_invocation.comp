#version 450
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { float in1[]; };
layout(std430, binding = 2) buffer Buffer_out0 { float out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_in1;
    uint base_out0;
    uint rows;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

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

// Rows of 200 elements. Order of each reduction: lane j takes elements j, j + 128, ... in sequence,
// then a tree over the lanes (stride 64, 32, ... 1); lanes past the end hold the identity.
// One invocation a row. Lanes are visited in bit-reversed order, so that the tree needs a stack of partial results
// only: level k of the stack waits for its sibling, as a carry does in a binary counter.
void main() {
    for (uint row = gl_GlobalInvocationID.x; row < rows; row += gl_NumWorkGroups.x * 128u) {
        uint i0 = row;

        uint waiting0[8];
        for (uint step = 0u; step < 128u; ++step) {
            uint partial0 = 0u;
            for (uint e = bitfieldReverse(step) >> 25u; e < 200u; e += 128u) {
                uint i1 = e;
                float t0 = in0[base_in0 + i0 * 200u + i1];
                float t2 = mul(t0, 2.0);
                float t3 = in1[base_in1 + i1];
                float t4 = add(t2, t3);
                partial0 = max(partial0, order_of(t4));
            }
            uint level = 0u;
            for (uint carry = step; (carry & 1u) != 0u; carry >>= 1u) {
                partial0 = max(waiting0[level], partial0);
                ++level;
            }
            waiting0[level] = partial0;
        }
        uint reduced0 = waiting0[7];
        float reduced0_value = of_order(reduced0);
        float t6 = reduced0_value;
        float waiting1[8];
        for (uint step = 0u; step < 128u; ++step) {
            float partial1 = NEGATIVE_ZERO;
            for (uint e = bitfieldReverse(step) >> 25u; e < 200u; e += 128u) {
                uint i1 = e;
                float t0 = in0[base_in0 + i0 * 200u + i1];
                float t2 = mul(t0, 2.0);
                float t3 = in1[base_in1 + i1];
                float t4 = add(t2, t3);
                float t7 = sub(t4, t6);
                float t8 = exp_(t7);
                partial1 = add(partial1, t8);
            }
            uint level = 0u;
            for (uint carry = step; (carry & 1u) != 0u; carry >>= 1u) {
                partial1 = add(waiting1[level], partial1);
                ++level;
            }
            waiting1[level] = partial1;
        }
        float reduced1 = waiting1[7];

        for (uint e = 0u; e < 200u; ++e) {
            uint i1 = e;
            float t0 = in0[base_in0 + i0 * 200u + i1];
            float t2 = mul(t0, 2.0);
            float t3 = in1[base_in1 + i1];
            float t4 = add(t2, t3);
            float t7 = sub(t4, t6);
            float t8 = exp_(t7);
            float t10 = divide(t8, reduced1);
            out0[base_out0 + i0 * 200u + i1] = t10;
        }

    }
}
