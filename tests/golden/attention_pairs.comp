#version 450
layout(local_size_x = 32, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { float in1[]; };
layout(std430, binding = 2) readonly buffer Buffer_in2 { float in2[]; };
layout(std430, binding = 3) readonly buffer Buffer_in3 { float in3[]; };
layout(std430, binding = 4) readonly buffer Buffer_in4 { float in4[]; };
layout(std430, binding = 5) readonly buffer Buffer_in5 { float in5[]; };
layout(std430, binding = 6) readonly buffer Buffer_in6 { float in6[]; };
layout(std430, binding = 7) readonly buffer Buffer_in7 { float in7[]; };
layout(std430, binding = 8) readonly buffer Buffer_in8 { uint in8[]; };
layout(std430, binding = 9) buffer Buffer_out0 { float out0[]; };
layout(std430, binding = 10) buffer Buffer_out1 { float out1[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_in1;
    uint base_in2;
    uint base_in3;
    uint base_in4;
    uint base_in5;
    uint base_in6;
    uint base_in7;
    uint base_in8;
    uint base_out0;
    uint base_out1;
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

#extension GL_EXT_control_flow_attributes : require
// Of every pair its dot product and g, the gradient of its score, +0 where it is not live, and 1 where it is. For gradients of
// what mods capture.
void main() {
    float none = uintBitsToFloat(0xff800000u), dead = ZERO;
    for (uint b = gl_WorkGroupID.z; b < batches; b += gl_NumWorkGroups.z)
    for (uint h = gl_WorkGroupID.y; h < 4u; h += gl_NumWorkGroups.y) {
        uint key_head = h / 2u;
        uint start_q = 0u;
        uint start_k = 0u;
        uint length_q = queries;
        uint length_k = keys;

        for (uint tile = gl_WorkGroupID.x; tile * 32u < queries; tile += gl_NumWorkGroups.x) {
            uint first_row = tile * 32u, last_row = min(first_row + 31u, length_q - 1u);
            uint key_end = length_q == 0u ? 0u : length_k, final_q = max(length_q, 1u), final_k = max(length_k, 1u);
            uint asked0 = first_row + 0u + gl_LocalInvocationID.x;
            uint own0 = min(asked0, final_q - 1u);
            float q0[20];
            {
                uint at = base_in0 + h * 20u + (start_q + own0) * 80u;
                [[dont_unroll]] for (uint c = 0u; c < 20u; ++c) q0[c] = in0[at + c * 1u];
            }
            float do0[6];
            {
                uint at = base_in3 + h * 6u + (start_q + own0) * 24u;
                [[dont_unroll]] for (uint c = 0u; c < 6u; ++c) do0[c] = in3[at + c * 1u];
            }
            float a0[128];
            float b0[128];
for (uint block = 0u; block < keys; block += 128u) {
                if (block < key_end)
                [[dont_unroll]] for (uint first = 0u; first < 128u; first += 4u) {
                        uint k_at0 = base_in1 + key_head * 20u + (start_k + min(block + first + 0u, final_k - 1u)) * 40u;
                        uint k_at1 = base_in1 + key_head * 20u + (start_k + min(block + first + 1u, final_k - 1u)) * 40u;
                        uint k_at2 = base_in1 + key_head * 20u + (start_k + min(block + first + 2u, final_k - 1u)) * 40u;
                        uint k_at3 = base_in1 + key_head * 20u + (start_k + min(block + first + 3u, final_k - 1u)) * 40u;
                        uint v_at0 = base_in2 + key_head * 6u + (start_k + min(block + first + 0u, final_k - 1u)) * 12u;
                        uint v_at1 = base_in2 + key_head * 6u + (start_k + min(block + first + 1u, final_k - 1u)) * 12u;
                        uint v_at2 = base_in2 + key_head * 6u + (start_k + min(block + first + 2u, final_k - 1u)) * 12u;
                        uint v_at3 = base_in2 + key_head * 6u + (start_k + min(block + first + 3u, final_k - 1u)) * 12u;
                        {
                            float d0_0 = ZERO, d0_1 = ZERO, d0_2 = ZERO, d0_3 = ZERO;
                            [[dont_unroll]] for (uint c = 0u; c < 20u; c += 1u) {
                                {
                                    float x0 = in1[k_at0 + c * 1u], x1 = in1[k_at1 + c * 1u], x2 = in1[k_at2 + c * 1u], x3 = in1[k_at3 + c * 1u];
                                    float y0 = q0[c];
                                    d0_0 = add(d0_0, mul(y0, x0));
                                    d0_1 = add(d0_1, mul(y0, x1));
                                    d0_2 = add(d0_2, mul(y0, x2));
                                    d0_3 = add(d0_3, mul(y0, x3));
                                }
                            }
                            a0[first + 0u] = d0_0; a0[first + 1u] = d0_1; a0[first + 2u] = d0_2; a0[first + 3u] = d0_3; 
                        }
                        {
                            float d0_0 = ZERO, d0_1 = ZERO, d0_2 = ZERO, d0_3 = ZERO;
                            [[dont_unroll]] for (uint c = 0u; c < 6u; c += 1u) {
                                {
                                    float x0 = in2[v_at0 + c * 1u], x1 = in2[v_at1 + c * 1u], x2 = in2[v_at2 + c * 1u], x3 = in2[v_at3 + c * 1u];
                                    float y0 = do0[c];
                                    d0_0 = add(d0_0, mul(y0, x0));
                                    d0_1 = add(d0_1, mul(y0, x1));
                                    d0_2 = add(d0_2, mul(y0, x2));
                                    d0_3 = add(d0_3, mul(y0, x3));
                                }
                            }
                            b0[first + 0u] = d0_0; b0[first + 1u] = d0_1; b0[first + 2u] = d0_2; b0[first + 3u] = d0_3; 
                        }
}
                bool whole = true;
                {
                    float peak = in4[base_in4 + h * 9u + (start_q + own0)], inverse = in5[base_in5 + h * 9u + (start_q + own0)], delta = in6[base_in6 + h + (start_q + own0) * 4u];
[[dont_unroll]] for (uint e = 0u; e < 128u; ++e) {
                        float raw = a0[e];
                        bool live = block + e < final_k;
                        {
                            uint i = own0, j = min(block + e, final_k - 1u);
                            bool t5 = (in8[base_in8 + h * 13u + j] != 0u);
                            int t6 = int(j);
                            int t7 = int(i);
                            int t9 = (t7 + 4);
                            bool t10 = (t6 <= t9);
                            bool t11 = (t5 && t10);
                            live = live && t11;
                        }
                        float dot = a0[e], dp = b0[e], dropped = ZERO, code = -1.0;
                        bool keep = true;
                        uint i = own0, j = min(block + e, final_k - 1u);
                        float t2 = mul(dot, 0.2236068);
                        float t3 = in7[base_in7 + h * 13u + j];
                        float t4 = add(t2, t3);
                        float s = t4;
                        live = live && !is_equal(s, none);
                        float p = mul(exp_(sub(s, peak)), inverse);
                        float g = mul(p, sub(dp, delta));
                        float t13 = mul(g, 0.2236068);
                        a0[e] = t13;
                        b0[e] = live ? p : code;
                        whole = whole && live && keep;
live = live && block + e < key_end && asked0 < length_q;
                        if (asked0 < queries && block + e < keys) {
                            uint at = ((b * 4u + h) * queries + asked0) * keys + block + e;
                            out1[base_out1 + at] = live ? 1.0 : dead;
                            out0[base_out0 + at] = live ? g : dead;
                        }
                    }
                }
            }
        }
    }
}
