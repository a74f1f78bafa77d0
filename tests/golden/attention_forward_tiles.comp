#version 450
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;

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

// e**(part - top): what brings sums of e**(x - part) to the maximum top; 0 where part is -inf, a sum of nothing.
float softmax_rescale_(float x0, float x1) {
    float t0 = uintBitsToFloat(0xff800000u);
    bool t1 = is_equal(x0, t0);
    float t2 = sub(x0, x1);
    float t3 = exp_(t2);
    float t4 = (t1 ? ZERO : t3);
    return t4;
}

// natural logarithm
float log_(float x) {
    bool t0 = is_nan(x);
    float t1 = uintBitsToFloat(0x7f800000u);
    bool t2 = is_equal(x, t1);
    bool t3 = is_less(ZERO, x);
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
    bool t54 = is_equal(x, ZERO);
    float t55 = uintBitsToFloat(0xff800000u);
    float t56 = uintBitsToFloat(0x7fc00000u);
    float t57 = (t54 ? t55 : t56);
    float t58 = (t3 ? t53 : t57);
    float t59 = (t2 ? x : t58);
    float t60 = (t0 ? x : t59);
    return t60;
}

#extension GL_EXT_control_flow_attributes : require
// A workgroup has 16 queries of one head; invocation n below 16 keeps the running softmax of query n.
shared float s[2064];
shared float own_stage[136], other_stage[1032];
shared float columns_stage[96];
shared uint dead_pairs;
shared float line[272], row_before[16], row_now[16];
shared uint row_state[16];  // 1: nothing before this block, 2: nothing in it

void main() {
    float none = uintBitsToFloat(0xff800000u), dead = ZERO;
    uint lid = gl_LocalInvocationID.x, tx = lid % 16u, ty = lid / 16u;
for (uint b = gl_WorkGroupID.z; b < batches; b += gl_NumWorkGroups.z)
    for (uint h = gl_WorkGroupID.y; h < 4u; h += gl_NumWorkGroups.y) {
        uint key_head = h / 2u;
        uint start_q = 0u;
        uint start_k = 0u;
        uint length_q = queries;
        uint length_k = keys;

        for (uint tile = gl_WorkGroupID.x; tile * 16u < length_q; tile += gl_NumWorkGroups.x) {
            uint first_row = tile * 16u, last_row = min(first_row + 15u, length_q - 1u);
            uint key_begin = 0u, key_end = length_k;
            key_end = uint(clamp(int(last_row) + 1 + clamp(4, -(1 << 30), 1 << 30), 0, int(length_k)));
            float o0_0 = ZERO;
            float o1_0 = ZERO;
float top0 = none, weight0 = ZERO;
            for (uint block = key_begin / 128u * 128u; block < key_end; block += 128u) {
                {
                    float d0_0 = ZERO, d0_1 = ZERO, d0_2 = ZERO, d0_3 = ZERO, d0_4 = ZERO, d0_5 = ZERO, d0_6 = ZERO, d0_7 = ZERO;
                    float d1_0 = ZERO, d1_1 = ZERO, d1_2 = ZERO, d1_3 = ZERO, d1_4 = ZERO, d1_5 = ZERO, d1_6 = ZERO, d1_7 = ZERO;
                    [[dont_unroll]] for (uint from = 0u; from < 20u; from += 8u) {
                        barrier();
                        for (uint x = lid; x < 128u; x += 128u) {
                            uint row = x / 8u, c = from + x % 8u;
                            uint at = base_in0 + h * 20u + (start_q + min(first_row + row, length_q - 1u)) * 80u;
                            if (c < 20u) own_stage[x % 8u * 17u + row] = in0[at + c * 1u];
                        }
                        for (uint x = lid; x < 1024u; x += 128u) {
                            uint row = x / 8u, c = from + x % 8u;
                            uint at = base_in1 + key_head * 20u + (start_k + min(block + row, length_k - 1u)) * 40u;
                            if (c < 20u) other_stage[x % 8u * 129u + row] = in1[at + c * 1u];
                        }
                        barrier();
                        uint count = min(8u, 20u - from);
                        for (uint c = 0u; c < count; ++c) {
                            float x0 = other_stage[c * 129u + tx + 0u], x1 = other_stage[c * 129u + tx + 16u], x2 = other_stage[c * 129u + tx + 32u], x3 = other_stage[c * 129u + tx + 48u], x4 = other_stage[c * 129u + tx + 64u], x5 = other_stage[c * 129u + tx + 80u], x6 = other_stage[c * 129u + tx + 96u], x7 = other_stage[c * 129u + tx + 112u];
                            float y0 = own_stage[c * 17u + ty + 0u];
                            d0_0 = add(d0_0, mul(y0, x0));
                            d0_1 = add(d0_1, mul(y0, x1));
                            d0_2 = add(d0_2, mul(y0, x2));
                            d0_3 = add(d0_3, mul(y0, x3));
                            d0_4 = add(d0_4, mul(y0, x4));
                            d0_5 = add(d0_5, mul(y0, x5));
                            d0_6 = add(d0_6, mul(y0, x6));
                            d0_7 = add(d0_7, mul(y0, x7));
                            float y1 = own_stage[c * 17u + ty + 8u];
                            d1_0 = add(d1_0, mul(y1, x0));
                            d1_1 = add(d1_1, mul(y1, x1));
                            d1_2 = add(d1_2, mul(y1, x2));
                            d1_3 = add(d1_3, mul(y1, x3));
                            d1_4 = add(d1_4, mul(y1, x4));
                            d1_5 = add(d1_5, mul(y1, x5));
                            d1_6 = add(d1_6, mul(y1, x6));
                            d1_7 = add(d1_7, mul(y1, x7));
                        }
                    }
                    s[(ty + 0u) * 129u + tx + 0u] = d0_0;
                    s[(ty + 0u) * 129u + tx + 16u] = d0_1;
                    s[(ty + 0u) * 129u + tx + 32u] = d0_2;
                    s[(ty + 0u) * 129u + tx + 48u] = d0_3;
                    s[(ty + 0u) * 129u + tx + 64u] = d0_4;
                    s[(ty + 0u) * 129u + tx + 80u] = d0_5;
                    s[(ty + 0u) * 129u + tx + 96u] = d0_6;
                    s[(ty + 0u) * 129u + tx + 112u] = d0_7;
                    s[(ty + 8u) * 129u + tx + 0u] = d1_0;
                    s[(ty + 8u) * 129u + tx + 16u] = d1_1;
                    s[(ty + 8u) * 129u + tx + 32u] = d1_2;
                    s[(ty + 8u) * 129u + tx + 48u] = d1_3;
                    s[(ty + 8u) * 129u + tx + 64u] = d1_4;
                    s[(ty + 8u) * 129u + tx + 80u] = d1_5;
                    s[(ty + 8u) * 129u + tx + 96u] = d1_6;
                    s[(ty + 8u) * 129u + tx + 112u] = d1_7;
                }
if (lid == 0u) dead_pairs = 0u;
                barrier();
                bool whole = true;
                [[dont_unroll]] for (uint row = ty; row < 16u; row += 8u) {
                    uint own = min(first_row + row, length_q - 1u);
                    float peak = none;
                    [[dont_unroll]] for (uint e = tx; e < 128u; e += 16u) {
                        bool live = block + e < length_k;
                        {
                            uint i = own, j = min(block + e, length_k - 1u);
                            bool t5 = (in4[base_in4 + h * 13u + j] != 0u);
                            int t6 = int(j);
                            int t7 = int(i);
                            int t9 = (t7 + 4);
                            bool t10 = (t6 <= t9);
                            bool t11 = (t5 && t10);
                            live = live && t11;
                        }
float dot = s[row * 129u + e];
                        uint i = own, j = min(block + e, length_k - 1u);
                        float t2 = mul(dot, 0.2236068);
                        float t3 = in3[base_in3 + h * 13u + j];
                        float t4 = add(t2, t3);
float score = t4;
                        score = live ? score : none;
                        s[row * 129u + e] = score;
                        peak = maximum(peak, score);
                        whole = whole && !is_equal(score, none);
                    }
                    line[row * 17u + tx] = peak;
                }
                if (!whole) dead_pairs = 1u;
                barrier();
                float peak0 = none;
                [[dont_unroll]] for (uint row = ty; row < 16u; row += 8u) {
                    float peak = none;
                    for (uint x = 0u; x < 16u; ++x) peak = maximum(peak, line[row * 17u + x]);
                    [[dont_unroll]] for (uint e = tx; e < 128u; e += 16u) {
                        float score = s[row * 129u + e], gone = -1.0;
                        float w = exp_(sub(score, peak));
                        s[row * 129u + e] = is_equal(score, none) ? gone : w;
                    }
                }
                if (lid < 16u) for (uint x = 0u; x < 16u; ++x) peak0 = maximum(peak0, line[lid * 17u + x]);
                barrier();
                // The tree over 128 lanes: strides 64, 32 and 16 meet in one invocation, 8 to 1 in the one that has the row.
                [[dont_unroll]] for (uint row = ty; row < 16u; row += 8u) {
                    float w0 = s[row * 129u + tx + 0u], w1 = s[row * 129u + tx + 16u], w2 = s[row * 129u + tx + 32u], w3 = s[row * 129u + tx + 48u], w4 = s[row * 129u + tx + 64u], w5 = s[row * 129u + tx + 80u], w6 = s[row * 129u + tx + 96u], w7 = s[row * 129u + tx + 112u];
                    w0 = is_less(w0, dead) ? dead : w0;
                    w1 = is_less(w1, dead) ? dead : w1;
                    w2 = is_less(w2, dead) ? dead : w2;
                    w3 = is_less(w3, dead) ? dead : w3;
                    w4 = is_less(w4, dead) ? dead : w4;
                    w5 = is_less(w5, dead) ? dead : w5;
                    w6 = is_less(w6, dead) ? dead : w6;
                    w7 = is_less(w7, dead) ? dead : w7;
                    line[row * 17u + tx] = add(add(add(w0, w4), add(w2, w6)), add(add(w1, w5), add(w3, w7)));
                }
                barrier();
                if (lid < 16u) {
                    for (uint stride = 8u; stride > 0u; stride >>= 1u)
                        for (uint x = 0u; x < stride; ++x) line[lid * 17u + x] = add(line[lid * 17u + x], line[lid * 17u + x + stride]);
                    float sum0 = line[lid * 17u];
                    bool empty0 = is_equal(peak0, none), fresh0 = is_equal(top0, none);
                    float higher0 = maximum(top0, peak0);
                    float before0 = softmax_rescale_(top0, higher0), now0 = softmax_rescale_(peak0, higher0);
                    {
                        float both = add(mul(weight0, before0), mul(sum0, now0));
                        both = empty0 ? weight0 : both;
                        weight0 = fresh0 ? sum0 : both;
                        top0 = higher0;
                    }
row_before[lid] = before0;
                    row_now[lid] = now0;
                    row_state[lid] = (fresh0 ? 1u : 0u) | (empty0 ? 2u : 0u);
                }
                barrier();
                float sum0_0 = ZERO;
                float sum1_0 = ZERO;
                [[dont_unroll]] for (uint from = 0u; from < 128u; from += 16u) {
                    barrier();
                    for (uint x = lid; x < 96u; x += 128u) {
                        uint c = x % 6u;
                        uint at = base_in2 + key_head * 6u + (start_k + min(block + from + x / 6u, length_k - 1u)) * 12u;
                        columns_stage[x] = in2[at + c * 1u];
                    }
                    barrier();
                    if (dead_pairs == 0u)
                        for (uint e = 0u; e < 16u; ++e) {
                            float x0 = columns_stage[e * 6u + min(tx + 0u, 5u)];
                            float w0 = s[(ty + 0u) * 129u + from + e];
                            sum0_0 = add(sum0_0, mul(w0, x0));
                            float w1 = s[(ty + 8u) * 129u + from + e];
                            sum1_0 = add(sum1_0, mul(w1, x0));
                        }
                    else
                        for (uint e = 0u; e < 16u; ++e) {
                            float x0 = columns_stage[e * 6u + min(tx + 0u, 5u)];
                            float w0 = s[(ty + 0u) * 129u + from + e];
                            bool live0 = !is_less(s[(ty + 0u) * 129u + from + e], dead);
                            { float more = add(sum0_0, mul(w0, x0)); sum0_0 = live0 ? more : sum0_0; }
                            float w1 = s[(ty + 8u) * 129u + from + e];
                            bool live1 = !is_less(s[(ty + 8u) * 129u + from + e], dead);
                            { float more = add(sum1_0, mul(w1, x0)); sum1_0 = live1 ? more : sum1_0; }
                        }
                }
                float before0 = row_before[ty + 0u], now0 = row_now[ty + 0u];
                bool fresh0 = (row_state[ty + 0u] & 1u) != 0u, empty0 = (row_state[ty + 0u] & 2u) != 0u;
                float before1 = row_before[ty + 8u], now1 = row_now[ty + 8u];
                bool fresh1 = (row_state[ty + 8u] & 1u) != 0u, empty1 = (row_state[ty + 8u] & 2u) != 0u;
                {
                    float old = o0_0, new = sum0_0;
                    float both = add(mul(old, before0), mul(new, now0));
                    both = empty0 ? old : both;
                    o0_0 = fresh0 ? new : both;
                }
                {
                    float old = o1_0, new = sum1_0;
                    float both = add(mul(old, before1), mul(new, now1));
                    both = empty1 ? old : both;
                    o1_0 = fresh1 ? new : both;
                }
                barrier();
            }
            if (lid < 16u) {
                bool unseen0 = is_equal(top0, none);
row_now[lid] = weight0;
                row_state[lid] = unseen0 ? 1u : 0u;
                if (first_row + lid < length_q) {
                    uint line = (b * 4u + h) * queries + first_row + lid;
                    out1[base_out1 + line] = top0;
                    out2[base_out2 + line] = weight0;
}
            }
            barrier();
            float weight_0 = row_now[ty + 0u], fade_0 = row_before[ty + 0u];
            bool unseen_0 = row_state[ty + 0u] != 0u;
            uint at0 = base_out0 + ((b * queries + first_row + ty + 0u) * 4u + h) * 6u;
            float weight_1 = row_now[ty + 8u], fade_1 = row_before[ty + 8u];
            bool unseen_1 = row_state[ty + 8u] != 0u;
            uint at1 = base_out0 + ((b * queries + first_row + ty + 8u) * 4u + h) * 6u;
            if (first_row + ty + 0u < length_q && tx + 0u < 6u) {
                float value = o0_0;
                value = divide(value, weight_0);
                out0[at0 + tx + 0u] = unseen_0 ? dead : value;
            }
            if (first_row + ty + 8u < length_q && tx + 0u < 6u) {
                float value = o1_0;
                value = divide(value, weight_1);
                out0[at1 + tx + 0u] = unseen_1 ? dead : value;
            }
            barrier();
        }
    }
}
