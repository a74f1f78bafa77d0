#version 450
layout(local_size_x = 8, local_size_y = 4, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 0) readonly buffer Wide_in0 { vec4 wide_in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { float in1[]; };
layout(std430, binding = 1) readonly buffer Wide_in1 { vec4 wide_in1[]; };
layout(std430, binding = 2) readonly buffer Buffer_in2 { float in2[]; };
layout(std430, binding = 3) buffer Buffer_out0 { float out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_in1;
    uint base_in2;
    uint base_out0;
    uint batches;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

// out[batch, m, n] = epilogue(sum over k of a[batch, m, k] * b[batch, k, n]).
// Order along k: in sequence from +0 inside blocks of 128, block sums added in sequence.
#extension GL_EXT_control_flow_attributes : require
// A workgroup has 2 rows of the result by 32 columns. Its invocations are 4 slices, and slice s
// computes the sums of the blocks s, s + 4, ... of k, an invocation those of 4 columns. They meet in shared
// memory, where 8 steps of a at a time lie before. Steps past the end of k multiply +0 by -0: adding -0 changes no sum.
shared vec4 held[32];

void main() {
    uint local = gl_LocalInvocationIndex, lane = local % 8u, slice = local / 8u;
    float past_a = ZERO, past_b = NEGATIVE_ZERO;
    for (uint batch = gl_WorkGroupID.z; batch < batches; batch += gl_NumWorkGroups.z)
    for (uint tile_row = gl_WorkGroupID.y; tile_row * 2u < 6u; tile_row += gl_NumWorkGroups.y)
    for (uint tile_column = gl_WorkGroupID.x; tile_column * 32u < 40u; tile_column += gl_NumWorkGroups.x) {
        uint i0 = batch;
        uint first_m = tile_row * 2u, first_n = tile_column * 32u;
        // The columns of an invocation; spare ones read the last and discard the result.
        uint many_at[1] = uint[1](min(first_n + lane * 4u, 36u));
        vec4 next[1];
        vec4 ahead[4], now[4];
        vec4 total0 = vec4(ZERO);
        vec4 total1 = vec4(ZERO);
        [[dont_unroll]] for (uint round = 0u; round < 200u; round += 512u) {
            uint steps = min(128u, 200u - round), block = round + slice * 128u;
            float sum0_0 = ZERO, sum0_1 = ZERO, sum0_2 = ZERO, sum0_3 = ZERO;
            float sum1_0 = ZERO, sum1_1 = ZERO, sum1_2 = ZERO, sum1_3 = ZERO;
            [[unroll]] for (uint u = 0u; u < 1u; ++u) {
                uint e = min(local + u * 32u, 15u);
                uint k = round + e / 4u * 128u + e % 2u * 4u;
                uint m = first_m + e / 2u % 2u;
                bool inside = k < 200u;
                k = min(k, 196u);
                vec4 value = wide_in0[base_in0 / 4u + m * 50u + (k / 4u)], past = vec4(past_a);
                next[u] = inside ? value : past;
            }
            [[unroll]] for (uint u = 0u; u < 4u; ++u) {
                uint k = block + u;
                uint n = many_at[0];
                bool inside = k < 200u;
                k = min(k, 199u);
                vec4 value = wide_in1[base_in1 / 4u + (n / 4u) + k * 10u], past = vec4(past_b);
                ahead[u] = inside ? value : past;
            }
            [[dont_unroll]] for (uint stage = 0u; stage < steps; stage += 8u) {
                barrier();
                [[unroll]] for (uint u = 0u; u < 1u; ++u) {
                    uint e = local + u * 32u;
                    if (e < 16u) held[e + e / 4u] = next[u];
                }
                barrier();
                if (stage + 8u < steps) {
                    [[unroll]] for (uint u = 0u; u < 1u; ++u) {
                        uint e = min(local + u * 32u, 15u);
                        uint k = round + stage + 8u + e / 4u * 128u + e % 2u * 4u;
                        uint m = first_m + e / 2u % 2u;
                        bool inside = k < 200u;
                        k = min(k, 196u);
                        vec4 value = wide_in0[base_in0 / 4u + m * 50u + (k / 4u)], past = vec4(past_a);
                        next[u] = inside ? value : past;
                    }
                }
                [[dont_unroll]] for (uint some = 0u; some < 8u && stage + some < steps; some += 4u) {
                    now = ahead;
                    if (stage + some + 4u < steps) {
                        [[unroll]] for (uint u = 0u; u < 4u; ++u) {
                            uint k = block + stage + some + 4u + u;
                            uint n = many_at[0];
                            bool inside = k < 200u;
                            k = min(k, 199u);
                            vec4 value = wide_in1[base_in1 / 4u + (n / 4u) + k * 10u], past = vec4(past_b);
                            ahead[u] = inside ? value : past;
                        }
                    }
                    [[unroll]] for (uint four = 0u; four < 1u; ++four) {
                        uint from = slice * 5u + some / 4u + four;
                        vec4 a_;
                        a_ = held[from + 0u];
                        sum0_0 = add(sum0_0, mul(a_[0], now[four * 4u + 0u][0]));
                        sum0_1 = add(sum0_1, mul(a_[0], now[four * 4u + 0u][1]));
                        sum0_2 = add(sum0_2, mul(a_[0], now[four * 4u + 0u][2]));
                        sum0_3 = add(sum0_3, mul(a_[0], now[four * 4u + 0u][3]));
                        sum0_0 = add(sum0_0, mul(a_[1], now[four * 4u + 1u][0]));
                        sum0_1 = add(sum0_1, mul(a_[1], now[four * 4u + 1u][1]));
                        sum0_2 = add(sum0_2, mul(a_[1], now[four * 4u + 1u][2]));
                        sum0_3 = add(sum0_3, mul(a_[1], now[four * 4u + 1u][3]));
                        sum0_0 = add(sum0_0, mul(a_[2], now[four * 4u + 2u][0]));
                        sum0_1 = add(sum0_1, mul(a_[2], now[four * 4u + 2u][1]));
                        sum0_2 = add(sum0_2, mul(a_[2], now[four * 4u + 2u][2]));
                        sum0_3 = add(sum0_3, mul(a_[2], now[four * 4u + 2u][3]));
                        sum0_0 = add(sum0_0, mul(a_[3], now[four * 4u + 3u][0]));
                        sum0_1 = add(sum0_1, mul(a_[3], now[four * 4u + 3u][1]));
                        sum0_2 = add(sum0_2, mul(a_[3], now[four * 4u + 3u][2]));
                        sum0_3 = add(sum0_3, mul(a_[3], now[four * 4u + 3u][3]));
                        a_ = held[from + 2u];
                        sum1_0 = add(sum1_0, mul(a_[0], now[four * 4u + 0u][0]));
                        sum1_1 = add(sum1_1, mul(a_[0], now[four * 4u + 0u][1]));
                        sum1_2 = add(sum1_2, mul(a_[0], now[four * 4u + 0u][2]));
                        sum1_3 = add(sum1_3, mul(a_[0], now[four * 4u + 0u][3]));
                        sum1_0 = add(sum1_0, mul(a_[1], now[four * 4u + 1u][0]));
                        sum1_1 = add(sum1_1, mul(a_[1], now[four * 4u + 1u][1]));
                        sum1_2 = add(sum1_2, mul(a_[1], now[four * 4u + 1u][2]));
                        sum1_3 = add(sum1_3, mul(a_[1], now[four * 4u + 1u][3]));
                        sum1_0 = add(sum1_0, mul(a_[2], now[four * 4u + 2u][0]));
                        sum1_1 = add(sum1_1, mul(a_[2], now[four * 4u + 2u][1]));
                        sum1_2 = add(sum1_2, mul(a_[2], now[four * 4u + 2u][2]));
                        sum1_3 = add(sum1_3, mul(a_[2], now[four * 4u + 2u][3]));
                        sum1_0 = add(sum1_0, mul(a_[3], now[four * 4u + 3u][0]));
                        sum1_1 = add(sum1_1, mul(a_[3], now[four * 4u + 3u][1]));
                        sum1_2 = add(sum1_2, mul(a_[3], now[four * 4u + 3u][2]));
                        sum1_3 = add(sum1_3, mul(a_[3], now[four * 4u + 3u][3]));
                    }
                }
            }
            barrier();
            held[(slice * 1u + 0u) * 8u + lane] = vec4(sum0_0, sum0_1, sum0_2, sum0_3);
            barrier();
            if (local < 8u) [[unroll]] for (uint from = 0u; from < 4u; ++from) {
                vec4 sum = held[from * 8u + local], total = total0;
                vec4 next = vec4(add(total.x, sum.x), add(total.y, sum.y), add(total.z, sum.z), add(total.w, sum.w));
                next = round + from * 128u < 200u ? next : total;
                total0 = round + from == 0u ? sum : next;
            }
            barrier();
            held[(slice * 1u + 0u) * 8u + lane] = vec4(sum1_0, sum1_1, sum1_2, sum1_3);
            barrier();
            if (local < 8u) [[unroll]] for (uint from = 0u; from < 4u; ++from) {
                vec4 sum = held[from * 8u + local], total = total1;
                vec4 next = vec4(add(total.x, sum.x), add(total.y, sum.y), add(total.z, sum.z), add(total.w, sum.w));
                next = round + from * 128u < 200u ? next : total;
                total1 = round + from == 0u ? sum : next;
            }
        }
        float total[8];
        total[0] = total0[0]; total[1] = total0[1]; total[2] = total0[2]; total[3] = total0[3];
        total[4] = total1[0]; total[5] = total1[1]; total[6] = total1[2]; total[7] = total1[3];
        if (local < 8u)
        [[dont_unroll]] for (uint e = 0u; e < 8u; ++e) {
            uint q = (e / 4u * 1u + local / 8u) * 4u + e % 4u, c = q % 4u;
            uint m = first_m + q / 4u;
            uint n = first_n + lane * 4u + c;
            if (q < 8u && m < 6u && n < 40u) {
                uint at = (batch * 6u + m) * 40u + n;
                float sum = total[e];
                float t1 = in2[base_in2 + n];
                float t2 = add(sum, t1);
                float t3 = maximum(t2, ZERO);
                out0[base_out0 + at] = t3;
            }
        }
    }
}
