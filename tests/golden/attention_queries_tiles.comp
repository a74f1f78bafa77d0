#version 450
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;

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

#extension GL_EXT_control_flow_attributes : require
// Gradient of queries: a workgroup has 32 of one head, and adds ds times keys, block by block of 128 keys.
shared float a[4128];
shared float codes[4128];
shared float own_stage[264], other_stage[1032];
shared float columns_stage[320];
shared uint dead_pairs;
shared uint row_some[32];

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

        for (uint tile = gl_WorkGroupID.x; tile * 32u < length_q; tile += gl_NumWorkGroups.x) {
            uint first_row = tile * 32u, last_row = min(first_row + 31u, length_q - 1u);
            uint key_begin = 0u, key_end = length_k;
            key_end = uint(clamp(int(last_row) + 1 + clamp(4, -(1 << 30), 1 << 30), 0, int(length_k)));
            float dq0_0 = ZERO, dq0_1 = ZERO;
            float dq1_0 = ZERO, dq1_1 = ZERO;
            float dq2_0 = ZERO, dq2_1 = ZERO;
            float dq3_0 = ZERO, dq3_1 = ZERO;
bool fresh0 = true, fresh1 = true, fresh2 = true, fresh3 = true;
            for (uint block = key_begin / 128u * 128u; block < key_end; block += 128u) {
                {
                    float d0_0 = ZERO, d0_1 = ZERO, d0_2 = ZERO, d0_3 = ZERO, d0_4 = ZERO, d0_5 = ZERO, d0_6 = ZERO, d0_7 = ZERO;
                    float d1_0 = ZERO, d1_1 = ZERO, d1_2 = ZERO, d1_3 = ZERO, d1_4 = ZERO, d1_5 = ZERO, d1_6 = ZERO, d1_7 = ZERO;
                    float d2_0 = ZERO, d2_1 = ZERO, d2_2 = ZERO, d2_3 = ZERO, d2_4 = ZERO, d2_5 = ZERO, d2_6 = ZERO, d2_7 = ZERO;
                    float d3_0 = ZERO, d3_1 = ZERO, d3_2 = ZERO, d3_3 = ZERO, d3_4 = ZERO, d3_5 = ZERO, d3_6 = ZERO, d3_7 = ZERO;
                    [[dont_unroll]] for (uint from = 0u; from < 20u; from += 8u) {
                        barrier();
                        for (uint x = lid; x < 256u; x += 128u) {
                            uint row = x / 8u, c = from + x % 8u;
                            uint at = base_in0 + h * 20u + (start_q + min(first_row + row, length_q - 1u)) * 80u;
                            if (c < 20u) own_stage[x % 8u * 33u + row] = in0[at + c * 1u];
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
                            float y0 = own_stage[c * 33u + ty + 0u];
                            d0_0 = add(d0_0, mul(y0, x0));
                            d0_1 = add(d0_1, mul(y0, x1));
                            d0_2 = add(d0_2, mul(y0, x2));
                            d0_3 = add(d0_3, mul(y0, x3));
                            d0_4 = add(d0_4, mul(y0, x4));
                            d0_5 = add(d0_5, mul(y0, x5));
                            d0_6 = add(d0_6, mul(y0, x6));
                            d0_7 = add(d0_7, mul(y0, x7));
                            float y1 = own_stage[c * 33u + ty + 8u];
                            d1_0 = add(d1_0, mul(y1, x0));
                            d1_1 = add(d1_1, mul(y1, x1));
                            d1_2 = add(d1_2, mul(y1, x2));
                            d1_3 = add(d1_3, mul(y1, x3));
                            d1_4 = add(d1_4, mul(y1, x4));
                            d1_5 = add(d1_5, mul(y1, x5));
                            d1_6 = add(d1_6, mul(y1, x6));
                            d1_7 = add(d1_7, mul(y1, x7));
                            float y2 = own_stage[c * 33u + ty + 16u];
                            d2_0 = add(d2_0, mul(y2, x0));
                            d2_1 = add(d2_1, mul(y2, x1));
                            d2_2 = add(d2_2, mul(y2, x2));
                            d2_3 = add(d2_3, mul(y2, x3));
                            d2_4 = add(d2_4, mul(y2, x4));
                            d2_5 = add(d2_5, mul(y2, x5));
                            d2_6 = add(d2_6, mul(y2, x6));
                            d2_7 = add(d2_7, mul(y2, x7));
                            float y3 = own_stage[c * 33u + ty + 24u];
                            d3_0 = add(d3_0, mul(y3, x0));
                            d3_1 = add(d3_1, mul(y3, x1));
                            d3_2 = add(d3_2, mul(y3, x2));
                            d3_3 = add(d3_3, mul(y3, x3));
                            d3_4 = add(d3_4, mul(y3, x4));
                            d3_5 = add(d3_5, mul(y3, x5));
                            d3_6 = add(d3_6, mul(y3, x6));
                            d3_7 = add(d3_7, mul(y3, x7));
                        }
                    }
                    a[(ty + 0u) * 129u + tx + 0u] = d0_0;
                    a[(ty + 0u) * 129u + tx + 16u] = d0_1;
                    a[(ty + 0u) * 129u + tx + 32u] = d0_2;
                    a[(ty + 0u) * 129u + tx + 48u] = d0_3;
                    a[(ty + 0u) * 129u + tx + 64u] = d0_4;
                    a[(ty + 0u) * 129u + tx + 80u] = d0_5;
                    a[(ty + 0u) * 129u + tx + 96u] = d0_6;
                    a[(ty + 0u) * 129u + tx + 112u] = d0_7;
                    a[(ty + 8u) * 129u + tx + 0u] = d1_0;
                    a[(ty + 8u) * 129u + tx + 16u] = d1_1;
                    a[(ty + 8u) * 129u + tx + 32u] = d1_2;
                    a[(ty + 8u) * 129u + tx + 48u] = d1_3;
                    a[(ty + 8u) * 129u + tx + 64u] = d1_4;
                    a[(ty + 8u) * 129u + tx + 80u] = d1_5;
                    a[(ty + 8u) * 129u + tx + 96u] = d1_6;
                    a[(ty + 8u) * 129u + tx + 112u] = d1_7;
                    a[(ty + 16u) * 129u + tx + 0u] = d2_0;
                    a[(ty + 16u) * 129u + tx + 16u] = d2_1;
                    a[(ty + 16u) * 129u + tx + 32u] = d2_2;
                    a[(ty + 16u) * 129u + tx + 48u] = d2_3;
                    a[(ty + 16u) * 129u + tx + 64u] = d2_4;
                    a[(ty + 16u) * 129u + tx + 80u] = d2_5;
                    a[(ty + 16u) * 129u + tx + 96u] = d2_6;
                    a[(ty + 16u) * 129u + tx + 112u] = d2_7;
                    a[(ty + 24u) * 129u + tx + 0u] = d3_0;
                    a[(ty + 24u) * 129u + tx + 16u] = d3_1;
                    a[(ty + 24u) * 129u + tx + 32u] = d3_2;
                    a[(ty + 24u) * 129u + tx + 48u] = d3_3;
                    a[(ty + 24u) * 129u + tx + 64u] = d3_4;
                    a[(ty + 24u) * 129u + tx + 80u] = d3_5;
                    a[(ty + 24u) * 129u + tx + 96u] = d3_6;
                    a[(ty + 24u) * 129u + tx + 112u] = d3_7;
                }
                {
                    float d0_0 = ZERO, d0_1 = ZERO, d0_2 = ZERO, d0_3 = ZERO, d0_4 = ZERO, d0_5 = ZERO, d0_6 = ZERO, d0_7 = ZERO;
                    float d1_0 = ZERO, d1_1 = ZERO, d1_2 = ZERO, d1_3 = ZERO, d1_4 = ZERO, d1_5 = ZERO, d1_6 = ZERO, d1_7 = ZERO;
                    float d2_0 = ZERO, d2_1 = ZERO, d2_2 = ZERO, d2_3 = ZERO, d2_4 = ZERO, d2_5 = ZERO, d2_6 = ZERO, d2_7 = ZERO;
                    float d3_0 = ZERO, d3_1 = ZERO, d3_2 = ZERO, d3_3 = ZERO, d3_4 = ZERO, d3_5 = ZERO, d3_6 = ZERO, d3_7 = ZERO;
                    [[dont_unroll]] for (uint from = 0u; from < 6u; from += 8u) {
                        barrier();
                        for (uint x = lid; x < 256u; x += 128u) {
                            uint row = x / 8u, c = from + x % 8u;
                            uint at = base_in3 + h * 6u + (start_q + min(first_row + row, length_q - 1u)) * 24u;
                            if (c < 6u) own_stage[x % 8u * 33u + row] = in3[at + c * 1u];
                        }
                        for (uint x = lid; x < 1024u; x += 128u) {
                            uint row = x / 8u, c = from + x % 8u;
                            uint at = base_in2 + key_head * 6u + (start_k + min(block + row, length_k - 1u)) * 12u;
                            if (c < 6u) other_stage[x % 8u * 129u + row] = in2[at + c * 1u];
                        }
                        barrier();
                        uint count = min(8u, 6u - from);
                        for (uint c = 0u; c < count; ++c) {
                            float x0 = other_stage[c * 129u + tx + 0u], x1 = other_stage[c * 129u + tx + 16u], x2 = other_stage[c * 129u + tx + 32u], x3 = other_stage[c * 129u + tx + 48u], x4 = other_stage[c * 129u + tx + 64u], x5 = other_stage[c * 129u + tx + 80u], x6 = other_stage[c * 129u + tx + 96u], x7 = other_stage[c * 129u + tx + 112u];
                            float y0 = own_stage[c * 33u + ty + 0u];
                            d0_0 = add(d0_0, mul(y0, x0));
                            d0_1 = add(d0_1, mul(y0, x1));
                            d0_2 = add(d0_2, mul(y0, x2));
                            d0_3 = add(d0_3, mul(y0, x3));
                            d0_4 = add(d0_4, mul(y0, x4));
                            d0_5 = add(d0_5, mul(y0, x5));
                            d0_6 = add(d0_6, mul(y0, x6));
                            d0_7 = add(d0_7, mul(y0, x7));
                            float y1 = own_stage[c * 33u + ty + 8u];
                            d1_0 = add(d1_0, mul(y1, x0));
                            d1_1 = add(d1_1, mul(y1, x1));
                            d1_2 = add(d1_2, mul(y1, x2));
                            d1_3 = add(d1_3, mul(y1, x3));
                            d1_4 = add(d1_4, mul(y1, x4));
                            d1_5 = add(d1_5, mul(y1, x5));
                            d1_6 = add(d1_6, mul(y1, x6));
                            d1_7 = add(d1_7, mul(y1, x7));
                            float y2 = own_stage[c * 33u + ty + 16u];
                            d2_0 = add(d2_0, mul(y2, x0));
                            d2_1 = add(d2_1, mul(y2, x1));
                            d2_2 = add(d2_2, mul(y2, x2));
                            d2_3 = add(d2_3, mul(y2, x3));
                            d2_4 = add(d2_4, mul(y2, x4));
                            d2_5 = add(d2_5, mul(y2, x5));
                            d2_6 = add(d2_6, mul(y2, x6));
                            d2_7 = add(d2_7, mul(y2, x7));
                            float y3 = own_stage[c * 33u + ty + 24u];
                            d3_0 = add(d3_0, mul(y3, x0));
                            d3_1 = add(d3_1, mul(y3, x1));
                            d3_2 = add(d3_2, mul(y3, x2));
                            d3_3 = add(d3_3, mul(y3, x3));
                            d3_4 = add(d3_4, mul(y3, x4));
                            d3_5 = add(d3_5, mul(y3, x5));
                            d3_6 = add(d3_6, mul(y3, x6));
                            d3_7 = add(d3_7, mul(y3, x7));
                        }
                    }
                    codes[(ty + 0u) * 129u + tx + 0u] = d0_0;
                    codes[(ty + 0u) * 129u + tx + 16u] = d0_1;
                    codes[(ty + 0u) * 129u + tx + 32u] = d0_2;
                    codes[(ty + 0u) * 129u + tx + 48u] = d0_3;
                    codes[(ty + 0u) * 129u + tx + 64u] = d0_4;
                    codes[(ty + 0u) * 129u + tx + 80u] = d0_5;
                    codes[(ty + 0u) * 129u + tx + 96u] = d0_6;
                    codes[(ty + 0u) * 129u + tx + 112u] = d0_7;
                    codes[(ty + 8u) * 129u + tx + 0u] = d1_0;
                    codes[(ty + 8u) * 129u + tx + 16u] = d1_1;
                    codes[(ty + 8u) * 129u + tx + 32u] = d1_2;
                    codes[(ty + 8u) * 129u + tx + 48u] = d1_3;
                    codes[(ty + 8u) * 129u + tx + 64u] = d1_4;
                    codes[(ty + 8u) * 129u + tx + 80u] = d1_5;
                    codes[(ty + 8u) * 129u + tx + 96u] = d1_6;
                    codes[(ty + 8u) * 129u + tx + 112u] = d1_7;
                    codes[(ty + 16u) * 129u + tx + 0u] = d2_0;
                    codes[(ty + 16u) * 129u + tx + 16u] = d2_1;
                    codes[(ty + 16u) * 129u + tx + 32u] = d2_2;
                    codes[(ty + 16u) * 129u + tx + 48u] = d2_3;
                    codes[(ty + 16u) * 129u + tx + 64u] = d2_4;
                    codes[(ty + 16u) * 129u + tx + 80u] = d2_5;
                    codes[(ty + 16u) * 129u + tx + 96u] = d2_6;
                    codes[(ty + 16u) * 129u + tx + 112u] = d2_7;
                    codes[(ty + 24u) * 129u + tx + 0u] = d3_0;
                    codes[(ty + 24u) * 129u + tx + 16u] = d3_1;
                    codes[(ty + 24u) * 129u + tx + 32u] = d3_2;
                    codes[(ty + 24u) * 129u + tx + 48u] = d3_3;
                    codes[(ty + 24u) * 129u + tx + 64u] = d3_4;
                    codes[(ty + 24u) * 129u + tx + 80u] = d3_5;
                    codes[(ty + 24u) * 129u + tx + 96u] = d3_6;
                    codes[(ty + 24u) * 129u + tx + 112u] = d3_7;
                }
if (lid == 0u) dead_pairs = 0u;
                if (lid < 32u) row_some[lid] = 0u;
                barrier();
                bool whole = true;
                [[dont_unroll]] for (uint row = ty; row < 32u; row += 8u) {
                    uint own = min(first_row + row, length_q - 1u);
                    float peak = in4[base_in4 + h * 9u + (start_q + own)], inverse = in5[base_in5 + h * 9u + (start_q + own)], delta = in6[base_in6 + h + (start_q + own) * 4u];
bool some = false;
                    [[dont_unroll]] for (uint e = tx; e < 128u; e += 16u) {
                        uint place = row * 129u + e;
                        bool live = block + e < length_k;
                        {
                            uint i = own, j = min(block + e, length_k - 1u);
                            bool t5 = (in8[base_in8 + h * 13u + j] != 0u);
                            int t6 = int(j);
                            int t7 = int(i);
                            int t9 = (t7 + 4);
                            bool t10 = (t6 <= t9);
                            bool t11 = (t5 && t10);
                            live = live && t11;
                        }
                        float dot = a[place], dp = codes[place], dropped = ZERO, code = -1.0;
                        bool keep = true;
                        uint i = own, j = min(block + e, length_k - 1u);
                        float t2 = mul(dot, 0.2236068);
                        float t3 = in7[base_in7 + h * 13u + j];
                        float t4 = add(t2, t3);
                        float s = t4;
                        live = live && !is_equal(s, none);
                        float p = mul(exp_(sub(s, peak)), inverse);
                        float g = mul(p, sub(dp, delta));
                        float t13 = mul(g, 0.2236068);
                        a[place] = t13;
                        codes[place] = live ? p : code;
                        whole = whole && live && keep;
some = some || live;
                    }
                    if (some) row_some[row] = 1u;
                }
                if (!whole) dead_pairs = 1u;
                barrier();
                float sum0_0 = ZERO, sum0_1 = ZERO;
                float sum1_0 = ZERO, sum1_1 = ZERO;
                float sum2_0 = ZERO, sum2_1 = ZERO;
                float sum3_0 = ZERO, sum3_1 = ZERO;
                [[dont_unroll]] for (uint from = 0u; from < 128u; from += 16u) {
                    barrier();
                    for (uint x = lid; x < 320u; x += 128u) {
                        uint c = x % 20u;
                        uint at = base_in1 + key_head * 20u + (start_k + min(block + from + x / 20u, length_k - 1u)) * 40u;
                        columns_stage[x] = in1[at + c * 1u];
                    }
                    barrier();
                    if (dead_pairs == 0u)
                        for (uint e = 0u; e < 16u; ++e) {
                            float x0 = columns_stage[e * 20u + tx + 0u], x1 = columns_stage[e * 20u + min(tx + 16u, 19u)];
                            float w0 = a[(ty + 0u) * 129u + from + e];
                            sum0_0 = add(sum0_0, mul(w0, x0));
                            sum0_1 = add(sum0_1, mul(w0, x1));
                            float w1 = a[(ty + 8u) * 129u + from + e];
                            sum1_0 = add(sum1_0, mul(w1, x0));
                            sum1_1 = add(sum1_1, mul(w1, x1));
                            float w2 = a[(ty + 16u) * 129u + from + e];
                            sum2_0 = add(sum2_0, mul(w2, x0));
                            sum2_1 = add(sum2_1, mul(w2, x1));
                            float w3 = a[(ty + 24u) * 129u + from + e];
                            sum3_0 = add(sum3_0, mul(w3, x0));
                            sum3_1 = add(sum3_1, mul(w3, x1));
                        }
                    else
                        for (uint e = 0u; e < 16u; ++e) {
                            float x0 = columns_stage[e * 20u + tx + 0u], x1 = columns_stage[e * 20u + min(tx + 16u, 19u)];
                            float w0 = a[(ty + 0u) * 129u + from + e];
                            bool live0 = !is_equal(codes[(ty + 0u) * 129u + from + e], -1.0);
                            { float more = add(sum0_0, mul(w0, x0)); sum0_0 = live0 ? more : sum0_0; }
                            { float more = add(sum0_1, mul(w0, x1)); sum0_1 = live0 ? more : sum0_1; }
                            float w1 = a[(ty + 8u) * 129u + from + e];
                            bool live1 = !is_equal(codes[(ty + 8u) * 129u + from + e], -1.0);
                            { float more = add(sum1_0, mul(w1, x0)); sum1_0 = live1 ? more : sum1_0; }
                            { float more = add(sum1_1, mul(w1, x1)); sum1_1 = live1 ? more : sum1_1; }
                            float w2 = a[(ty + 16u) * 129u + from + e];
                            bool live2 = !is_equal(codes[(ty + 16u) * 129u + from + e], -1.0);
                            { float more = add(sum2_0, mul(w2, x0)); sum2_0 = live2 ? more : sum2_0; }
                            { float more = add(sum2_1, mul(w2, x1)); sum2_1 = live2 ? more : sum2_1; }
                            float w3 = a[(ty + 24u) * 129u + from + e];
                            bool live3 = !is_equal(codes[(ty + 24u) * 129u + from + e], -1.0);
                            { float more = add(sum3_0, mul(w3, x0)); sum3_0 = live3 ? more : sum3_0; }
                            { float more = add(sum3_1, mul(w3, x1)); sum3_1 = live3 ? more : sum3_1; }
                        }
                }
bool some0 = row_some[ty + 0u] != 0u, some1 = row_some[ty + 8u] != 0u, some2 = row_some[ty + 16u] != 0u, some3 = row_some[ty + 24u] != 0u;
                { float old = dq0_0; float both = add(old, sum0_0); both = fresh0 ? sum0_0 : both; dq0_0 = some0 ? both : old; }
                { float old = dq0_1; float both = add(old, sum0_1); both = fresh0 ? sum0_1 : both; dq0_1 = some0 ? both : old; }
                { float old = dq1_0; float both = add(old, sum1_0); both = fresh1 ? sum1_0 : both; dq1_0 = some1 ? both : old; }
                { float old = dq1_1; float both = add(old, sum1_1); both = fresh1 ? sum1_1 : both; dq1_1 = some1 ? both : old; }
                { float old = dq2_0; float both = add(old, sum2_0); both = fresh2 ? sum2_0 : both; dq2_0 = some2 ? both : old; }
                { float old = dq2_1; float both = add(old, sum2_1); both = fresh2 ? sum2_1 : both; dq2_1 = some2 ? both : old; }
                { float old = dq3_0; float both = add(old, sum3_0); both = fresh3 ? sum3_0 : both; dq3_0 = some3 ? both : old; }
                { float old = dq3_1; float both = add(old, sum3_1); both = fresh3 ? sum3_1 : both; dq3_1 = some3 ? both : old; }
fresh0 = fresh0 && !some0; fresh1 = fresh1 && !some1; fresh2 = fresh2 && !some2; fresh3 = fresh3 && !some3; 
                barrier();
            }
            if (first_row + ty + 0u < length_q && tx + 0u < 20u)
                out0[base_out0 + ((b * queries + first_row + ty + 0u) * 4u + h) * 20u + tx + 0u] = dq0_0;
            if (first_row + ty + 0u < length_q && tx + 16u < 20u)
                out0[base_out0 + ((b * queries + first_row + ty + 0u) * 4u + h) * 20u + tx + 16u] = dq0_1;
            if (first_row + ty + 8u < length_q && tx + 0u < 20u)
                out0[base_out0 + ((b * queries + first_row + ty + 8u) * 4u + h) * 20u + tx + 0u] = dq1_0;
            if (first_row + ty + 8u < length_q && tx + 16u < 20u)
                out0[base_out0 + ((b * queries + first_row + ty + 8u) * 4u + h) * 20u + tx + 16u] = dq1_1;
            if (first_row + ty + 16u < length_q && tx + 0u < 20u)
                out0[base_out0 + ((b * queries + first_row + ty + 16u) * 4u + h) * 20u + tx + 0u] = dq2_0;
            if (first_row + ty + 16u < length_q && tx + 16u < 20u)
                out0[base_out0 + ((b * queries + first_row + ty + 16u) * 4u + h) * 20u + tx + 16u] = dq2_1;
            if (first_row + ty + 24u < length_q && tx + 0u < 20u)
                out0[base_out0 + ((b * queries + first_row + ty + 24u) * 4u + h) * 20u + tx + 0u] = dq3_0;
            if (first_row + ty + 24u < length_q && tx + 16u < 20u)
                out0[base_out0 + ((b * queries + first_row + ty + 24u) * 4u + h) * 20u + tx + 16u] = dq3_1;
            barrier();
        }
    }
}
