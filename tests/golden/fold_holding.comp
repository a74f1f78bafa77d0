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

#extension GL_EXT_control_flow_attributes : require
// Rows of 200 elements. Order of each reduction: lane j takes elements j, j + 128, ... in sequence,
// then a tree over the lanes (stride 64, 32, ... 1); lanes past the end hold the identity.
shared float lanes0_float[128];
shared uint lanes0_uint[128];

// A workgroup has 8 rows, each folded by 16 invocations; invocation `group` has lanes group, group + 16, ...
// The tree's strides of 16 and more meet inside an invocation, the others in shared memory.
void main() {
    uint place = gl_LocalInvocationID.x;
    uint group = place % 16u, line = place / 16u;
    for (uint first = gl_WorkGroupID.x * 8u; first < rows; first += gl_NumWorkGroups.x * 8u) {
        uint row = min(first + line, rows - 1u);  // spare ones fold the last row and store nothing
        bool live = first + line < rows;
        uint i0 = row;
        float held4[16];
        float held8[16];

        uint lane0[8];
        [[unroll]] for (uint u = 0u; u < 8u; ++u) lane0[u] = 0u;
        {
        [[unroll]] for (uint i = 0u; i < 16u; ++i) {
            uint u = i % 8u, e = group + u * 16u + i / 8u * 128u;
            if (e < 200u) {
            uint i1 = e;
            float t0 = in0[base_in0 + i0 * 200u + i1];
            float t2 = mul(t0, 2.0);
            float t3 = in1[base_in1 + i1];
            float t4 = add(t2, t3);
            held4[i] = t4;
            lane0[u] = max(lane0[u], order_of(t4));
            }
        }
        }
        [[unroll]] for (uint u = 0u; u < 4u; ++u) lane0[u] = max(lane0[u], lane0[u + 4u]);
        [[unroll]] for (uint u = 0u; u < 2u; ++u) lane0[u] = max(lane0[u], lane0[u + 2u]);
        [[unroll]] for (uint u = 0u; u < 1u; ++u) lane0[u] = max(lane0[u], lane0[u + 1u]);
        lanes0_uint[place] = lane0[0];
        barrier();
        for (uint stride = 8u; stride > 0u; stride >>= 1u) {
            if (group < stride) {
                lanes0_uint[place] = max(lanes0_uint[place], lanes0_uint[place + stride]);
            }
            barrier();
        }
        uint reduced0 = lanes0_uint[line * 16u];
        float reduced0_value = of_order(reduced0);
        barrier();
        float t6 = reduced0_value;
        float lane1[8];
        [[unroll]] for (uint u = 0u; u < 8u; ++u) lane1[u] = NEGATIVE_ZERO;
        {
        [[unroll]] for (uint i = 0u; i < 16u; ++i) {
            uint u = i % 8u, e = group + u * 16u + i / 8u * 128u;
            if (e < 200u) {
            uint i1 = e;
            float t7 = sub(held4[i], t6);
            float t8 = exp_(t7);
            held8[i] = t8;
            lane1[u] = add(lane1[u], t8);
            }
        }
        }
        [[unroll]] for (uint u = 0u; u < 4u; ++u) lane1[u] = add(lane1[u], lane1[u + 4u]);
        [[unroll]] for (uint u = 0u; u < 2u; ++u) lane1[u] = add(lane1[u], lane1[u + 2u]);
        [[unroll]] for (uint u = 0u; u < 1u; ++u) lane1[u] = add(lane1[u], lane1[u + 1u]);
        lanes0_float[place] = lane1[0];
        barrier();
        for (uint stride = 8u; stride > 0u; stride >>= 1u) {
            if (group < stride) {
                lanes0_float[place] = add(lanes0_float[place], lanes0_float[place + stride]);
            }
            barrier();
        }
        float reduced1 = lanes0_float[line * 16u];
        barrier();

        if (live) {
        [[unroll]] for (uint i = 0u; i < 16u; ++i) {
            uint u = i % 8u, e = group + u * 16u + i / 8u * 128u;
            if (e < 200u) {
            uint i1 = e;
            float t10 = divide(held8[i], reduced1);
            out0[base_out0 + i0 * 200u + i1] = t10;
            }
        }
        }
    }
}
