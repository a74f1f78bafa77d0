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
    bool t1 = is_less(88.72283, x);
    float t2 = uintBitsToFloat(0x7f800000u);
    bool t3 = is_less(x, -87.33654);
    float t4 = mul(x, 1.442695);
    float t5 = add(t4, 12582912.0);
    float t6 = sub(t5, 12582912.0);
    float t7 = mul(t6, 0.69314575);
    float t8 = sub(x, t7);
    float t9 = mul(t6, 1.428606765330187e-06);
    float t10 = negate(t9);
    float t11 = add(t8, t10);
    float t12 = add(1.0, t11);
    float t13 = sub(t12, 1.0);
    float t14 = sub(t11, t13);
    float t15 = mul(t11, t11);
    float t16 = mul(0.00019739557, t11);
    float t17 = add(t16, 0.0013935097);
    float t18 = mul(t17, t11);
    float t19 = add(t18, 0.008333571);
    float t20 = mul(t19, t11);
    float t21 = add(t20, 0.041666463);
    float t22 = mul(t21, t11);
    float t23 = add(t22, 0.16666666);
    float t24 = mul(t23, t11);
    float t25 = add(t24, 0.5);
    float t26 = mul(t15, t25);
    float t27 = sub(t11, t8);
    float t28 = sub(t10, t27);
    float t29 = mul(t28, t12);
    float t30 = add(t26, t29);
    float t31 = add(t14, t30);
    float t32 = add(t12, t31);
    uint t33 = bits_to_uint(t32);
    uint t34 = bits_to_uint(t5);
    uint t35 = shift_left(t34, 23u);
    uint t36 = (t33 + t35);
    float t37 = bits_to_float(t36);
    float t38 = (t3 ? ZERO : t37);
    float t39 = (t1 ? t2 : t38);
    float t40 = (t0 ? x : t39);
    return t40;
}

#extension GL_EXT_control_flow_attributes : require
// Rows of 200 elements. Order of each reduction: lane j takes elements j, j + 128, ... in sequence,
// then a tree over the lanes (stride 64, 32, ... 1); lanes past the end hold the identity.
shared float lanes_float[128];

// One workgroup a row, one invocation a lane.
void main() {
    uint lane = gl_LocalInvocationID.x;
    for (uint row = gl_WorkGroupID.x; row < rows; row += gl_NumWorkGroups.x) {
        uint i0 = row;
        float held4[2];
        float held8[2];

        float lane0 = uintBitsToFloat(0xff800000u);
        [[unroll]] for (uint step = 0u; step < 2u; ++step) {
            uint e = lane + step * 128u;
            if (e >= 200u) continue;
            uint i1 = e;
            float t0 = in0[base_in0 + i0 * 200u + i1];
            float t2 = mul(t0, 2.0);
            float t3 = in1[base_in1 + i1];
            float t4 = add(t2, t3);
            held4[step] = t4;
            lane0 = maximum(lane0, t4);
        }
        lanes_float[lane] = lane0;
        barrier();
        for (uint stride = 64u; stride > 0u; stride >>= 1u) {
            if (lane < stride) lanes_float[lane] = maximum(lanes_float[lane], lanes_float[lane + stride]);
            barrier();
        }
        float reduced0 = lanes_float[0];
        barrier();
        float t6 = reduced0;
        float lane1 = NEGATIVE_ZERO;
        [[unroll]] for (uint step = 0u; step < 2u; ++step) {
            uint e = lane + step * 128u;
            if (e >= 200u) continue;
            uint i1 = e;
            float t7 = sub(held4[step], t6);
            float t8 = exp_(t7);
            held8[step] = t8;
            lane1 = add(lane1, t8);
        }
        lanes_float[lane] = lane1;
        barrier();
        for (uint stride = 64u; stride > 0u; stride >>= 1u) {
            if (lane < stride) lanes_float[lane] = add(lanes_float[lane], lanes_float[lane + stride]);
            barrier();
        }
        float reduced1 = lanes_float[0];
        barrier();

        [[unroll]] for (uint step = 0u; step < 2u; ++step) {
            uint e = lane + step * 128u;
            if (e >= 200u) continue;
            uint i1 = e;
            float t10 = divide(held8[step], reduced1);
            out0[base_out0 + i0 * 200u + i1] = t10;
        }
    }
}
