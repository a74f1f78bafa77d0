#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

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
// A workgroup has 16 queries of one head; invocation n below 16 keeps the running softmax of query n.
const uint DEAD = 0xffffffffu;  // of a pair that has no part in a sum
// Vectors of four own rows: what is summed up of half a block, [other][row / 4]; or what invocations found, [tx][row / 4]; or
// two times 8 columns, [column][row / 4], and of the others [column][33: tx + 16 u is element u % 4 of u / 4 * 16 + tx].
shared uvec4 pairs[608];
shared vec4 row_stage[256];  // 16 of the others' rows: [other][column / 4]
shared uint last_dead;  // the last turn in which a pair was dead
shared vec4 row_peak[4], row_before[4], row_now[4];
shared uint row_state[16];  // 1: nothing before this block, 2: nothing in it

void main() {
    float none = uintBitsToFloat(0xff800000u), dead = ZERO;
    uint lid = gl_LocalInvocationID.x;
    // 32 neighbours have 8 x 4 places: the fewer different vectors they read, the better.
    uint tx = lid / 32u % 2u * 8u + lid % 8u, ty = lid / 64u * 4u + lid % 32u / 8u;
    uint turn = 0u;  // counts the blocks that the workgroup meets
    if (lid == 0u) last_dead = 0u;
    for (uint b = gl_WorkGroupID.z; b < batches; b += gl_NumWorkGroups.z)
    for (uint h = gl_WorkGroupID.y; h < 4u; h += gl_NumWorkGroups.y) {
        uint key_head = h / 2u;
        uint start_q = 0u;
        uint start_k = 0u;
        uint length_q = queries;
        uint length_k = keys;

        // The last rows of a causal mask have most to do: first.
        for (uint tile = gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x; tile * 16u < length_q; tile += gl_NumWorkGroups.x) {
            uint first_row = tile * 16u, last_row = min(first_row + 15u, length_q - 1u);
            uint own0 = min(first_row + ((ty) * 4u + 0u), length_q - 1u);
            uint own1 = min(first_row + ((ty) * 4u + 1u), length_q - 1u);
            uint own2 = min(first_row + ((ty) * 4u + 2u), length_q - 1u);
            uint own3 = min(first_row + ((ty) * 4u + 3u), length_q - 1u);
            uint key_begin = 0u, key_end = length_k;
            key_end = uint(clamp(int(last_row) + 1 + clamp(4, -(1 << 30), 1 << 30), 0, int(length_k)));
            float o0_0 = ZERO, o0_1 = ZERO, o0_2 = ZERO, o0_3 = ZERO;
            float o1_0 = ZERO, o1_1 = ZERO, o1_2 = ZERO, o1_3 = ZERO;
            float o2_0 = ZERO, o2_1 = ZERO, o2_2 = ZERO, o2_3 = ZERO;
            float o3_0 = ZERO, o3_1 = ZERO, o3_2 = ZERO, o3_3 = ZERO;
            float top0 = none, weight0 = ZERO;
            for (uint block = key_begin / 128u * 128u; block < key_end; block += 128u) {
                ++turn;
                uint stop = min(key_end - block, 128u), begin = min(max(key_begin, block) - block, stop - 1u) / 16u * 16u;
                float s0[8], s1[8], s2[8], s3[8];
                uint w0[8], w1[8], w2[8], w3[8];
                {
                    float next_own[2], next_other[16], past_own = ZERO, past_other = NEGATIVE_ZERO;
                    float d0_0 = ZERO, d0_1 = ZERO, d0_2 = ZERO, d0_3 = ZERO, d0_4 = ZERO, d0_5 = ZERO, d0_6 = ZERO, d0_7 = ZERO;
                    float d1_0 = ZERO, d1_1 = ZERO, d1_2 = ZERO, d1_3 = ZERO, d1_4 = ZERO, d1_5 = ZERO, d1_6 = ZERO, d1_7 = ZERO;
                    float d2_0 = ZERO, d2_1 = ZERO, d2_2 = ZERO, d2_3 = ZERO, d2_4 = ZERO, d2_5 = ZERO, d2_6 = ZERO, d2_7 = ZERO;
                    float d3_0 = ZERO, d3_1 = ZERO, d3_2 = ZERO, d3_3 = ZERO, d3_4 = ZERO, d3_5 = ZERO, d3_6 = ZERO, d3_7 = ZERO;
                    [[unroll]] for (uint u = 0u; u < 2u; ++u) {
                        uint c = 0u + lid % 8u, row = lid / 8u + u * 8u;
                        uint at = base_in0 + h * 20u + (start_q + min(first_row + row, length_q - 1u)) * 80u;
                        bool inside = c < 20u;
                        c = min(c, 19u);
                        float value = in0[at + c * 1u];
                        next_own[u] = inside ? value : past_own;
                    }
                    [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                        uint c = 0u + lid % 8u, row = lid / 32u + u % 8u * 2u + lid / 8u % 4u * 16u + u / 8u * 64u;
                        uint at = base_in1 + key_head * 20u + (start_k + min(block + row, length_k - 1u)) * 40u;
                        bool inside = c < 20u;
                        c = min(c, 19u);
                        float value = in1[at + c * 1u];
                        next_other[u] = inside ? value : past_other;
                    }
                    barrier();
                    [[dont_unroll]] for (uint from = 0u; from < 20u; from += 8u) {
                        uint own_stage = from % 16u * 5u, other_stage = 80u + from % 16u * 33u;
                        [[unroll]] for (uint u = 0u; u < 2u; ++u) {
                            uint row = lid / 8u + u * 8u;
                            pairs[own_stage + lid % 8u * 5u + row / 4u][row % 4u] = floatBitsToUint(next_own[u]);
                        }
                        [[unroll]] for (uint u = 0u; u < 16u; ++u)
                            pairs[other_stage + lid % 8u * 33u + u / 8u * 16u + lid / 32u + u % 8u * 2u][lid / 8u % 4u] = floatBitsToUint(next_other[u]);
                        barrier();
                        if (from + 8u < 20u) {
                            [[unroll]] for (uint u = 0u; u < 2u; ++u) {
                                uint c = from + 8u + lid % 8u, row = lid / 8u + u * 8u;
                                uint at = base_in0 + h * 20u + (start_q + min(first_row + row, length_q - 1u)) * 80u;
                                bool inside = c < 20u;
                                c = min(c, 19u);
                                float value = in0[at + c * 1u];
                                next_own[u] = inside ? value : past_own;
                            }
                            [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                                uint c = from + 8u + lid % 8u, row = lid / 32u + u % 8u * 2u + lid / 8u % 4u * 16u + u / 8u * 64u;
                                uint at = base_in1 + key_head * 20u + (start_k + min(block + row, length_k - 1u)) * 40u;
                                bool inside = c < 20u;
                                c = min(c, 19u);
                                float value = in1[at + c * 1u];
                                next_other[u] = inside ? value : past_other;
                            }
                        }
                        [[unroll]] for (uint c = 0u; c < 8u; ++c) {
                            vec4 y0 = uintBitsToFloat(pairs[own_stage + c * 5u + ty]);
                            vec4 x0 = uintBitsToFloat(pairs[other_stage + c * 33u + tx]), x1 = uintBitsToFloat(pairs[other_stage + c * 33u + 16u + tx]);
                            d0_0 = add(d0_0, mul(y0[0], x0[0]));
                            d0_1 = add(d0_1, mul(y0[0], x0[1]));
                            d0_2 = add(d0_2, mul(y0[0], x0[2]));
                            d0_3 = add(d0_3, mul(y0[0], x0[3]));
                            d0_4 = add(d0_4, mul(y0[0], x1[0]));
                            d0_5 = add(d0_5, mul(y0[0], x1[1]));
                            d0_6 = add(d0_6, mul(y0[0], x1[2]));
                            d0_7 = add(d0_7, mul(y0[0], x1[3]));
                            d1_0 = add(d1_0, mul(y0[1], x0[0]));
                            d1_1 = add(d1_1, mul(y0[1], x0[1]));
                            d1_2 = add(d1_2, mul(y0[1], x0[2]));
                            d1_3 = add(d1_3, mul(y0[1], x0[3]));
                            d1_4 = add(d1_4, mul(y0[1], x1[0]));
                            d1_5 = add(d1_5, mul(y0[1], x1[1]));
                            d1_6 = add(d1_6, mul(y0[1], x1[2]));
                            d1_7 = add(d1_7, mul(y0[1], x1[3]));
                            d2_0 = add(d2_0, mul(y0[2], x0[0]));
                            d2_1 = add(d2_1, mul(y0[2], x0[1]));
                            d2_2 = add(d2_2, mul(y0[2], x0[2]));
                            d2_3 = add(d2_3, mul(y0[2], x0[3]));
                            d2_4 = add(d2_4, mul(y0[2], x1[0]));
                            d2_5 = add(d2_5, mul(y0[2], x1[1]));
                            d2_6 = add(d2_6, mul(y0[2], x1[2]));
                            d2_7 = add(d2_7, mul(y0[2], x1[3]));
                            d3_0 = add(d3_0, mul(y0[3], x0[0]));
                            d3_1 = add(d3_1, mul(y0[3], x0[1]));
                            d3_2 = add(d3_2, mul(y0[3], x0[2]));
                            d3_3 = add(d3_3, mul(y0[3], x0[3]));
                            d3_4 = add(d3_4, mul(y0[3], x1[0]));
                            d3_5 = add(d3_5, mul(y0[3], x1[1]));
                            d3_6 = add(d3_6, mul(y0[3], x1[2]));
                            d3_7 = add(d3_7, mul(y0[3], x1[3]));
                        }
                    }
                    s0[0] = d0_0; s0[1] = d0_1; s0[2] = d0_2; s0[3] = d0_3; s0[4] = d0_4; s0[5] = d0_5; s0[6] = d0_6; s0[7] = d0_7;
                    s1[0] = d1_0; s1[1] = d1_1; s1[2] = d1_2; s1[3] = d1_3; s1[4] = d1_4; s1[5] = d1_5; s1[6] = d1_6; s1[7] = d1_7;
                    s2[0] = d2_0; s2[1] = d2_1; s2[2] = d2_2; s2[3] = d2_3; s2[4] = d2_4; s2[5] = d2_5; s2[6] = d2_6; s2[7] = d2_7;
                    s3[0] = d3_0; s3[1] = d3_1; s3[2] = d3_2; s3[3] = d3_3; s3[4] = d3_4; s3[5] = d3_5; s3[6] = d3_6; s3[7] = d3_7;
                }
                // Scores, and their maxima by the device's own rule where that has no choice: all finite, and the result not 0.
                float peak0 = none, mass0 = ZERO, peak1 = none, mass1 = ZERO, peak2 = none, mass2 = ZERO, peak3 = none, mass3 = ZERO;
                
                [[unroll]] for (uint u = 0u; u < 8u; ++u) {
                    uint e = tx + 16u * u;
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
                        float dot = s0[u];
                        uint i = own0, j = min(block + e, length_k - 1u);
                        float t2 = mul(dot, 0.2236068);
                        float t3 = in3[base_in3 + h * 13u + j];
                        float t4 = add(t2, t3);
                        float score = t4;
                        score = live ? score : none;
                        peak0 = max(peak0, score);
                        mass0 = add(mass0, abs(score));
                        s0[u] = score;
                    }
                    {
                        bool live = block + e < length_k;
                        {
                            uint i = own1, j = min(block + e, length_k - 1u);
                            bool t5 = (in4[base_in4 + h * 13u + j] != 0u);
                            int t6 = int(j);
                            int t7 = int(i);
                            int t9 = (t7 + 4);
                            bool t10 = (t6 <= t9);
                            bool t11 = (t5 && t10);
                            live = live && t11;
                        }
                        float dot = s1[u];
                        uint i = own1, j = min(block + e, length_k - 1u);
                        float t2 = mul(dot, 0.2236068);
                        float t3 = in3[base_in3 + h * 13u + j];
                        float t4 = add(t2, t3);
                        float score = t4;
                        score = live ? score : none;
                        peak1 = max(peak1, score);
                        mass1 = add(mass1, abs(score));
                        s1[u] = score;
                    }
                    {
                        bool live = block + e < length_k;
                        {
                            uint i = own2, j = min(block + e, length_k - 1u);
                            bool t5 = (in4[base_in4 + h * 13u + j] != 0u);
                            int t6 = int(j);
                            int t7 = int(i);
                            int t9 = (t7 + 4);
                            bool t10 = (t6 <= t9);
                            bool t11 = (t5 && t10);
                            live = live && t11;
                        }
                        float dot = s2[u];
                        uint i = own2, j = min(block + e, length_k - 1u);
                        float t2 = mul(dot, 0.2236068);
                        float t3 = in3[base_in3 + h * 13u + j];
                        float t4 = add(t2, t3);
                        float score = t4;
                        score = live ? score : none;
                        peak2 = max(peak2, score);
                        mass2 = add(mass2, abs(score));
                        s2[u] = score;
                    }
                    {
                        bool live = block + e < length_k;
                        {
                            uint i = own3, j = min(block + e, length_k - 1u);
                            bool t5 = (in4[base_in4 + h * 13u + j] != 0u);
                            int t6 = int(j);
                            int t7 = int(i);
                            int t9 = (t7 + 4);
                            bool t10 = (t6 <= t9);
                            bool t11 = (t5 && t10);
                            live = live && t11;
                        }
                        float dot = s3[u];
                        uint i = own3, j = min(block + e, length_k - 1u);
                        float t2 = mul(dot, 0.2236068);
                        float t3 = in3[base_in3 + h * 13u + j];
                        float t4 = add(t2, t3);
                        float score = t4;
                        score = live ? score : none;
                        peak3 = max(peak3, score);
                        mass3 = add(mass3, abs(score));
                        s3[u] = score;
                    }
                }
                float mass = add(add(add(mass0, mass1), mass2), mass3);
                if (!is_finite(mass)) last_dead = turn;
                if (!is_finite(mass) || magnitude_bits(peak0) == 0u || magnitude_bits(peak1) == 0u || magnitude_bits(peak2) == 0u || magnitude_bits(peak3) == 0u) {
                    peak0 = none; peak1 = none; peak2 = none; peak3 = none; 
                    [[unroll]] for (uint u = 0u; u < 8u; ++u) {
                        peak0 = maximum(peak0, s0[u]);
                        peak1 = maximum(peak1, s1[u]);
                        peak2 = maximum(peak2, s2[u]);
                        peak3 = maximum(peak3, s3[u]);
                    }
                }
                barrier();
                pairs[tx * 5u + ty] = floatBitsToUint(vec4(peak0, peak1, peak2, peak3));
                barrier();
                {
                    float peak0 = none;
                    if (lid < 16u) {
                        for (uint x = 0u; x < 16u; ++x) peak0 = maximum(peak0, uintBitsToFloat(pairs[x * 5u + lid / 4u][lid % 4u]));
                        row_peak[lid / 4u][lid % 4u] = peak0;
                    }
                    barrier();
                    vec4 peaks0 = row_peak[ty];
                    [[unroll]] for (uint u = 0u; u < 8u; ++u) {
                        w0[u] = floatBitsToUint(exp_(sub(s0[u], peaks0[0])));
                        w1[u] = floatBitsToUint(exp_(sub(s1[u], peaks0[1])));
                        w2[u] = floatBitsToUint(exp_(sub(s2[u], peaks0[2])));
                        w3[u] = floatBitsToUint(exp_(sub(s3[u], peaks0[3])));
                    }
                    if (last_dead == turn) {
                        uint nothing = floatBitsToUint(dead);
                        [[unroll]] for (uint u = 0u; u < 8u; ++u) {
                            w0[u] = floatBitsToUint(s0[u]) == 0xff800000u ? nothing : w0[u];
                            w1[u] = floatBitsToUint(s1[u]) == 0xff800000u ? nothing : w1[u];
                            w2[u] = floatBitsToUint(s2[u]) == 0xff800000u ? nothing : w2[u];
                            w3[u] = floatBitsToUint(s3[u]) == 0xff800000u ? nothing : w3[u];
                        }
                    }
                    // The tree over 128 lanes: strides 64, 32 and 16 meet in one invocation, 8 to 1 in the one that has the row.
                    float lane0;
                    {
                        float x0 = uintBitsToFloat(w0[0]), x1 = uintBitsToFloat(w0[1]), x2 = uintBitsToFloat(w0[2]), x3 = uintBitsToFloat(w0[3]), x4 = uintBitsToFloat(w0[4]), x5 = uintBitsToFloat(w0[5]), x6 = uintBitsToFloat(w0[6]), x7 = uintBitsToFloat(w0[7]);
                        lane0 = add(add(add(x0, x4), add(x2, x6)), add(add(x1, x5), add(x3, x7)));
                    }
                    float lane1;
                    {
                        float x0 = uintBitsToFloat(w1[0]), x1 = uintBitsToFloat(w1[1]), x2 = uintBitsToFloat(w1[2]), x3 = uintBitsToFloat(w1[3]), x4 = uintBitsToFloat(w1[4]), x5 = uintBitsToFloat(w1[5]), x6 = uintBitsToFloat(w1[6]), x7 = uintBitsToFloat(w1[7]);
                        lane1 = add(add(add(x0, x4), add(x2, x6)), add(add(x1, x5), add(x3, x7)));
                    }
                    float lane2;
                    {
                        float x0 = uintBitsToFloat(w2[0]), x1 = uintBitsToFloat(w2[1]), x2 = uintBitsToFloat(w2[2]), x3 = uintBitsToFloat(w2[3]), x4 = uintBitsToFloat(w2[4]), x5 = uintBitsToFloat(w2[5]), x6 = uintBitsToFloat(w2[6]), x7 = uintBitsToFloat(w2[7]);
                        lane2 = add(add(add(x0, x4), add(x2, x6)), add(add(x1, x5), add(x3, x7)));
                    }
                    float lane3;
                    {
                        float x0 = uintBitsToFloat(w3[0]), x1 = uintBitsToFloat(w3[1]), x2 = uintBitsToFloat(w3[2]), x3 = uintBitsToFloat(w3[3]), x4 = uintBitsToFloat(w3[4]), x5 = uintBitsToFloat(w3[5]), x6 = uintBitsToFloat(w3[6]), x7 = uintBitsToFloat(w3[7]);
                        lane3 = add(add(add(x0, x4), add(x2, x6)), add(add(x1, x5), add(x3, x7)));
                    }
                    pairs[tx * 5u + ty] = floatBitsToUint(vec4(lane0, lane1, lane2, lane3));
                    if (last_dead == turn) {
                        [[unroll]] for (uint u = 0u; u < 8u; ++u) {
                            w0[u] = floatBitsToUint(s0[u]) == 0xff800000u ? DEAD : min(w0[u], DEAD - 1u);
                            w1[u] = floatBitsToUint(s1[u]) == 0xff800000u ? DEAD : min(w1[u], DEAD - 1u);
                            w2[u] = floatBitsToUint(s2[u]) == 0xff800000u ? DEAD : min(w2[u], DEAD - 1u);
                            w3[u] = floatBitsToUint(s3[u]) == 0xff800000u ? DEAD : min(w3[u], DEAD - 1u);
                        }
                    }
                    barrier();
                    if (lid < 16u) {
                        float x0 = uintBitsToFloat(pairs[0u * 5u + lid / 4u][lid % 4u]), x1 = uintBitsToFloat(pairs[1u * 5u + lid / 4u][lid % 4u]), x2 = uintBitsToFloat(pairs[2u * 5u + lid / 4u][lid % 4u]), x3 = uintBitsToFloat(pairs[3u * 5u + lid / 4u][lid % 4u]), x4 = uintBitsToFloat(pairs[4u * 5u + lid / 4u][lid % 4u]), x5 = uintBitsToFloat(pairs[5u * 5u + lid / 4u][lid % 4u]), x6 = uintBitsToFloat(pairs[6u * 5u + lid / 4u][lid % 4u]), x7 = uintBitsToFloat(pairs[7u * 5u + lid / 4u][lid % 4u]), x8 = uintBitsToFloat(pairs[8u * 5u + lid / 4u][lid % 4u]), x9 = uintBitsToFloat(pairs[9u * 5u + lid / 4u][lid % 4u]), x10 = uintBitsToFloat(pairs[10u * 5u + lid / 4u][lid % 4u]), x11 = uintBitsToFloat(pairs[11u * 5u + lid / 4u][lid % 4u]), x12 = uintBitsToFloat(pairs[12u * 5u + lid / 4u][lid % 4u]), x13 = uintBitsToFloat(pairs[13u * 5u + lid / 4u][lid % 4u]), x14 = uintBitsToFloat(pairs[14u * 5u + lid / 4u][lid % 4u]), x15 = uintBitsToFloat(pairs[15u * 5u + lid / 4u][lid % 4u]);
                        x0 = add(x0, x8); x1 = add(x1, x9); x2 = add(x2, x10); x3 = add(x3, x11); x4 = add(x4, x12); x5 = add(x5, x13); x6 = add(x6, x14); x7 = add(x7, x15);
                        x0 = add(x0, x4); x1 = add(x1, x5); x2 = add(x2, x6); x3 = add(x3, x7);
                        x0 = add(x0, x2); x1 = add(x1, x3);
                        x0 = add(x0, x1);
                        float sum0 = x0;
                        bool empty0 = is_equal(peak0, none), fresh0 = is_equal(top0, none);
                        float higher0 = maximum(top0, peak0);
                        float before0 = softmax_rescale_(top0, higher0), now0 = softmax_rescale_(peak0, higher0);
                        {
                            float both = add(mul(weight0, before0), mul(sum0, now0));
                            both = empty0 ? weight0 : both;
                            weight0 = fresh0 ? sum0 : both;
                            top0 = higher0;
                        }
                        row_before[lid / 4u][lid % 4u] = before0;
                        row_now[lid / 4u][lid % 4u] = now0;
                        row_state[lid] = (fresh0 ? 1u : 0u) | (empty0 ? 2u : 0u);
                    }
                }
                {
                    float sum0_0 = ZERO, sum0_1 = ZERO, sum0_2 = ZERO, sum0_3 = ZERO;
                    float sum1_0 = ZERO, sum1_1 = ZERO, sum1_2 = ZERO, sum1_3 = ZERO;
                    float sum2_0 = ZERO, sum2_1 = ZERO, sum2_2 = ZERO, sum2_3 = ZERO;
                    float sum3_0 = ZERO, sum3_1 = ZERO, sum3_2 = ZERO, sum3_3 = ZERO;
                    float next_rows[16];
                    [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                        uint c = min(0u + lid % 64u, 5u);
                        uint at = base_in2 + key_head * 6u + (start_k + min(block + begin + lid / 64u + u * 1u, length_k - 1u)) * 12u;
                        next_rows[u] = in2[at + c * 1u];
                    }
                    [[dont_unroll]] for (uint from = begin; from < stop; from += 16u) {
                        barrier();
                        if (from == begin || from == 64u) {  // the next half of the block
                            bool upper = from >= 64u;
                            pairs[(tx + 0u) * 5u + ty] = uvec4(upper ? w0[4] : w0[0], upper ? w1[4] : w1[0], upper ? w2[4] : w2[0], upper ? w3[4] : w3[0]);
                            pairs[(tx + 16u) * 5u + ty] = uvec4(upper ? w0[5] : w0[1], upper ? w1[5] : w1[1], upper ? w2[5] : w2[1], upper ? w3[5] : w3[1]);
                            pairs[(tx + 32u) * 5u + ty] = uvec4(upper ? w0[6] : w0[2], upper ? w1[6] : w1[2], upper ? w2[6] : w2[2], upper ? w3[6] : w3[2]);
                            pairs[(tx + 48u) * 5u + ty] = uvec4(upper ? w0[7] : w0[3], upper ? w1[7] : w1[3], upper ? w2[7] : w2[3], upper ? w3[7] : w3[3]);
                        }
                        [[unroll]] for (uint u = 0u; u < 16u; ++u) row_stage[lid / 64u * 16u + u * 16u + lid % 64u / 4u][lid % 4u] = next_rows[u];
                        barrier();
                        if (from + 16u < stop) {
                            [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                                uint c = min(0u + lid % 64u, 5u);
                                uint at = base_in2 + key_head * 6u + (start_k + min(block + from + 16u + lid / 64u + u * 1u, length_k - 1u)) * 12u;
                                next_rows[u] = in2[at + c * 1u];
                            }
                        }
                        if (last_dead != turn)
                        [[unroll]] for (uint e = 0u; e < 16u; ++e) {
                            uvec4 words0 = pairs[(from % 64u + e) * 5u + ty];
                            vec4 x = row_stage[e * 16u + tx];
                            float w0 = uintBitsToFloat(words0[0]);
                            sum0_0 = add(sum0_0, mul(w0, x[0]));
                            sum0_1 = add(sum0_1, mul(w0, x[1]));
                            sum0_2 = add(sum0_2, mul(w0, x[2]));
                            sum0_3 = add(sum0_3, mul(w0, x[3]));
                            float w1 = uintBitsToFloat(words0[1]);
                            sum1_0 = add(sum1_0, mul(w1, x[0]));
                            sum1_1 = add(sum1_1, mul(w1, x[1]));
                            sum1_2 = add(sum1_2, mul(w1, x[2]));
                            sum1_3 = add(sum1_3, mul(w1, x[3]));
                            float w2 = uintBitsToFloat(words0[2]);
                            sum2_0 = add(sum2_0, mul(w2, x[0]));
                            sum2_1 = add(sum2_1, mul(w2, x[1]));
                            sum2_2 = add(sum2_2, mul(w2, x[2]));
                            sum2_3 = add(sum2_3, mul(w2, x[3]));
                            float w3 = uintBitsToFloat(words0[3]);
                            sum3_0 = add(sum3_0, mul(w3, x[0]));
                            sum3_1 = add(sum3_1, mul(w3, x[1]));
                            sum3_2 = add(sum3_2, mul(w3, x[2]));
                            sum3_3 = add(sum3_3, mul(w3, x[3]));
                        }
                        else
                        [[dont_unroll]] for (uint e = 0u; e < 16u; ++e) {
                            uvec4 words0 = pairs[(from % 64u + e) * 5u + ty];
                            vec4 x = row_stage[e * 16u + tx];
                            float w0 = uintBitsToFloat(words0[0]);
                            bool live0 = words0[0] != DEAD;
                            { float more = add(sum0_0, mul(w0, x[0])); sum0_0 = live0 ? more : sum0_0; }
                            { float more = add(sum0_1, mul(w0, x[1])); sum0_1 = live0 ? more : sum0_1; }
                            { float more = add(sum0_2, mul(w0, x[2])); sum0_2 = live0 ? more : sum0_2; }
                            { float more = add(sum0_3, mul(w0, x[3])); sum0_3 = live0 ? more : sum0_3; }
                            float w1 = uintBitsToFloat(words0[1]);
                            bool live1 = words0[1] != DEAD;
                            { float more = add(sum1_0, mul(w1, x[0])); sum1_0 = live1 ? more : sum1_0; }
                            { float more = add(sum1_1, mul(w1, x[1])); sum1_1 = live1 ? more : sum1_1; }
                            { float more = add(sum1_2, mul(w1, x[2])); sum1_2 = live1 ? more : sum1_2; }
                            { float more = add(sum1_3, mul(w1, x[3])); sum1_3 = live1 ? more : sum1_3; }
                            float w2 = uintBitsToFloat(words0[2]);
                            bool live2 = words0[2] != DEAD;
                            { float more = add(sum2_0, mul(w2, x[0])); sum2_0 = live2 ? more : sum2_0; }
                            { float more = add(sum2_1, mul(w2, x[1])); sum2_1 = live2 ? more : sum2_1; }
                            { float more = add(sum2_2, mul(w2, x[2])); sum2_2 = live2 ? more : sum2_2; }
                            { float more = add(sum2_3, mul(w2, x[3])); sum2_3 = live2 ? more : sum2_3; }
                            float w3 = uintBitsToFloat(words0[3]);
                            bool live3 = words0[3] != DEAD;
                            { float more = add(sum3_0, mul(w3, x[0])); sum3_0 = live3 ? more : sum3_0; }
                            { float more = add(sum3_1, mul(w3, x[1])); sum3_1 = live3 ? more : sum3_1; }
                            { float more = add(sum3_2, mul(w3, x[2])); sum3_2 = live3 ? more : sum3_2; }
                            { float more = add(sum3_3, mul(w3, x[3])); sum3_3 = live3 ? more : sum3_3; }
                        }
                    }
                    vec4 before_0 = row_before[ty], now_0 = row_now[ty];
                    {
                        float before0 = before_0[0], now0 = now_0[0];
                        uint state = row_state[((ty) * 4u + 0u)];
                        bool fresh0 = (state & 1u) != 0u, empty0 = (state & 2u) != 0u;
                        {
                            float old = o0_0, new = sum0_0;
                            float both = add(mul(old, before0), mul(new, now0));
                            both = empty0 ? old : both;
                            o0_0 = fresh0 ? new : both;
                        }
                        {
                            float old = o0_1, new = sum0_1;
                            float both = add(mul(old, before0), mul(new, now0));
                            both = empty0 ? old : both;
                            o0_1 = fresh0 ? new : both;
                        }
                        {
                            float old = o0_2, new = sum0_2;
                            float both = add(mul(old, before0), mul(new, now0));
                            both = empty0 ? old : both;
                            o0_2 = fresh0 ? new : both;
                        }
                        {
                            float old = o0_3, new = sum0_3;
                            float both = add(mul(old, before0), mul(new, now0));
                            both = empty0 ? old : both;
                            o0_3 = fresh0 ? new : both;
                        }
                    }
                    {
                        float before1 = before_0[1], now1 = now_0[1];
                        uint state = row_state[((ty) * 4u + 1u)];
                        bool fresh1 = (state & 1u) != 0u, empty1 = (state & 2u) != 0u;
                        {
                            float old = o1_0, new = sum1_0;
                            float both = add(mul(old, before1), mul(new, now1));
                            both = empty1 ? old : both;
                            o1_0 = fresh1 ? new : both;
                        }
                        {
                            float old = o1_1, new = sum1_1;
                            float both = add(mul(old, before1), mul(new, now1));
                            both = empty1 ? old : both;
                            o1_1 = fresh1 ? new : both;
                        }
                        {
                            float old = o1_2, new = sum1_2;
                            float both = add(mul(old, before1), mul(new, now1));
                            both = empty1 ? old : both;
                            o1_2 = fresh1 ? new : both;
                        }
                        {
                            float old = o1_3, new = sum1_3;
                            float both = add(mul(old, before1), mul(new, now1));
                            both = empty1 ? old : both;
                            o1_3 = fresh1 ? new : both;
                        }
                    }
                    {
                        float before2 = before_0[2], now2 = now_0[2];
                        uint state = row_state[((ty) * 4u + 2u)];
                        bool fresh2 = (state & 1u) != 0u, empty2 = (state & 2u) != 0u;
                        {
                            float old = o2_0, new = sum2_0;
                            float both = add(mul(old, before2), mul(new, now2));
                            both = empty2 ? old : both;
                            o2_0 = fresh2 ? new : both;
                        }
                        {
                            float old = o2_1, new = sum2_1;
                            float both = add(mul(old, before2), mul(new, now2));
                            both = empty2 ? old : both;
                            o2_1 = fresh2 ? new : both;
                        }
                        {
                            float old = o2_2, new = sum2_2;
                            float both = add(mul(old, before2), mul(new, now2));
                            both = empty2 ? old : both;
                            o2_2 = fresh2 ? new : both;
                        }
                        {
                            float old = o2_3, new = sum2_3;
                            float both = add(mul(old, before2), mul(new, now2));
                            both = empty2 ? old : both;
                            o2_3 = fresh2 ? new : both;
                        }
                    }
                    {
                        float before3 = before_0[3], now3 = now_0[3];
                        uint state = row_state[((ty) * 4u + 3u)];
                        bool fresh3 = (state & 1u) != 0u, empty3 = (state & 2u) != 0u;
                        {
                            float old = o3_0, new = sum3_0;
                            float both = add(mul(old, before3), mul(new, now3));
                            both = empty3 ? old : both;
                            o3_0 = fresh3 ? new : both;
                        }
                        {
                            float old = o3_1, new = sum3_1;
                            float both = add(mul(old, before3), mul(new, now3));
                            both = empty3 ? old : both;
                            o3_1 = fresh3 ? new : both;
                        }
                        {
                            float old = o3_2, new = sum3_2;
                            float both = add(mul(old, before3), mul(new, now3));
                            both = empty3 ? old : both;
                            o3_2 = fresh3 ? new : both;
                        }
                        {
                            float old = o3_3, new = sum3_3;
                            float both = add(mul(old, before3), mul(new, now3));
                            both = empty3 ? old : both;
                            o3_3 = fresh3 ? new : both;
                        }
                    }
                }
            }
            barrier();
            if (lid < 16u) {
                bool unseen0 = is_equal(top0, none);
                row_now[lid / 4u][lid % 4u] = weight0;
                row_state[lid] = unseen0 ? 1u : 0u;
                if (first_row + lid < length_q) {
                    uint line = (b * 4u + h) * queries + first_row + lid;
                    out1[base_out1 + line] = top0;
                    out2[base_out2 + line] = weight0;
                }
            }
            barrier();
            if (first_row + ((ty) * 4u + 0u) < length_q) {
                float weight0 = row_now[ty][0], fade0 = row_before[ty][0];
                bool unseen0 = row_state[((ty) * 4u + 0u)] != 0u;
                uint at = base_out0 + ((b * queries + own0) * 4u + h) * 6u + tx * 4u;
                if (tx * 4u + 0u < 6u) {
                    float value = o0_0;
                    value = divide(value, weight0);
                    out0[at + 0u] = unseen0 ? dead : value;
                }
                if (tx * 4u + 1u < 6u) {
                    float value = o0_1;
                    value = divide(value, weight0);
                    out0[at + 1u] = unseen0 ? dead : value;
                }
                if (tx * 4u + 2u < 6u) {
                    float value = o0_2;
                    value = divide(value, weight0);
                    out0[at + 2u] = unseen0 ? dead : value;
                }
                if (tx * 4u + 3u < 6u) {
                    float value = o0_3;
                    value = divide(value, weight0);
                    out0[at + 3u] = unseen0 ? dead : value;
                }
            }
            if (first_row + ((ty) * 4u + 1u) < length_q) {
                float weight1 = row_now[ty][1], fade1 = row_before[ty][1];
                bool unseen1 = row_state[((ty) * 4u + 1u)] != 0u;
                uint at = base_out0 + ((b * queries + own1) * 4u + h) * 6u + tx * 4u;
                if (tx * 4u + 0u < 6u) {
                    float value = o1_0;
                    value = divide(value, weight1);
                    out0[at + 0u] = unseen1 ? dead : value;
                }
                if (tx * 4u + 1u < 6u) {
                    float value = o1_1;
                    value = divide(value, weight1);
                    out0[at + 1u] = unseen1 ? dead : value;
                }
                if (tx * 4u + 2u < 6u) {
                    float value = o1_2;
                    value = divide(value, weight1);
                    out0[at + 2u] = unseen1 ? dead : value;
                }
                if (tx * 4u + 3u < 6u) {
                    float value = o1_3;
                    value = divide(value, weight1);
                    out0[at + 3u] = unseen1 ? dead : value;
                }
            }
            if (first_row + ((ty) * 4u + 2u) < length_q) {
                float weight2 = row_now[ty][2], fade2 = row_before[ty][2];
                bool unseen2 = row_state[((ty) * 4u + 2u)] != 0u;
                uint at = base_out0 + ((b * queries + own2) * 4u + h) * 6u + tx * 4u;
                if (tx * 4u + 0u < 6u) {
                    float value = o2_0;
                    value = divide(value, weight2);
                    out0[at + 0u] = unseen2 ? dead : value;
                }
                if (tx * 4u + 1u < 6u) {
                    float value = o2_1;
                    value = divide(value, weight2);
                    out0[at + 1u] = unseen2 ? dead : value;
                }
                if (tx * 4u + 2u < 6u) {
                    float value = o2_2;
                    value = divide(value, weight2);
                    out0[at + 2u] = unseen2 ? dead : value;
                }
                if (tx * 4u + 3u < 6u) {
                    float value = o2_3;
                    value = divide(value, weight2);
                    out0[at + 3u] = unseen2 ? dead : value;
                }
            }
            if (first_row + ((ty) * 4u + 3u) < length_q) {
                float weight3 = row_now[ty][3], fade3 = row_before[ty][3];
                bool unseen3 = row_state[((ty) * 4u + 3u)] != 0u;
                uint at = base_out0 + ((b * queries + own3) * 4u + h) * 6u + tx * 4u;
                if (tx * 4u + 0u < 6u) {
                    float value = o3_0;
                    value = divide(value, weight3);
                    out0[at + 0u] = unseen3 ? dead : value;
                }
                if (tx * 4u + 1u < 6u) {
                    float value = o3_1;
                    value = divide(value, weight3);
                    out0[at + 1u] = unseen3 ? dead : value;
                }
                if (tx * 4u + 2u < 6u) {
                    float value = o3_2;
                    value = divide(value, weight3);
                    out0[at + 2u] = unseen3 ? dead : value;
                }
                if (tx * 4u + 3u < 6u) {
                    float value = o3_3;
                    value = divide(value, weight3);
                    out0[at + 3u] = unseen3 ? dead : value;
                }
            }
            barrier();
        }
    }
}
