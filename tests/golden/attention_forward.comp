#version 450
layout(local_size_x = 32, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { float in1[]; };
layout(std430, binding = 2) readonly buffer Buffer_in2 { float in2[]; };
layout(std430, binding = 3) readonly buffer Buffer_in3 { float in3[]; };
layout(std430, binding = 4) readonly buffer Buffer_in4 { uint in4[]; };
layout(std430, binding = 5) buffer Buffer_out0 { float out0[]; };
layout(std430, binding = 6) buffer Buffer_out1 { float out1[]; };
layout(std430, binding = 7) buffer Buffer_out2 { float out2[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_in1;
    uint base_in2;
    uint base_in3;
    uint base_in4;
    uint base_out0;
    uint base_out1;
    uint base_out2;
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
// An invocation has 1 queries of one head. Per block of 128 keys: scores, their maximum, exponentials, a tree over
// them, the weighted sum of values in sequence; then the block is merged into what came before it.
void main() {
    float none = uintBitsToFloat(0xff800000u), dead = ZERO;
    for (uint b = gl_WorkGroupID.z; b < batches; b += gl_NumWorkGroups.z)
    for (uint h = gl_WorkGroupID.y; h < 4u; h += gl_NumWorkGroups.y) {
        uint key_head = h / 2u;
        uint start_q = 0u;
        uint start_k = 0u;
        uint length_q = queries;
        uint length_k = keys;

        for (uint tile = gl_WorkGroupID.x; tile * 32u < length_q; tile += gl_NumWorkGroups.x) {
            uint first_row = tile * 32u, last_row = min(first_row + 31u, length_q - 1u);
            uint key_begin = 0u, key_end = length_k;
            key_end = uint(clamp(int(last_row) + 1 + clamp(4, -(1 << 30), 1 << 30), 0, int(length_k)));
            uint asked0 = first_row + 0u + gl_LocalInvocationID.x;
            uint own0 = min(asked0, length_q - 1u);
            float q0[20];
            {
                uint at = base_in0 + h * 20u + (start_q + own0) * 80u;
                [[dont_unroll]] for (uint c = 0u; c < 20u; ++c) q0[c] = in0[at + c * 1u];
            }
            float o0[6];
            float s0[128];
float top0 = none, weight0 = ZERO;
            [[dont_unroll]] for (uint c = 0u; c < 6u; ++c) { o0[c] = ZERO; }
for (uint block = key_begin / 128u * 128u; block < key_end; block += 128u) {
                [[dont_unroll]] for (uint first = 0u; first < 128u; first += 4u) {
                    bool any = false;
                    [[dont_unroll]] for (uint e = first; e < first + 4u; ++e) {
                        {
                            bool live = block + e < length_k;
                            {
                                uint i = own0, j = min(block + e, length_k - 1u);
                                bool t5 = (in4[base_in4 + h * 13u + j] != 0u);
                                int t6 = int(j);
                                int t7 = int(i);
                                int t9 = (t7 + 4);
                                bool t10 = (t6 <= t9);
                                bool t11 = (t5 && t10);
                                live = live && t11;
                            }
                            any = any || live;
                        }
                    }
if (any) {
                        uint k_at0 = base_in1 + key_head * 20u + (start_k + min(block + first + 0u, length_k - 1u)) * 40u;
                        uint k_at1 = base_in1 + key_head * 20u + (start_k + min(block + first + 1u, length_k - 1u)) * 40u;
                        uint k_at2 = base_in1 + key_head * 20u + (start_k + min(block + first + 2u, length_k - 1u)) * 40u;
                        uint k_at3 = base_in1 + key_head * 20u + (start_k + min(block + first + 3u, length_k - 1u)) * 40u;
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
                            s0[first + 0u] = d0_0; s0[first + 1u] = d0_1; s0[first + 2u] = d0_2; s0[first + 3u] = d0_3; 
                        }
}
                }
                bool whole = true;
                float peak0 = none;
                [[dont_unroll]] for (uint e = 0u; e < 128u; ++e) {
                    {
                        bool live = block + e < length_k;
                        {
                            uint i = own0, j = min(block + e, length_k - 1u);
                            bool t5 = (in4[base_in4 + h * 13u + j] != 0u);
                            int t6 = int(j);
                            int t7 = int(i);
                            int t9 = (t7 + 4);
                            bool t10 = (t6 <= t9);
                            bool t11 = (t5 && t10);
                            live = live && t11;
                        }
float dot = s0[e];
                        uint i = own0, j = min(block + e, length_k - 1u);
                        float t2 = mul(dot, 0.2236068);
                        float t3 = in3[base_in3 + h * 13u + j];
                        float t4 = add(t2, t3);
float s = t4;
                        s = live ? s : none;
                        s0[e] = s;
                        peak0 = maximum(peak0, s);
                        whole = whole && !is_equal(s, none);
                    }
                }
                // Weights; -1 stands for a key that is not live.
                [[dont_unroll]] for (uint e = 0u; e < 128u; ++e) {
                    { float s = s0[e], gone = -1.0; float w = exp_(sub(s, peak0)); s0[e] = is_equal(s, none) ? gone : w; }
                }
                float sum0;
                {
                    float lane[64];
                    [[dont_unroll]] for (uint e = 0u; e < 64u; ++e) {
                        float x = s0[e], y = s0[e + 64u];
                        x = is_less(x, dead) ? dead : x;
                        y = is_less(y, dead) ? dead : y;
                        lane[e] = add(x, y);
                    }
                    [[dont_unroll]] for (uint stride = 32u; stride > 0u; stride >>= 1u)
                        [[dont_unroll]] for (uint e = 0u; e < stride; ++e) lane[e] = add(lane[e], lane[e + stride]);
                    sum0 = lane[0];
                }
                bool empty0 = is_equal(peak0, none), fresh0 = is_equal(top0, none);
                float higher0 = maximum(top0, peak0);
                float before0 = softmax_rescale_(top0, higher0), now0 = softmax_rescale_(peak0, higher0);
                {
                    float both = add(mul(weight0, before0), mul(sum0, now0));
                    both = empty0 ? weight0 : both;
                    weight0 = fresh0 ? sum0 : both;
                    top0 = higher0;
                }
                [[dont_unroll]] for (uint c = 0u; c < 6u; c += 2u) {
                    float sum0_0 = ZERO, sum0_1 = ZERO;
                    if (whole) {
                        [[dont_unroll]] for (uint first = 0u; first < 128u; first += 4u) {
                            uint v_at0 = base_in2 + key_head * 6u + (start_k + min(block + first + 0u, length_k - 1u)) * 12u;
                            uint v_at1 = base_in2 + key_head * 6u + (start_k + min(block + first + 1u, length_k - 1u)) * 12u;
                            uint v_at2 = base_in2 + key_head * 6u + (start_k + min(block + first + 2u, length_k - 1u)) * 12u;
                            uint v_at3 = base_in2 + key_head * 6u + (start_k + min(block + first + 3u, length_k - 1u)) * 12u;
                            float w0_0 = s0[first + 0u], w0_1 = s0[first + 1u], w0_2 = s0[first + 2u], w0_3 = s0[first + 3u];
                            {
                                float x0 = in2[v_at0 + (c + 0u) * 1u], x1 = in2[v_at1 + (c + 0u) * 1u], x2 = in2[v_at2 + (c + 0u) * 1u], x3 = in2[v_at3 + (c + 0u) * 1u];
                                sum0_0 = add(sum0_0, mul(w0_0, x0));
                                sum0_0 = add(sum0_0, mul(w0_1, x1));
                                sum0_0 = add(sum0_0, mul(w0_2, x2));
                                sum0_0 = add(sum0_0, mul(w0_3, x3));
                            }
                            {
                                float x0 = in2[v_at0 + (c + 1u) * 1u], x1 = in2[v_at1 + (c + 1u) * 1u], x2 = in2[v_at2 + (c + 1u) * 1u], x3 = in2[v_at3 + (c + 1u) * 1u];
                                sum0_1 = add(sum0_1, mul(w0_0, x0));
                                sum0_1 = add(sum0_1, mul(w0_1, x1));
                                sum0_1 = add(sum0_1, mul(w0_2, x2));
                                sum0_1 = add(sum0_1, mul(w0_3, x3));
                            }
                        }
                    } else {
                        [[dont_unroll]] for (uint first = 0u; first < 128u; first += 4u) {
                            uint v_at0 = base_in2 + key_head * 6u + (start_k + min(block + first + 0u, length_k - 1u)) * 12u;
                            uint v_at1 = base_in2 + key_head * 6u + (start_k + min(block + first + 1u, length_k - 1u)) * 12u;
                            uint v_at2 = base_in2 + key_head * 6u + (start_k + min(block + first + 2u, length_k - 1u)) * 12u;
                            uint v_at3 = base_in2 + key_head * 6u + (start_k + min(block + first + 3u, length_k - 1u)) * 12u;
                            float w0_0 = s0[first + 0u], w0_1 = s0[first + 1u], w0_2 = s0[first + 2u], w0_3 = s0[first + 3u];
                            bool live0_0 = !is_less(s0[first + 0u], dead), live0_1 = !is_less(s0[first + 1u], dead), live0_2 = !is_less(s0[first + 2u], dead), live0_3 = !is_less(s0[first + 3u], dead);
                            if (live0_0 || live0_1 || live0_2 || live0_3) {
                            {
                                float x0 = in2[v_at0 + (c + 0u) * 1u], x1 = in2[v_at1 + (c + 0u) * 1u], x2 = in2[v_at2 + (c + 0u) * 1u], x3 = in2[v_at3 + (c + 0u) * 1u];
                                { float more = add(sum0_0, mul(w0_0, x0)); sum0_0 = live0_0 ? more : sum0_0; }
                                { float more = add(sum0_0, mul(w0_1, x1)); sum0_0 = live0_1 ? more : sum0_0; }
                                { float more = add(sum0_0, mul(w0_2, x2)); sum0_0 = live0_2 ? more : sum0_0; }
                                { float more = add(sum0_0, mul(w0_3, x3)); sum0_0 = live0_3 ? more : sum0_0; }
                            }
                            {
                                float x0 = in2[v_at0 + (c + 1u) * 1u], x1 = in2[v_at1 + (c + 1u) * 1u], x2 = in2[v_at2 + (c + 1u) * 1u], x3 = in2[v_at3 + (c + 1u) * 1u];
                                { float more = add(sum0_1, mul(w0_0, x0)); sum0_1 = live0_0 ? more : sum0_1; }
                                { float more = add(sum0_1, mul(w0_1, x1)); sum0_1 = live0_1 ? more : sum0_1; }
                                { float more = add(sum0_1, mul(w0_2, x2)); sum0_1 = live0_2 ? more : sum0_1; }
                                { float more = add(sum0_1, mul(w0_3, x3)); sum0_1 = live0_3 ? more : sum0_1; }
                            }
                            }
                        }
                    }
                    {
                        float old = o0[c + 0u], new = sum0_0;
                        float both = add(mul(old, before0), mul(new, now0));
                        both = empty0 ? old : both;
                        o0[c + 0u] = fresh0 ? new : both;
                    }
                    {
                        float old = o0[c + 1u], new = sum0_1;
                        float both = add(mul(old, before0), mul(new, now0));
                        both = empty0 ? old : both;
                        o0[c + 1u] = fresh0 ? new : both;
                    }
                }
            }
            bool unseen0 = is_equal(top0, none);
if (asked0 < length_q) {
                uint at = base_out0 + ((b * queries + own0) * 4u + h) * 6u;
                [[dont_unroll]] for (uint c = 0u; c < 6u; ++c) {
                    float value = o0[c];
                    value = divide(value, weight0);
                    out0[at + c] = unseen0 ? dead : value;
}
                uint line = (b * 4u + h) * queries + own0;
                out1[base_out1 + line] = top0;
                out2[base_out2 + line] = weight0;
}
        }
    }
}
