#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

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
// Gradients of keys and values: a workgroup has 16 keys of one head, and meets the queries of all heads that read it:
// blocks of 128 queries, in each the heads of the group, one sum each; sums added in sequence.
const uint DEAD = 0xffffffffu;  // of a pair that has no part in a sum
// Vectors of four own rows: what is summed up of half a block, [other][row / 4]; or what invocations found, [tx][row / 4]; or
// two times 8 columns, [column][row / 4], and of the others [column][33: tx + 16 u is element u % 4 of u / 4 * 16 + tx].
shared uvec4 pairs[608];
shared vec4 row_stage[256];  // 16 of the others' rows: [other][column / 4]
shared uint last_dead;  // the last turn in which a pair was dead
shared float other_peak[128], other_inverse[128], other_delta[128];
shared uint row_live[16], row_kept[16];  // the last turn in which a pair was live, and kept by dropout

void main() {
    float none = uintBitsToFloat(0xff800000u), dead = ZERO;
    uint lid = gl_LocalInvocationID.x;
    // 32 neighbours have 8 x 4 places: the fewer different vectors they read, the better.
    uint tx = lid / 32u % 2u * 8u + lid % 8u, ty = lid / 64u * 4u + lid % 32u / 8u;
    uint turn = 0u;  // counts the blocks that the workgroup meets
    if (lid == 0u) last_dead = 0u;
    if (lid < 16u) {
        row_live[lid] = 0u;
        row_kept[lid] = 0u;
    }
    for (uint b = gl_WorkGroupID.z; b < batches; b += gl_NumWorkGroups.z)
    for (uint key_head = gl_WorkGroupID.y; key_head < 2u; key_head += gl_NumWorkGroups.y) {
        uint start_q = 0u;
        uint start_k = 0u;
        uint length_q = queries;
        uint length_k = keys;
        for (uint tile = gl_WorkGroupID.x; tile * 16u < length_k; tile += gl_NumWorkGroups.x) {
            uint first_row = tile * 16u, last_row = min(first_row + 15u, length_k - 1u);
            uint own0 = min(first_row + ((ty) * 4u + 0u), length_k - 1u);
            uint own1 = min(first_row + ((ty) * 4u + 1u), length_k - 1u);
            uint own2 = min(first_row + ((ty) * 4u + 2u), length_k - 1u);
            uint own3 = min(first_row + ((ty) * 4u + 3u), length_k - 1u);
            float dk0_0 = ZERO, dk0_1 = ZERO, dk0_2 = ZERO, dk0_3 = ZERO;
            float dk1_0 = ZERO, dk1_1 = ZERO, dk1_2 = ZERO, dk1_3 = ZERO;
            float dk2_0 = ZERO, dk2_1 = ZERO, dk2_2 = ZERO, dk2_3 = ZERO;
            float dk3_0 = ZERO, dk3_1 = ZERO, dk3_2 = ZERO, dk3_3 = ZERO;
            float dv0_0 = ZERO, dv0_1 = ZERO, dv0_2 = ZERO, dv0_3 = ZERO;
            float dv1_0 = ZERO, dv1_1 = ZERO, dv1_2 = ZERO, dv1_3 = ZERO;
            float dv2_0 = ZERO, dv2_1 = ZERO, dv2_2 = ZERO, dv2_3 = ZERO;
            float dv3_0 = ZERO, dv3_1 = ZERO, dv3_2 = ZERO, dv3_3 = ZERO;
            bool fresh_k0 = true, fresh_v0 = true, fresh_k1 = true, fresh_v1 = true, fresh_k2 = true, fresh_v2 = true, fresh_k3 = true, fresh_v3 = true;
            for (uint block = 0u; block < length_q; block += 128u)
            for (uint h = key_head * 2u; h < key_head * 2u + 2u; ++h) {

                uint query_begin = 0u, query_end = length_q;
                query_begin = uint(clamp(int(first_row) - clamp(4, -(1 << 30), 1 << 30), 0, int(length_q)));
                if (block + 128u <= query_begin || block >= query_end) continue;  // all invocations alike
                ++turn;
                uint stop = min(query_end - block, 128u), begin = min(max(query_begin, block) - block, stop - 1u) / 16u * 16u;
                for (uint e = lid; e < 128u; e += 64u) {
                    float peak = in4[base_in4 + h * 9u + (start_q + min(block + e, length_q - 1u))], inverse = in5[base_in5 + h * 9u + (start_q + min(block + e, length_q - 1u))], delta = in6[base_in6 + h + (start_q + min(block + e, length_q - 1u)) * 4u];
                    other_peak[e] = peak;
                    other_inverse[e] = inverse;
                    other_delta[e] = delta;
                }
                float s0[8], s1[8], s2[8], s3[8];
                float slopes0[8], slopes1[8], slopes2[8], slopes3[8];
                uint p0[8], p1[8], p2[8], p3[8];
                uint ds0[8], ds1[8], ds2[8], ds3[8];
                {
                    float next_own[2], next_other[16], past_own = ZERO, past_other = NEGATIVE_ZERO;
                    float d0_0 = ZERO, d0_1 = ZERO, d0_2 = ZERO, d0_3 = ZERO, d0_4 = ZERO, d0_5 = ZERO, d0_6 = ZERO, d0_7 = ZERO;
                    float d1_0 = ZERO, d1_1 = ZERO, d1_2 = ZERO, d1_3 = ZERO, d1_4 = ZERO, d1_5 = ZERO, d1_6 = ZERO, d1_7 = ZERO;
                    float d2_0 = ZERO, d2_1 = ZERO, d2_2 = ZERO, d2_3 = ZERO, d2_4 = ZERO, d2_5 = ZERO, d2_6 = ZERO, d2_7 = ZERO;
                    float d3_0 = ZERO, d3_1 = ZERO, d3_2 = ZERO, d3_3 = ZERO, d3_4 = ZERO, d3_5 = ZERO, d3_6 = ZERO, d3_7 = ZERO;
                    [[unroll]] for (uint u = 0u; u < 2u; ++u) {
                        uint c = 0u + lid % 8u, row = lid / 8u + u * 8u;
                        uint at = base_in1 + key_head * 20u + (start_k + min(first_row + row, length_k - 1u)) * 40u;
                        bool inside = c < 20u;
                        c = min(c, 19u);
                        float value = in1[at + c * 1u];
                        next_own[u] = inside ? value : past_own;
                    }
                    [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                        uint c = 0u + lid % 8u, row = lid / 32u + u % 8u * 2u + lid / 8u % 4u * 16u + u / 8u * 64u;
                        uint at = base_in0 + h * 20u + (start_q + min(block + row, length_q - 1u)) * 80u;
                        bool inside = c < 20u;
                        c = min(c, 19u);
                        float value = in0[at + c * 1u];
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
                                uint at = base_in1 + key_head * 20u + (start_k + min(first_row + row, length_k - 1u)) * 40u;
                                bool inside = c < 20u;
                                c = min(c, 19u);
                                float value = in1[at + c * 1u];
                                next_own[u] = inside ? value : past_own;
                            }
                            [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                                uint c = from + 8u + lid % 8u, row = lid / 32u + u % 8u * 2u + lid / 8u % 4u * 16u + u / 8u * 64u;
                                uint at = base_in0 + h * 20u + (start_q + min(block + row, length_q - 1u)) * 80u;
                                bool inside = c < 20u;
                                c = min(c, 19u);
                                float value = in0[at + c * 1u];
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
                bool whole = true, some0 = false, some1 = false, some2 = false, some3 = false;
                
                [[unroll]] for (uint u = 0u; u < 8u; ++u) {
                    uint e = tx + 16u * u;
                    float peak = other_peak[e], inverse = other_inverse[e];
                    {
                        bool live = block + e < length_q;
                        {
                            uint i = min(block + e, length_q - 1u), j = own0;
                            bool t5 = (in8[base_in8 + h * 13u + j] != 0u);
                            int t6 = int(j);
                            int t7 = int(i);
                            int t9 = (t7 + 4);
                            bool t10 = (t6 <= t9);
                            bool t11 = (t5 && t10);
                            live = live && t11;
                        }
                        float dot = s0[u];
                        uint i = min(block + e, length_q - 1u), j = own0;
                        float t2 = mul(dot, 0.2236068);
                        float t3 = in7[base_in7 + h * 13u + j];
                        float t4 = add(t2, t3);
                        float score = t4;
                        live = live && floatBitsToUint(score) != 0xff800000u;
                        float p = mul(exp_(sub(score, peak)), inverse);
                        p0[u] = live ? min(floatBitsToUint(p), DEAD - 1u) : DEAD;
                        whole = whole && live;
                        some0 = some0 || live;
                    }
                    {
                        bool live = block + e < length_q;
                        {
                            uint i = min(block + e, length_q - 1u), j = own1;
                            bool t5 = (in8[base_in8 + h * 13u + j] != 0u);
                            int t6 = int(j);
                            int t7 = int(i);
                            int t9 = (t7 + 4);
                            bool t10 = (t6 <= t9);
                            bool t11 = (t5 && t10);
                            live = live && t11;
                        }
                        float dot = s1[u];
                        uint i = min(block + e, length_q - 1u), j = own1;
                        float t2 = mul(dot, 0.2236068);
                        float t3 = in7[base_in7 + h * 13u + j];
                        float t4 = add(t2, t3);
                        float score = t4;
                        live = live && floatBitsToUint(score) != 0xff800000u;
                        float p = mul(exp_(sub(score, peak)), inverse);
                        p1[u] = live ? min(floatBitsToUint(p), DEAD - 1u) : DEAD;
                        whole = whole && live;
                        some1 = some1 || live;
                    }
                    {
                        bool live = block + e < length_q;
                        {
                            uint i = min(block + e, length_q - 1u), j = own2;
                            bool t5 = (in8[base_in8 + h * 13u + j] != 0u);
                            int t6 = int(j);
                            int t7 = int(i);
                            int t9 = (t7 + 4);
                            bool t10 = (t6 <= t9);
                            bool t11 = (t5 && t10);
                            live = live && t11;
                        }
                        float dot = s2[u];
                        uint i = min(block + e, length_q - 1u), j = own2;
                        float t2 = mul(dot, 0.2236068);
                        float t3 = in7[base_in7 + h * 13u + j];
                        float t4 = add(t2, t3);
                        float score = t4;
                        live = live && floatBitsToUint(score) != 0xff800000u;
                        float p = mul(exp_(sub(score, peak)), inverse);
                        p2[u] = live ? min(floatBitsToUint(p), DEAD - 1u) : DEAD;
                        whole = whole && live;
                        some2 = some2 || live;
                    }
                    {
                        bool live = block + e < length_q;
                        {
                            uint i = min(block + e, length_q - 1u), j = own3;
                            bool t5 = (in8[base_in8 + h * 13u + j] != 0u);
                            int t6 = int(j);
                            int t7 = int(i);
                            int t9 = (t7 + 4);
                            bool t10 = (t6 <= t9);
                            bool t11 = (t5 && t10);
                            live = live && t11;
                        }
                        float dot = s3[u];
                        uint i = min(block + e, length_q - 1u), j = own3;
                        float t2 = mul(dot, 0.2236068);
                        float t3 = in7[base_in7 + h * 13u + j];
                        float t4 = add(t2, t3);
                        float score = t4;
                        live = live && floatBitsToUint(score) != 0xff800000u;
                        float p = mul(exp_(sub(score, peak)), inverse);
                        p3[u] = live ? min(floatBitsToUint(p), DEAD - 1u) : DEAD;
                        whole = whole && live;
                        some3 = some3 || live;
                    }
                }
                if (some0) row_live[((ty) * 4u + 0u)] = turn;
                if (some1) row_live[((ty) * 4u + 1u)] = turn;
                if (some2) row_live[((ty) * 4u + 2u)] = turn;
                if (some3) row_live[((ty) * 4u + 3u)] = turn;
                if (!whole) last_dead = turn;
                {
                    float sum0_0 = ZERO, sum0_1 = ZERO, sum0_2 = ZERO, sum0_3 = ZERO;
                    float sum1_0 = ZERO, sum1_1 = ZERO, sum1_2 = ZERO, sum1_3 = ZERO;
                    float sum2_0 = ZERO, sum2_1 = ZERO, sum2_2 = ZERO, sum2_3 = ZERO;
                    float sum3_0 = ZERO, sum3_1 = ZERO, sum3_2 = ZERO, sum3_3 = ZERO;
                    float next_rows[16];
                    [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                        uint c = min(0u + lid % 64u, 5u);
                        uint at = base_in3 + h * 6u + (start_q + min(block + begin + lid / 64u + u * 1u, length_q - 1u)) * 24u;
                        next_rows[u] = in3[at + c * 1u];
                    }
                    [[dont_unroll]] for (uint from = begin; from < stop; from += 16u) {
                        barrier();
                        if (from == begin || from == 64u) {  // the next half of the block
                            bool upper = from >= 64u;
                            pairs[(tx + 0u) * 5u + ty] = uvec4(upper ? p0[4] : p0[0], upper ? p1[4] : p1[0], upper ? p2[4] : p2[0], upper ? p3[4] : p3[0]);
                            pairs[(tx + 16u) * 5u + ty] = uvec4(upper ? p0[5] : p0[1], upper ? p1[5] : p1[1], upper ? p2[5] : p2[1], upper ? p3[5] : p3[1]);
                            pairs[(tx + 32u) * 5u + ty] = uvec4(upper ? p0[6] : p0[2], upper ? p1[6] : p1[2], upper ? p2[6] : p2[2], upper ? p3[6] : p3[2]);
                            pairs[(tx + 48u) * 5u + ty] = uvec4(upper ? p0[7] : p0[3], upper ? p1[7] : p1[3], upper ? p2[7] : p2[3], upper ? p3[7] : p3[3]);
                        }
                        [[unroll]] for (uint u = 0u; u < 16u; ++u) row_stage[lid / 64u * 16u + u * 16u + lid % 64u / 4u][lid % 4u] = next_rows[u];
                        barrier();
                        if (from + 16u < stop) {
                            [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                                uint c = min(0u + lid % 64u, 5u);
                                uint at = base_in3 + h * 6u + (start_q + min(block + from + 16u + lid / 64u + u * 1u, length_q - 1u)) * 24u;
                                next_rows[u] = in3[at + c * 1u];
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
                    {
                        bool some = row_live[((ty) * 4u + 0u)] == turn;
                        { float old = dv0_0; float both = add(old, sum0_0); both = fresh_v0 ? sum0_0 : both; dv0_0 = some ? both : old; }
                        { float old = dv0_1; float both = add(old, sum0_1); both = fresh_v0 ? sum0_1 : both; dv0_1 = some ? both : old; }
                        { float old = dv0_2; float both = add(old, sum0_2); both = fresh_v0 ? sum0_2 : both; dv0_2 = some ? both : old; }
                        { float old = dv0_3; float both = add(old, sum0_3); both = fresh_v0 ? sum0_3 : both; dv0_3 = some ? both : old; }
                    }
                    {
                        bool some = row_live[((ty) * 4u + 1u)] == turn;
                        { float old = dv1_0; float both = add(old, sum1_0); both = fresh_v1 ? sum1_0 : both; dv1_0 = some ? both : old; }
                        { float old = dv1_1; float both = add(old, sum1_1); both = fresh_v1 ? sum1_1 : both; dv1_1 = some ? both : old; }
                        { float old = dv1_2; float both = add(old, sum1_2); both = fresh_v1 ? sum1_2 : both; dv1_2 = some ? both : old; }
                        { float old = dv1_3; float both = add(old, sum1_3); both = fresh_v1 ? sum1_3 : both; dv1_3 = some ? both : old; }
                    }
                    {
                        bool some = row_live[((ty) * 4u + 2u)] == turn;
                        { float old = dv2_0; float both = add(old, sum2_0); both = fresh_v2 ? sum2_0 : both; dv2_0 = some ? both : old; }
                        { float old = dv2_1; float both = add(old, sum2_1); both = fresh_v2 ? sum2_1 : both; dv2_1 = some ? both : old; }
                        { float old = dv2_2; float both = add(old, sum2_2); both = fresh_v2 ? sum2_2 : both; dv2_2 = some ? both : old; }
                        { float old = dv2_3; float both = add(old, sum2_3); both = fresh_v2 ? sum2_3 : both; dv2_3 = some ? both : old; }
                    }
                    {
                        bool some = row_live[((ty) * 4u + 3u)] == turn;
                        { float old = dv3_0; float both = add(old, sum3_0); both = fresh_v3 ? sum3_0 : both; dv3_0 = some ? both : old; }
                        { float old = dv3_1; float both = add(old, sum3_1); both = fresh_v3 ? sum3_1 : both; dv3_1 = some ? both : old; }
                        { float old = dv3_2; float both = add(old, sum3_2); both = fresh_v3 ? sum3_2 : both; dv3_2 = some ? both : old; }
                        { float old = dv3_3; float both = add(old, sum3_3); both = fresh_v3 ? sum3_3 : both; dv3_3 = some ? both : old; }
                    }
                }
                {
                    float next_own[2], next_other[16], past_own = ZERO, past_other = NEGATIVE_ZERO;
                    float d0_0 = ZERO, d0_1 = ZERO, d0_2 = ZERO, d0_3 = ZERO, d0_4 = ZERO, d0_5 = ZERO, d0_6 = ZERO, d0_7 = ZERO;
                    float d1_0 = ZERO, d1_1 = ZERO, d1_2 = ZERO, d1_3 = ZERO, d1_4 = ZERO, d1_5 = ZERO, d1_6 = ZERO, d1_7 = ZERO;
                    float d2_0 = ZERO, d2_1 = ZERO, d2_2 = ZERO, d2_3 = ZERO, d2_4 = ZERO, d2_5 = ZERO, d2_6 = ZERO, d2_7 = ZERO;
                    float d3_0 = ZERO, d3_1 = ZERO, d3_2 = ZERO, d3_3 = ZERO, d3_4 = ZERO, d3_5 = ZERO, d3_6 = ZERO, d3_7 = ZERO;
                    [[unroll]] for (uint u = 0u; u < 2u; ++u) {
                        uint c = 0u + lid % 8u, row = lid / 8u + u * 8u;
                        uint at = base_in2 + key_head * 6u + (start_k + min(first_row + row, length_k - 1u)) * 12u;
                        bool inside = c < 6u;
                        c = min(c, 5u);
                        float value = in2[at + c * 1u];
                        next_own[u] = inside ? value : past_own;
                    }
                    [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                        uint c = 0u + lid % 8u, row = lid / 32u + u % 8u * 2u + lid / 8u % 4u * 16u + u / 8u * 64u;
                        uint at = base_in3 + h * 6u + (start_q + min(block + row, length_q - 1u)) * 24u;
                        bool inside = c < 6u;
                        c = min(c, 5u);
                        float value = in3[at + c * 1u];
                        next_other[u] = inside ? value : past_other;
                    }
                    barrier();
                    [[dont_unroll]] for (uint from = 0u; from < 6u; from += 8u) {
                        uint own_stage = from % 16u * 5u, other_stage = 80u + from % 16u * 33u;
                        [[unroll]] for (uint u = 0u; u < 2u; ++u) {
                            uint row = lid / 8u + u * 8u;
                            pairs[own_stage + lid % 8u * 5u + row / 4u][row % 4u] = floatBitsToUint(next_own[u]);
                        }
                        [[unroll]] for (uint u = 0u; u < 16u; ++u)
                            pairs[other_stage + lid % 8u * 33u + u / 8u * 16u + lid / 32u + u % 8u * 2u][lid / 8u % 4u] = floatBitsToUint(next_other[u]);
                        barrier();
                        if (from + 8u < 6u) {
                            [[unroll]] for (uint u = 0u; u < 2u; ++u) {
                                uint c = from + 8u + lid % 8u, row = lid / 8u + u * 8u;
                                uint at = base_in2 + key_head * 6u + (start_k + min(first_row + row, length_k - 1u)) * 12u;
                                bool inside = c < 6u;
                                c = min(c, 5u);
                                float value = in2[at + c * 1u];
                                next_own[u] = inside ? value : past_own;
                            }
                            [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                                uint c = from + 8u + lid % 8u, row = lid / 32u + u % 8u * 2u + lid / 8u % 4u * 16u + u / 8u * 64u;
                                uint at = base_in3 + h * 6u + (start_q + min(block + row, length_q - 1u)) * 24u;
                                bool inside = c < 6u;
                                c = min(c, 5u);
                                float value = in3[at + c * 1u];
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
                    slopes0[0] = d0_0; slopes0[1] = d0_1; slopes0[2] = d0_2; slopes0[3] = d0_3; slopes0[4] = d0_4; slopes0[5] = d0_5; slopes0[6] = d0_6; slopes0[7] = d0_7;
                    slopes1[0] = d1_0; slopes1[1] = d1_1; slopes1[2] = d1_2; slopes1[3] = d1_3; slopes1[4] = d1_4; slopes1[5] = d1_5; slopes1[6] = d1_6; slopes1[7] = d1_7;
                    slopes2[0] = d2_0; slopes2[1] = d2_1; slopes2[2] = d2_2; slopes2[3] = d2_3; slopes2[4] = d2_4; slopes2[5] = d2_5; slopes2[6] = d2_6; slopes2[7] = d2_7;
                    slopes3[0] = d3_0; slopes3[1] = d3_1; slopes3[2] = d3_2; slopes3[3] = d3_3; slopes3[4] = d3_4; slopes3[5] = d3_5; slopes3[6] = d3_6; slopes3[7] = d3_7;
                }
                [[unroll]] for (uint u = 0u; u < 8u; ++u) {
                    uint e = tx + 16u * u;
                    float delta = other_delta[e];
                    {
                        float g = mul(uintBitsToFloat(p0[u]), sub(slopes0[u], delta));
                        uint i = min(block + e, length_q - 1u), j = own0;
                        float t13 = mul(g, 0.2236068);
                        g = t13;
                        ds0[u] = p0[u] == DEAD ? DEAD : min(floatBitsToUint(g), DEAD - 1u);
                    }
                    {
                        float g = mul(uintBitsToFloat(p1[u]), sub(slopes1[u], delta));
                        uint i = min(block + e, length_q - 1u), j = own1;
                        float t13 = mul(g, 0.2236068);
                        g = t13;
                        ds1[u] = p1[u] == DEAD ? DEAD : min(floatBitsToUint(g), DEAD - 1u);
                    }
                    {
                        float g = mul(uintBitsToFloat(p2[u]), sub(slopes2[u], delta));
                        uint i = min(block + e, length_q - 1u), j = own2;
                        float t13 = mul(g, 0.2236068);
                        g = t13;
                        ds2[u] = p2[u] == DEAD ? DEAD : min(floatBitsToUint(g), DEAD - 1u);
                    }
                    {
                        float g = mul(uintBitsToFloat(p3[u]), sub(slopes3[u], delta));
                        uint i = min(block + e, length_q - 1u), j = own3;
                        float t13 = mul(g, 0.2236068);
                        g = t13;
                        ds3[u] = p3[u] == DEAD ? DEAD : min(floatBitsToUint(g), DEAD - 1u);
                    }
                }
                {
                    float sum0_0 = ZERO, sum0_1 = ZERO, sum0_2 = ZERO, sum0_3 = ZERO;
                    float sum1_0 = ZERO, sum1_1 = ZERO, sum1_2 = ZERO, sum1_3 = ZERO;
                    float sum2_0 = ZERO, sum2_1 = ZERO, sum2_2 = ZERO, sum2_3 = ZERO;
                    float sum3_0 = ZERO, sum3_1 = ZERO, sum3_2 = ZERO, sum3_3 = ZERO;
                    float next_rows[16];
                    [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                        uint c = min(0u + lid % 64u, 19u);
                        uint at = base_in0 + h * 20u + (start_q + min(block + begin + lid / 64u + u * 1u, length_q - 1u)) * 80u;
                        next_rows[u] = in0[at + c * 1u];
                    }
                    [[dont_unroll]] for (uint from = begin; from < stop; from += 16u) {
                        barrier();
                        if (from == begin || from == 64u) {  // the next half of the block
                            bool upper = from >= 64u;
                            pairs[(tx + 0u) * 5u + ty] = uvec4(upper ? ds0[4] : ds0[0], upper ? ds1[4] : ds1[0], upper ? ds2[4] : ds2[0], upper ? ds3[4] : ds3[0]);
                            pairs[(tx + 16u) * 5u + ty] = uvec4(upper ? ds0[5] : ds0[1], upper ? ds1[5] : ds1[1], upper ? ds2[5] : ds2[1], upper ? ds3[5] : ds3[1]);
                            pairs[(tx + 32u) * 5u + ty] = uvec4(upper ? ds0[6] : ds0[2], upper ? ds1[6] : ds1[2], upper ? ds2[6] : ds2[2], upper ? ds3[6] : ds3[2]);
                            pairs[(tx + 48u) * 5u + ty] = uvec4(upper ? ds0[7] : ds0[3], upper ? ds1[7] : ds1[3], upper ? ds2[7] : ds2[3], upper ? ds3[7] : ds3[3]);
                        }
                        [[unroll]] for (uint u = 0u; u < 16u; ++u) row_stage[lid / 64u * 16u + u * 16u + lid % 64u / 4u][lid % 4u] = next_rows[u];
                        barrier();
                        if (from + 16u < stop) {
                            [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                                uint c = min(0u + lid % 64u, 19u);
                                uint at = base_in0 + h * 20u + (start_q + min(block + from + 16u + lid / 64u + u * 1u, length_q - 1u)) * 80u;
                                next_rows[u] = in0[at + c * 1u];
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
                    {
                        bool some = row_live[((ty) * 4u + 0u)] == turn;
                        { float old = dk0_0; float both = add(old, sum0_0); both = fresh_k0 ? sum0_0 : both; dk0_0 = some ? both : old; }
                        { float old = dk0_1; float both = add(old, sum0_1); both = fresh_k0 ? sum0_1 : both; dk0_1 = some ? both : old; }
                        { float old = dk0_2; float both = add(old, sum0_2); both = fresh_k0 ? sum0_2 : both; dk0_2 = some ? both : old; }
                        { float old = dk0_3; float both = add(old, sum0_3); both = fresh_k0 ? sum0_3 : both; dk0_3 = some ? both : old; }
                    }
                    {
                        bool some = row_live[((ty) * 4u + 1u)] == turn;
                        { float old = dk1_0; float both = add(old, sum1_0); both = fresh_k1 ? sum1_0 : both; dk1_0 = some ? both : old; }
                        { float old = dk1_1; float both = add(old, sum1_1); both = fresh_k1 ? sum1_1 : both; dk1_1 = some ? both : old; }
                        { float old = dk1_2; float both = add(old, sum1_2); both = fresh_k1 ? sum1_2 : both; dk1_2 = some ? both : old; }
                        { float old = dk1_3; float both = add(old, sum1_3); both = fresh_k1 ? sum1_3 : both; dk1_3 = some ? both : old; }
                    }
                    {
                        bool some = row_live[((ty) * 4u + 2u)] == turn;
                        { float old = dk2_0; float both = add(old, sum2_0); both = fresh_k2 ? sum2_0 : both; dk2_0 = some ? both : old; }
                        { float old = dk2_1; float both = add(old, sum2_1); both = fresh_k2 ? sum2_1 : both; dk2_1 = some ? both : old; }
                        { float old = dk2_2; float both = add(old, sum2_2); both = fresh_k2 ? sum2_2 : both; dk2_2 = some ? both : old; }
                        { float old = dk2_3; float both = add(old, sum2_3); both = fresh_k2 ? sum2_3 : both; dk2_3 = some ? both : old; }
                    }
                    {
                        bool some = row_live[((ty) * 4u + 3u)] == turn;
                        { float old = dk3_0; float both = add(old, sum3_0); both = fresh_k3 ? sum3_0 : both; dk3_0 = some ? both : old; }
                        { float old = dk3_1; float both = add(old, sum3_1); both = fresh_k3 ? sum3_1 : both; dk3_1 = some ? both : old; }
                        { float old = dk3_2; float both = add(old, sum3_2); both = fresh_k3 ? sum3_2 : both; dk3_2 = some ? both : old; }
                        { float old = dk3_3; float both = add(old, sum3_3); both = fresh_k3 ? sum3_3 : both; dk3_3 = some ? both : old; }
                    }
                }
                fresh_k0 = fresh_k0 && row_live[((ty) * 4u + 0u)] != turn; fresh_v0 = fresh_v0 && row_live[((ty) * 4u + 0u)] != turn; fresh_k1 = fresh_k1 && row_live[((ty) * 4u + 1u)] != turn; fresh_v1 = fresh_v1 && row_live[((ty) * 4u + 1u)] != turn; fresh_k2 = fresh_k2 && row_live[((ty) * 4u + 2u)] != turn; fresh_v2 = fresh_v2 && row_live[((ty) * 4u + 2u)] != turn; fresh_k3 = fresh_k3 && row_live[((ty) * 4u + 3u)] != turn; fresh_v3 = fresh_v3 && row_live[((ty) * 4u + 3u)] != turn; 
            }
            if (first_row + ((ty) * 4u + 0u) < length_k) {
                uint at = base_out0 + ((b * keys + own0) * 2u + key_head) * 20u + tx * 4u;
                if (tx * 4u + 0u < 20u) out0[at + 0u] = dk0_0;
                if (tx * 4u + 1u < 20u) out0[at + 1u] = dk0_1;
                if (tx * 4u + 2u < 20u) out0[at + 2u] = dk0_2;
                if (tx * 4u + 3u < 20u) out0[at + 3u] = dk0_3;
            }
            if (first_row + ((ty) * 4u + 1u) < length_k) {
                uint at = base_out0 + ((b * keys + own1) * 2u + key_head) * 20u + tx * 4u;
                if (tx * 4u + 0u < 20u) out0[at + 0u] = dk1_0;
                if (tx * 4u + 1u < 20u) out0[at + 1u] = dk1_1;
                if (tx * 4u + 2u < 20u) out0[at + 2u] = dk1_2;
                if (tx * 4u + 3u < 20u) out0[at + 3u] = dk1_3;
            }
            if (first_row + ((ty) * 4u + 2u) < length_k) {
                uint at = base_out0 + ((b * keys + own2) * 2u + key_head) * 20u + tx * 4u;
                if (tx * 4u + 0u < 20u) out0[at + 0u] = dk2_0;
                if (tx * 4u + 1u < 20u) out0[at + 1u] = dk2_1;
                if (tx * 4u + 2u < 20u) out0[at + 2u] = dk2_2;
                if (tx * 4u + 3u < 20u) out0[at + 3u] = dk2_3;
            }
            if (first_row + ((ty) * 4u + 3u) < length_k) {
                uint at = base_out0 + ((b * keys + own3) * 2u + key_head) * 20u + tx * 4u;
                if (tx * 4u + 0u < 20u) out0[at + 0u] = dk3_0;
                if (tx * 4u + 1u < 20u) out0[at + 1u] = dk3_1;
                if (tx * 4u + 2u < 20u) out0[at + 2u] = dk3_2;
                if (tx * 4u + 3u < 20u) out0[at + 3u] = dk3_3;
            }
            if (first_row + ((ty) * 4u + 0u) < length_k) {
                uint at = base_out1 + ((b * keys + own0) * 2u + key_head) * 6u + tx * 4u;
                if (tx * 4u + 0u < 6u) out1[at + 0u] = dv0_0;
                if (tx * 4u + 1u < 6u) out1[at + 1u] = dv0_1;
                if (tx * 4u + 2u < 6u) out1[at + 2u] = dv0_2;
                if (tx * 4u + 3u < 6u) out1[at + 3u] = dv0_3;
            }
            if (first_row + ((ty) * 4u + 1u) < length_k) {
                uint at = base_out1 + ((b * keys + own1) * 2u + key_head) * 6u + tx * 4u;
                if (tx * 4u + 0u < 6u) out1[at + 0u] = dv1_0;
                if (tx * 4u + 1u < 6u) out1[at + 1u] = dv1_1;
                if (tx * 4u + 2u < 6u) out1[at + 2u] = dv1_2;
                if (tx * 4u + 3u < 6u) out1[at + 3u] = dv1_3;
            }
            if (first_row + ((ty) * 4u + 2u) < length_k) {
                uint at = base_out1 + ((b * keys + own2) * 2u + key_head) * 6u + tx * 4u;
                if (tx * 4u + 0u < 6u) out1[at + 0u] = dv2_0;
                if (tx * 4u + 1u < 6u) out1[at + 1u] = dv2_1;
                if (tx * 4u + 2u < 6u) out1[at + 2u] = dv2_2;
                if (tx * 4u + 3u < 6u) out1[at + 3u] = dv2_3;
            }
            if (first_row + ((ty) * 4u + 3u) < length_k) {
                uint at = base_out1 + ((b * keys + own3) * 2u + key_head) * 6u + tx * 4u;
                if (tx * 4u + 0u < 6u) out1[at + 0u] = dv3_0;
                if (tx * 4u + 1u < 6u) out1[at + 1u] = dv3_1;
                if (tx * 4u + 2u < 6u) out1[at + 2u] = dv3_2;
                if (tx * 4u + 3u < 6u) out1[at + 3u] = dv3_3;
            }
            barrier();
        }
    }
}
