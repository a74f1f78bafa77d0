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
// Gradients of keys and values: an invocation has 1 keys of one head, and meets the queries of all heads that read
// it: blocks of 128 queries, in each the heads of the group, one sum each; sums added in sequence.
void main() {
    float none = uintBitsToFloat(0xff800000u), dead = ZERO;
    for (uint b = gl_WorkGroupID.z; b < batches; b += gl_NumWorkGroups.z)
    for (uint key_head = gl_WorkGroupID.y; key_head < 2u; key_head += gl_NumWorkGroups.y) {
        uint start_q = 0u;
        uint start_k = 0u;
        uint length_q = queries;
        uint length_k = keys;
for (uint tile = gl_WorkGroupID.x; tile * 32u < length_k; tile += gl_NumWorkGroups.x) {
            uint first_row = tile * 32u, last_row = min(first_row + 31u, length_k - 1u);
            uint asked0 = first_row + 0u + gl_LocalInvocationID.x;
            uint own0 = min(asked0, length_k - 1u);
            float k0[20];
            {
                uint at = base_in1 + key_head * 20u + (start_k + own0) * 40u;
                [[dont_unroll]] for (uint c = 0u; c < 20u; ++c) k0[c] = in1[at + c * 1u];
            }
            float v0[6];
            {
                uint at = base_in2 + key_head * 6u + (start_k + own0) * 12u;
                [[dont_unroll]] for (uint c = 0u; c < 6u; ++c) v0[c] = in2[at + c * 1u];
            }
            float dk0[20];
            float dv0[6];
            float a0[128];
            float b0[128];
bool fresh_k0 = true, fresh_v0 = true;
            [[dont_unroll]] for (uint c = 0u; c < 20u; ++c) { dk0[c] = ZERO; }
            [[dont_unroll]] for (uint c = 0u; c < 6u; ++c) { dv0[c] = ZERO; }
for (uint block = 0u; block < length_q; block += 128u)
            for (uint h = key_head * 2u; h < key_head * 2u + 2u; ++h) {

                uint query_begin = 0u, query_end = length_q;
                query_begin = uint(clamp(int(first_row) - clamp(4, -(1 << 30), 1 << 30), 0, int(length_q)));
if (block + 128u <= query_begin || block >= query_end) continue;
                [[dont_unroll]] for (uint first = 0u; first < 128u; first += 4u) {
                    bool any = false;
                    [[dont_unroll]] for (uint e = first; e < first + 4u; ++e) {
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
                            any = any || live;
                        }
                    }
if (any) {
                        uint q_at0 = base_in0 + h * 20u + (start_q + min(block + first + 0u, length_q - 1u)) * 80u;
                        uint q_at1 = base_in0 + h * 20u + (start_q + min(block + first + 1u, length_q - 1u)) * 80u;
                        uint q_at2 = base_in0 + h * 20u + (start_q + min(block + first + 2u, length_q - 1u)) * 80u;
                        uint q_at3 = base_in0 + h * 20u + (start_q + min(block + first + 3u, length_q - 1u)) * 80u;
                        uint do_at0 = base_in3 + h * 6u + (start_q + min(block + first + 0u, length_q - 1u)) * 24u;
                        uint do_at1 = base_in3 + h * 6u + (start_q + min(block + first + 1u, length_q - 1u)) * 24u;
                        uint do_at2 = base_in3 + h * 6u + (start_q + min(block + first + 2u, length_q - 1u)) * 24u;
                        uint do_at3 = base_in3 + h * 6u + (start_q + min(block + first + 3u, length_q - 1u)) * 24u;
                        {
                            float d0_0 = ZERO, d0_1 = ZERO, d0_2 = ZERO, d0_3 = ZERO;
                            [[dont_unroll]] for (uint c = 0u; c < 20u; c += 1u) {
                                {
                                    float x0 = in0[q_at0 + c * 1u], x1 = in0[q_at1 + c * 1u], x2 = in0[q_at2 + c * 1u], x3 = in0[q_at3 + c * 1u];
                                    float y0 = k0[c];
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
                                    float x0 = in3[do_at0 + c * 1u], x1 = in3[do_at1 + c * 1u], x2 = in3[do_at2 + c * 1u], x3 = in3[do_at3 + c * 1u];
                                    float y0 = v0[c];
                                    d0_0 = add(d0_0, mul(y0, x0));
                                    d0_1 = add(d0_1, mul(y0, x1));
                                    d0_2 = add(d0_2, mul(y0, x2));
                                    d0_3 = add(d0_3, mul(y0, x3));
                                }
                            }
                            b0[first + 0u] = d0_0; b0[first + 1u] = d0_1; b0[first + 2u] = d0_2; b0[first + 3u] = d0_3; 
                        }
}
                }
                bool whole = true;
                bool some_k0 = false, some_v0 = false;
                [[dont_unroll]] for (uint e = 0u; e < 128u; ++e) {
                    float peak = in4[base_in4 + h * 9u + (start_q + min(block + e, length_q - 1u))], inverse = in5[base_in5 + h * 9u + (start_q + min(block + e, length_q - 1u))], delta = in6[base_in6 + h + (start_q + min(block + e, length_q - 1u)) * 4u];
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
                        float dot = a0[e], dp = b0[e], dropped = ZERO, code = -1.0;
                        bool keep = true;
                        uint i = min(block + e, length_q - 1u), j = own0;
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
some_k0 = some_k0 || live;
                        some_v0 = some_v0 || (live && keep);
                    }
                }
                [[dont_unroll]] for (uint c = 0u; c < 20u; c += 4u) {
                    float sum0_0 = ZERO, sum0_1 = ZERO, sum0_2 = ZERO, sum0_3 = ZERO;
                    if (whole) {
                        [[dont_unroll]] for (uint first = 0u; first < 128u; first += 4u) {
                            uint q_at0 = base_in0 + h * 20u + (start_q + min(block + first + 0u, length_q - 1u)) * 80u;
                            uint q_at1 = base_in0 + h * 20u + (start_q + min(block + first + 1u, length_q - 1u)) * 80u;
                            uint q_at2 = base_in0 + h * 20u + (start_q + min(block + first + 2u, length_q - 1u)) * 80u;
                            uint q_at3 = base_in0 + h * 20u + (start_q + min(block + first + 3u, length_q - 1u)) * 80u;
                            float w0_0 = a0[first + 0u], w0_1 = a0[first + 1u], w0_2 = a0[first + 2u], w0_3 = a0[first + 3u];
                            {
                                float x0 = in0[q_at0 + (c + 0u) * 1u], x1 = in0[q_at1 + (c + 0u) * 1u], x2 = in0[q_at2 + (c + 0u) * 1u], x3 = in0[q_at3 + (c + 0u) * 1u];
                                sum0_0 = add(sum0_0, mul(w0_0, x0));
                                sum0_0 = add(sum0_0, mul(w0_1, x1));
                                sum0_0 = add(sum0_0, mul(w0_2, x2));
                                sum0_0 = add(sum0_0, mul(w0_3, x3));
                            }
                            {
                                float x0 = in0[q_at0 + (c + 1u) * 1u], x1 = in0[q_at1 + (c + 1u) * 1u], x2 = in0[q_at2 + (c + 1u) * 1u], x3 = in0[q_at3 + (c + 1u) * 1u];
                                sum0_1 = add(sum0_1, mul(w0_0, x0));
                                sum0_1 = add(sum0_1, mul(w0_1, x1));
                                sum0_1 = add(sum0_1, mul(w0_2, x2));
                                sum0_1 = add(sum0_1, mul(w0_3, x3));
                            }
                            {
                                float x0 = in0[q_at0 + (c + 2u) * 1u], x1 = in0[q_at1 + (c + 2u) * 1u], x2 = in0[q_at2 + (c + 2u) * 1u], x3 = in0[q_at3 + (c + 2u) * 1u];
                                sum0_2 = add(sum0_2, mul(w0_0, x0));
                                sum0_2 = add(sum0_2, mul(w0_1, x1));
                                sum0_2 = add(sum0_2, mul(w0_2, x2));
                                sum0_2 = add(sum0_2, mul(w0_3, x3));
                            }
                            {
                                float x0 = in0[q_at0 + (c + 3u) * 1u], x1 = in0[q_at1 + (c + 3u) * 1u], x2 = in0[q_at2 + (c + 3u) * 1u], x3 = in0[q_at3 + (c + 3u) * 1u];
                                sum0_3 = add(sum0_3, mul(w0_0, x0));
                                sum0_3 = add(sum0_3, mul(w0_1, x1));
                                sum0_3 = add(sum0_3, mul(w0_2, x2));
                                sum0_3 = add(sum0_3, mul(w0_3, x3));
                            }
                        }
                    } else {
                        [[dont_unroll]] for (uint first = 0u; first < 128u; first += 4u) {
                            uint q_at0 = base_in0 + h * 20u + (start_q + min(block + first + 0u, length_q - 1u)) * 80u;
                            uint q_at1 = base_in0 + h * 20u + (start_q + min(block + first + 1u, length_q - 1u)) * 80u;
                            uint q_at2 = base_in0 + h * 20u + (start_q + min(block + first + 2u, length_q - 1u)) * 80u;
                            uint q_at3 = base_in0 + h * 20u + (start_q + min(block + first + 3u, length_q - 1u)) * 80u;
                            float w0_0 = a0[first + 0u], w0_1 = a0[first + 1u], w0_2 = a0[first + 2u], w0_3 = a0[first + 3u];
                            bool live0_0 = !is_equal(b0[first + 0u], -1.0), live0_1 = !is_equal(b0[first + 1u], -1.0), live0_2 = !is_equal(b0[first + 2u], -1.0), live0_3 = !is_equal(b0[first + 3u], -1.0);
                            if (live0_0 || live0_1 || live0_2 || live0_3) {
                            {
                                float x0 = in0[q_at0 + (c + 0u) * 1u], x1 = in0[q_at1 + (c + 0u) * 1u], x2 = in0[q_at2 + (c + 0u) * 1u], x3 = in0[q_at3 + (c + 0u) * 1u];
                                { float more = add(sum0_0, mul(w0_0, x0)); sum0_0 = live0_0 ? more : sum0_0; }
                                { float more = add(sum0_0, mul(w0_1, x1)); sum0_0 = live0_1 ? more : sum0_0; }
                                { float more = add(sum0_0, mul(w0_2, x2)); sum0_0 = live0_2 ? more : sum0_0; }
                                { float more = add(sum0_0, mul(w0_3, x3)); sum0_0 = live0_3 ? more : sum0_0; }
                            }
                            {
                                float x0 = in0[q_at0 + (c + 1u) * 1u], x1 = in0[q_at1 + (c + 1u) * 1u], x2 = in0[q_at2 + (c + 1u) * 1u], x3 = in0[q_at3 + (c + 1u) * 1u];
                                { float more = add(sum0_1, mul(w0_0, x0)); sum0_1 = live0_0 ? more : sum0_1; }
                                { float more = add(sum0_1, mul(w0_1, x1)); sum0_1 = live0_1 ? more : sum0_1; }
                                { float more = add(sum0_1, mul(w0_2, x2)); sum0_1 = live0_2 ? more : sum0_1; }
                                { float more = add(sum0_1, mul(w0_3, x3)); sum0_1 = live0_3 ? more : sum0_1; }
                            }
                            {
                                float x0 = in0[q_at0 + (c + 2u) * 1u], x1 = in0[q_at1 + (c + 2u) * 1u], x2 = in0[q_at2 + (c + 2u) * 1u], x3 = in0[q_at3 + (c + 2u) * 1u];
                                { float more = add(sum0_2, mul(w0_0, x0)); sum0_2 = live0_0 ? more : sum0_2; }
                                { float more = add(sum0_2, mul(w0_1, x1)); sum0_2 = live0_1 ? more : sum0_2; }
                                { float more = add(sum0_2, mul(w0_2, x2)); sum0_2 = live0_2 ? more : sum0_2; }
                                { float more = add(sum0_2, mul(w0_3, x3)); sum0_2 = live0_3 ? more : sum0_2; }
                            }
                            {
                                float x0 = in0[q_at0 + (c + 3u) * 1u], x1 = in0[q_at1 + (c + 3u) * 1u], x2 = in0[q_at2 + (c + 3u) * 1u], x3 = in0[q_at3 + (c + 3u) * 1u];
                                { float more = add(sum0_3, mul(w0_0, x0)); sum0_3 = live0_0 ? more : sum0_3; }
                                { float more = add(sum0_3, mul(w0_1, x1)); sum0_3 = live0_1 ? more : sum0_3; }
                                { float more = add(sum0_3, mul(w0_2, x2)); sum0_3 = live0_2 ? more : sum0_3; }
                                { float more = add(sum0_3, mul(w0_3, x3)); sum0_3 = live0_3 ? more : sum0_3; }
                            }
                            }
                        }
                    }
                    { float old = dk0[c + 0u]; float both = add(old, sum0_0); both = fresh_k0 ? sum0_0 : both; dk0[c + 0u] = some_k0 ? both : old; }
                    { float old = dk0[c + 1u]; float both = add(old, sum0_1); both = fresh_k0 ? sum0_1 : both; dk0[c + 1u] = some_k0 ? both : old; }
                    { float old = dk0[c + 2u]; float both = add(old, sum0_2); both = fresh_k0 ? sum0_2 : both; dk0[c + 2u] = some_k0 ? both : old; }
                    { float old = dk0[c + 3u]; float both = add(old, sum0_3); both = fresh_k0 ? sum0_3 : both; dk0[c + 3u] = some_k0 ? both : old; }
                }
                [[dont_unroll]] for (uint c = 0u; c < 6u; c += 2u) {
                    float sum0_0 = ZERO, sum0_1 = ZERO;
                    if (whole) {
                        [[dont_unroll]] for (uint first = 0u; first < 128u; first += 4u) {
                            uint do_at0 = base_in3 + h * 6u + (start_q + min(block + first + 0u, length_q - 1u)) * 24u;
                            uint do_at1 = base_in3 + h * 6u + (start_q + min(block + first + 1u, length_q - 1u)) * 24u;
                            uint do_at2 = base_in3 + h * 6u + (start_q + min(block + first + 2u, length_q - 1u)) * 24u;
                            uint do_at3 = base_in3 + h * 6u + (start_q + min(block + first + 3u, length_q - 1u)) * 24u;
                            float w0_0 = b0[first + 0u], w0_1 = b0[first + 1u], w0_2 = b0[first + 2u], w0_3 = b0[first + 3u];
                            {
                                float x0 = in3[do_at0 + (c + 0u) * 1u], x1 = in3[do_at1 + (c + 0u) * 1u], x2 = in3[do_at2 + (c + 0u) * 1u], x3 = in3[do_at3 + (c + 0u) * 1u];
                                sum0_0 = add(sum0_0, mul(w0_0, x0));
                                sum0_0 = add(sum0_0, mul(w0_1, x1));
                                sum0_0 = add(sum0_0, mul(w0_2, x2));
                                sum0_0 = add(sum0_0, mul(w0_3, x3));
                            }
                            {
                                float x0 = in3[do_at0 + (c + 1u) * 1u], x1 = in3[do_at1 + (c + 1u) * 1u], x2 = in3[do_at2 + (c + 1u) * 1u], x3 = in3[do_at3 + (c + 1u) * 1u];
                                sum0_1 = add(sum0_1, mul(w0_0, x0));
                                sum0_1 = add(sum0_1, mul(w0_1, x1));
                                sum0_1 = add(sum0_1, mul(w0_2, x2));
                                sum0_1 = add(sum0_1, mul(w0_3, x3));
                            }
                        }
                    } else {
                        [[dont_unroll]] for (uint first = 0u; first < 128u; first += 4u) {
                            uint do_at0 = base_in3 + h * 6u + (start_q + min(block + first + 0u, length_q - 1u)) * 24u;
                            uint do_at1 = base_in3 + h * 6u + (start_q + min(block + first + 1u, length_q - 1u)) * 24u;
                            uint do_at2 = base_in3 + h * 6u + (start_q + min(block + first + 2u, length_q - 1u)) * 24u;
                            uint do_at3 = base_in3 + h * 6u + (start_q + min(block + first + 3u, length_q - 1u)) * 24u;
                            float w0_0 = b0[first + 0u], w0_1 = b0[first + 1u], w0_2 = b0[first + 2u], w0_3 = b0[first + 3u];
                            bool live0_0 = !is_less(b0[first + 0u], dead), live0_1 = !is_less(b0[first + 1u], dead), live0_2 = !is_less(b0[first + 2u], dead), live0_3 = !is_less(b0[first + 3u], dead);
                            if (live0_0 || live0_1 || live0_2 || live0_3) {
                            {
                                float x0 = in3[do_at0 + (c + 0u) * 1u], x1 = in3[do_at1 + (c + 0u) * 1u], x2 = in3[do_at2 + (c + 0u) * 1u], x3 = in3[do_at3 + (c + 0u) * 1u];
                                { float more = add(sum0_0, mul(w0_0, x0)); sum0_0 = live0_0 ? more : sum0_0; }
                                { float more = add(sum0_0, mul(w0_1, x1)); sum0_0 = live0_1 ? more : sum0_0; }
                                { float more = add(sum0_0, mul(w0_2, x2)); sum0_0 = live0_2 ? more : sum0_0; }
                                { float more = add(sum0_0, mul(w0_3, x3)); sum0_0 = live0_3 ? more : sum0_0; }
                            }
                            {
                                float x0 = in3[do_at0 + (c + 1u) * 1u], x1 = in3[do_at1 + (c + 1u) * 1u], x2 = in3[do_at2 + (c + 1u) * 1u], x3 = in3[do_at3 + (c + 1u) * 1u];
                                { float more = add(sum0_1, mul(w0_0, x0)); sum0_1 = live0_0 ? more : sum0_1; }
                                { float more = add(sum0_1, mul(w0_1, x1)); sum0_1 = live0_1 ? more : sum0_1; }
                                { float more = add(sum0_1, mul(w0_2, x2)); sum0_1 = live0_2 ? more : sum0_1; }
                                { float more = add(sum0_1, mul(w0_3, x3)); sum0_1 = live0_3 ? more : sum0_1; }
                            }
                            }
                        }
                    }
                    { float old = dv0[c + 0u]; float both = add(old, sum0_0); both = fresh_v0 ? sum0_0 : both; dv0[c + 0u] = some_v0 ? both : old; }
                    { float old = dv0[c + 1u]; float both = add(old, sum0_1); both = fresh_v0 ? sum0_1 : both; dv0[c + 1u] = some_v0 ? both : old; }
                }
fresh_k0 = fresh_k0 && !some_k0; fresh_v0 = fresh_v0 && !some_v0; 
            }
            if (asked0 < length_k) {
                uint line = (b * keys + own0) * 2u + key_head;
                [[dont_unroll]] for (uint c = 0u; c < 20u; ++c) out0[base_out0 + line * 20u + c] = dk0[c];
                [[dont_unroll]] for (uint c = 0u; c < 6u; ++c) out1[base_out1 + line * 6u + c] = dv0[c];
            }
        }
    }
}
