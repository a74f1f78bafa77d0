#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { float in1[]; };
layout(std430, binding = 2) readonly buffer Buffer_in2 { float in2[]; };
layout(std430, binding = 3) buffer Buffer_out0 { float out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_in1;
    uint base_in2;
    uint base_out0;
    uint batches;
    uint queries;
    uint keys;
    uint tokens;
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

// e**(part - top): what brings sums of e**(x - part) to the maximum top; 0 where part is -inf, a sum of nothing.
float softmax_rescale_(float x0, float x1) {
    float t0 = uintBitsToFloat(0xff800000u);
    bool t1 = (bits_to_uint(x0) == 4286578688u);
    float t2 = sub(x0, x1);
    float t3 = exp_(t2);
    float t4 = (t1 ? ZERO : t3);
    return t4;
}

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

#extension GL_EXT_control_flow_attributes : require
// The blocks of attention_split made one, left to right. A workgroup has one query of a head: first an invocation is a
// block and finds the maximum of all up to it, then it is a column of the result.
shared float highest[64], sums[64], before_of[64], now_of[64];
shared uint state_of[64];  // 1: nothing before the block, 2: nothing in it

void main() {
    float none = uintBitsToFloat(0xff800000u), dead = ZERO;
    uint lane = gl_LocalInvocationID.x, blocks = (keys + 127u) / 128u, lines = batches * 4u * queries;
    for (uint line = gl_WorkGroupID.x; line < lines; line += gl_NumWorkGroups.x) {
        uint t = line % queries, h = line / queries % 4u, b = line / queries / 4u;
        float top0 = none, weight0 = ZERO;
        float o0 = ZERO;
        [[dont_unroll]] for (uint start = 0u; start < blocks; start += 64u) {
            uint n = min(start + lane, blocks - 1u);
            float peak = in0[base_in0 + h * 16u + n];
            peak = start + lane < blocks ? peak : none;
            barrier();
            highest[lane] = peak;
            sums[lane] = in1[base_in1 + h * 16u + n];
            barrier();
            [[dont_unroll]] for (uint stride = 1u; stride < 64u; stride <<= 1u) {
                float own = highest[lane], other = highest[max(lane, stride) - stride];
                float both = maximum(other, own);
                barrier();
                highest[lane] = lane < stride ? own : both;
                barrier();
            }
            float lower = maximum(top0, highest[max(lane, 1u) - 1u]);
            lower = lane == 0u ? top0 : lower;
            float higher = maximum(lower, peak);
            before_of[lane] = softmax_rescale_(lower, higher);
            now_of[lane] = softmax_rescale_(peak, higher);
            state_of[lane] = (is_equal(lower, none) ? 1u : 0u) | (is_equal(peak, none) ? 2u : 0u);
            top0 = maximum(top0, highest[63]);
            barrier();
            uint count = min(64u, blocks - start);
            [[dont_unroll]] for (uint from = 0u; from < count; from += 8u) {
                float part0[8];
                [[unroll]] for (uint u = 0u; u < 8u; ++u) {
                    uint n = start + min(from + u, count - 1u), c = min(lane, 63u);
                    part0[u] = in2[base_in2 + h * 1024u + n * 64u + c];
                }
                [[unroll]] for (uint u = 0u; u < 8u; ++u) {
                    float before0 = before_of[from + u], now0 = now_of[from + u];
                    bool fresh0 = (state_of[from + u] & 1u) != 0u, empty0 = (state_of[from + u] & 2u) != 0u;
                    {
                        float old = weight0, new = sums[from + u];
                        float both = add(mul(old, before0), mul(new, now0));
                        both = empty0 ? old : both;
                        weight0 = fresh0 ? new : both;
                    }
                    {
                        float old = o0, new = part0[u];
                        float both = add(mul(old, before0), mul(new, now0));
                        both = empty0 ? old : both;
                        o0 = fresh0 ? new : both;
                    }
                }
            }
        }
        bool unseen0 = is_equal(top0, none);
        {
            uint c = lane + 0u, at = base_out0 + ((b * queries + t) * 4u + h) * 64u + c;
            if (c < 64u) {
                float value = o0;
                value = divide(value, weight0);
                out0[at] = unseen0 ? dead : value;
}
        }
        if (lane == 0u) {
}
    }
}
