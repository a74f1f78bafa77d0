#version 450
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { float in1[]; };
layout(std430, binding = 2) readonly buffer Buffer_in2 { float in2[]; };
layout(std430, binding = 3) readonly buffer Buffer_in3 { int in3[]; };
layout(std430, binding = 4) buffer Buffer_out0 { float out0[]; };
layout(std430, binding = 5) buffer Buffer_out1 { float out1[]; };
layout(std430, binding = 6) buffer Buffer_out2 { float out2[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_in1;
    uint base_in2;
    uint base_in3;
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
// A workgroup has a block of 128 keys and 4 rows that meet it: queries, each with all heads of the key head's group. So
// keys and values are read once for all of them. First an invocation is a key, then it is a column of the values, while
// loads of what comes next are under way.
shared vec4 queries_of[64];
shared float keys_of[2080];
shared float s[576], line[68], peak_of[4];
shared vec2 weights[256];  // -1: no part in the values
shared uint some_live, some_dead;

void main() {
    float none = uintBitsToFloat(0xff800000u), dead = ZERO;
    uint e = gl_LocalInvocationID.x, blocks = (keys + 127u) / 128u, all_rows = queries * 2u;
    uint parts = (all_rows + 3u) / 4u, column = e % 64u, side = e / 64u;
    float next[16], ahead[32];
    for (uint b = gl_WorkGroupID.z; b < batches; b += gl_NumWorkGroups.z)
    for (uint y = gl_WorkGroupID.y; y < blocks; y += gl_NumWorkGroups.y)
    for (uint x = gl_WorkGroupID.x; x < parts * 2u; x += gl_NumWorkGroups.x) {
        uint key_head = x / parts, first = x % parts * 4u, block = y * 128u;
        uint start_q = 0u;
        uint start_k = 0u;
        uint length_q = queries;
        uint length_k = keys;
        if (e == 0u) { some_live = 0u; some_dead = 0u; }
        barrier();
        bool near;
        {
            uint h = key_head * 2u, first_row = first / 2u, last_row = min(first + 3u, all_rows - 1u) / 2u;
            uint key_begin = 0u, key_end = length_k;
            near = block < key_end && block + 128u > key_begin;
        }
        bool full = block + 128u <= length_k;
        uint seen = 0u;  // bit r: row r sees the key
        if (near) {
            [[dont_unroll]] for (uint r = 0u; r < 4u; ++r) {
                uint n = min(first + r, all_rows - 1u), own = n / 2u, h = key_head * 2u + n % 2u;
                int t4 = in3[base_in3];
                bool live = block + e < length_k;
                {
                    uint i = own, j = min(block + e, length_k - 1u);
                    int t3 = int(j);
                    bool t5 = (t3 <= t4);
                    live = live && t5;
                }
                seen |= (live ? 1u : 0u) << r;
            }
        }
        if (seen != 0u) some_live = 1u;
        barrier();
        if (some_live == 0u) {  // no key that the rows could see
            [[dont_unroll]] for (uint r = 0u; r < 4u; ++r) if (first + r < all_rows) {
                uint n = min(first + r, all_rows - 1u), own = n / 2u, h = key_head * 2u + n % 2u;
                uint at = ((b * 4u + h) * queries + own) * blocks + y;
                [[dont_unroll]] for (uint c = e; c < 64u; c += 128u) out2[base_out2 + at * 64u + c] = dead;
                if (e == r) {
                    out0[base_out0 + at] = none;
                    out1[base_out1 + at] = dead;
                }
            }
            continue;
        }
        if (full) [[unroll]] for (uint u = 0u; u < 16u; ++u) {
            uint c = 0u + e % 16u;
            uint at = base_in1 + key_head * 64u + (start_k + block + e / 16u + u * 8u) * 128u;
            next[u] = in1[at + c * 1u];
        }
        else [[unroll]] for (uint u = 0u; u < 16u; ++u) {
            uint c = 0u + e % 16u;
            uint at = base_in1 + key_head * 64u + (start_k + min(block + e / 16u + u * 8u, length_k - 1u)) * 128u;
            next[u] = in1[at + c * 1u];
        }

        [[unroll]] for (uint x = e; x < 256u; x += 128u) {
            uint c = x % 64u, r = x / 64u;
            uint n = min(first + r, all_rows - 1u), own = n / 2u, h = key_head * 2u + n % 2u;
            uint at = base_in0 + h * 64u;
            float value = in0[at + c * 1u];
            queries_of[c * 1u + r / 4u][r % 4u] = value;
        }
        float d0 = ZERO, d1 = ZERO, d2 = ZERO, d3 = ZERO;
        uint c = min(column, 63u);
        [[dont_unroll]] for (uint from = 0u; from < 64u; from += 16u) {
            barrier();
            [[unroll]] for (uint u = 0u; u < 16u; ++u) keys_of[e % 16u * 130u + e / 16u + u * 8u] = next[u];
            barrier();
            if (from + 16u < 64u) {
                if (full) [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                    uint c = from + 16u + e % 16u;
                    uint at = base_in1 + key_head * 64u + (start_k + block + e / 16u + u * 8u) * 128u;
                    next[u] = in1[at + c * 1u];
                }
                else [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                    uint c = from + 16u + e % 16u;
                    uint at = base_in1 + key_head * 64u + (start_k + min(block + e / 16u + u * 8u, length_k - 1u)) * 128u;
                    next[u] = in1[at + c * 1u];
                }

            } else {
                if (full) [[unroll]] for (uint u = 0u; u < 32u; ++u) {
                    uint at = base_in2 + key_head * 64u + (start_k + block + 0u + u) * 128u;
                    ahead[u] = in2[at + c * 1u];
                }
                else [[unroll]] for (uint u = 0u; u < 32u; ++u) {
                    uint at = base_in2 + key_head * 64u + (start_k + min(block + 0u + u, length_k - 1u)) * 128u;
                    ahead[u] = in2[at + c * 1u];
                }

            }
            [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                float x = keys_of[u * 130u + e];
                vec4 q0 = queries_of[(from + u) * 1u + 0u];
                d0 = add(d0, mul(q0[0], x));
                d1 = add(d1, mul(q0[1], x));
                d2 = add(d2, mul(q0[2], x));
                d3 = add(d3, mul(q0[3], x));
            }
        }
        s[0u + e] = d0;
        s[144u + e] = d1;
        s[288u + e] = d2;
        s[432u + e] = d3;
        bool whole = true;
        [[dont_unroll]] for (uint r = 0u; r < 4u; ++r) {
            uint n = min(first + r, all_rows - 1u), own = n / 2u, h = key_head * 2u + n % 2u;
            int t4 = in3[base_in3];
            float dot = s[r * 144u + e];
            uint i = own, j = min(block + e, length_k - 1u);
            float t2 = mul(dot, 0.125);
            float score = t2;
            score = (seen >> r & 1u) != 0u ? score : none;
            s[r * 144u + e] = score;
            whole = whole && !is_equal(score, none);
        }
        if (!whole) some_dead = 1u;
        barrier();
        // Sixteen invocations have a row: lanes tx, tx + 16, ... of the block.
        uint ty = e / 16u, tx = e % 16u;
        if (ty < 4u) {
            float peak = none;
            for (uint u = 0u; u < 128u; u += 16u) peak = maximum(peak, s[ty * 144u + tx + u]);
            line[ty * 17u + tx] = peak;
        }
        barrier();
        float row_peak = none;
        if (e < 4u) {
            for (uint u = 0u; u < 16u; ++u) row_peak = maximum(row_peak, line[e * 17u + u]);
            peak_of[e] = row_peak;
        }
        barrier();
        [[dont_unroll]] for (uint r = 0u; r < 4u; ++r) {
            float score = s[r * 144u + e], gone = -1.0;
            float w = exp_(sub(score, peak_of[r]));
            bool live = !is_equal(score, none);
            s[r * 144u + e] = live ? w : dead;
            weights[(e * 2u + r / 2u)][r % 2u] = live ? w : gone;
        }
        barrier();
        // The tree over 128 lanes: strides 64, 32 and 16 meet in one invocation, 8 to 1 in the one that has the row.
        if (ty < 4u) {
            float w0 = s[ty * 144u + tx + 0u], w1 = s[ty * 144u + tx + 16u], w2 = s[ty * 144u + tx + 32u], w3 = s[ty * 144u + tx + 48u], w4 = s[ty * 144u + tx + 64u], w5 = s[ty * 144u + tx + 80u], w6 = s[ty * 144u + tx + 96u], w7 = s[ty * 144u + tx + 112u];
            line[ty * 17u + tx] = add(add(add(w0, w4), add(w2, w6)), add(add(w1, w5), add(w3, w7)));
        }
        barrier();
        if (e < 4u && first + e < all_rows) {
            float w0 = line[e * 17u + 0u], w1 = line[e * 17u + 1u], w2 = line[e * 17u + 2u], w3 = line[e * 17u + 3u], w4 = line[e * 17u + 4u], w5 = line[e * 17u + 5u], w6 = line[e * 17u + 6u], w7 = line[e * 17u + 7u], w8 = line[e * 17u + 8u], w9 = line[e * 17u + 9u], w10 = line[e * 17u + 10u], w11 = line[e * 17u + 11u], w12 = line[e * 17u + 12u], w13 = line[e * 17u + 13u], w14 = line[e * 17u + 14u], w15 = line[e * 17u + 15u];
            w0 = add(w0, w8); w1 = add(w1, w9); w2 = add(w2, w10); w3 = add(w3, w11); w4 = add(w4, w12); w5 = add(w5, w13); w6 = add(w6, w14); w7 = add(w7, w15);
            w0 = add(w0, w4); w1 = add(w1, w5); w2 = add(w2, w6); w3 = add(w3, w7);
            w0 = add(w0, w2); w1 = add(w1, w3);
            w0 = add(w0, w1);
            uint n = min(first + e, all_rows - 1u), own = n / 2u, h = key_head * 2u + n % 2u;
            uint at = ((b * 4u + h) * queries + own) * blocks + y;
            out0[base_out0 + at] = row_peak;
            out1[base_out1 + at] = w0;
        }
        bool careful = some_dead != 0u;
        uint no_part = 0xbf800000u;  // -1, which no weight is
        float sum0 = ZERO, sum1 = ZERO;
        [[dont_unroll]] for (uint from = 0u; from < 128u; from += 32u) {
            float now[32];
            [[unroll]] for (uint u = 0u; u < 32u; ++u) now[u] = ahead[u];
            if (from + 32u < 128u) {
                if (full) [[unroll]] for (uint u = 0u; u < 32u; ++u) {
                    uint at = base_in2 + key_head * 64u + (start_k + block + from + 32u + u) * 128u;
                    ahead[u] = in2[at + c * 1u];
                }
                else [[unroll]] for (uint u = 0u; u < 32u; ++u) {
                    uint at = base_in2 + key_head * 64u + (start_k + min(block + from + 32u + u, length_k - 1u)) * 128u;
                    ahead[u] = in2[at + c * 1u];
                }

            }
            if (careful) [[unroll]] for (uint u = 0u; u < 32u; ++u) {
                vec2 w0 = weights[((from + u) * 2u + side)];
                { float w = w0[0], more = add(sum0, mul(w, now[u])); bool out_ = floatBitsToUint(w) == no_part; sum0 = out_ ? sum0 : more; }
                { float w = w0[1], more = add(sum1, mul(w, now[u])); bool out_ = floatBitsToUint(w) == no_part; sum1 = out_ ? sum1 : more; }
            }
            else [[unroll]] for (uint u = 0u; u < 32u; ++u) {
                vec2 w0 = weights[((from + u) * 2u + side)];
                sum0 = add(sum0, mul(w0[0], now[u]));
                sum1 = add(sum1, mul(w0[1], now[u]));
            }
        }
        if (column < 64u && first + side * 2u + 0u < all_rows) {
            uint n = min(first + side * 2u + 0u, all_rows - 1u), own = n / 2u, h = key_head * 2u + n % 2u;
            uint at = ((b * 4u + h) * queries + own) * blocks + y;
            out2[base_out2 + at * 64u + c] = sum0;
        }
        if (column < 64u && first + side * 2u + 1u < all_rows) {
            uint n = min(first + side * 2u + 1u, all_rows - 1u), own = n / 2u, h = key_head * 2u + n % 2u;
            uint at = ((b * 4u + h) * queries + own) * blocks + y;
            out2[base_out2 + at * 64u + c] = sum1;
        }
        barrier();
    }
}
