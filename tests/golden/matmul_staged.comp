#version 450
layout(local_size_x = 8, local_size_y = 4, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 0) readonly buffer Wide_in0 { vec4 wide_in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { float in1[]; };
layout(std430, binding = 1) readonly buffer Wide_in1 { vec4 wide_in1[]; };
layout(std430, binding = 2) readonly buffer Buffer_in2 { float in2[]; };
layout(std430, binding = 3) buffer Buffer_out0 { float out0[]; };
layout(std430, binding = 3) buffer Wide_out0 { vec4 wide_out0[]; };
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
// A workgroup has a tile of 16 x 32. While it multiplies 8 steps of k that lie in shared memory,
// the loads of the next ones are under way. Steps past the end of k multiply +0 by -0: adding -0 changes no sum.
shared vec4 held[112];
#define TILE_a(k, m4) held[(k) * 5u + (m4)]
#define TILE_b(k, n4) held[40u + (k) * 9u + (n4)]

void main() {
    uint local = gl_LocalInvocationIndex;
    // 32 neighbours have 4 x 8 places of the tile: the fewer different vectors they read, the better.
    uint local_n = local / 32u % 1u * 8u + local % 8u;
    uint local_m = local / 32u * 4u + local % 32u / 8u;
    float past_a = ZERO, past_b = NEGATIVE_ZERO;
    for (uint batch = gl_WorkGroupID.z; batch < batches; batch += gl_NumWorkGroups.z)
    for (uint tile_row = gl_WorkGroupID.y; tile_row * 16u < 6u; tile_row += gl_NumWorkGroups.y)
    for (uint tile_column = gl_WorkGroupID.x; tile_column * 32u < 40u; tile_column += gl_NumWorkGroups.x) {
        uint i0 = batch;
        uint first_m = tile_row * 16u, first_n = tile_column * 32u;
        vec4 next_a[1];
        vec4 next_b[2];
        float total0_0 = ZERO, total0_1 = ZERO, total0_2 = ZERO, total0_3 = ZERO, total1_0 = ZERO, total1_1 = ZERO, total1_2 = ZERO, total1_3 = ZERO, total2_0 = ZERO, total2_1 = ZERO, total2_2 = ZERO, total2_3 = ZERO, total3_0 = ZERO, total3_1 = ZERO, total3_2 = ZERO, total3_3 = ZERO;
        [[unroll]] for (uint u = 0u; u < 1u; ++u) {
            uint m = (local + u * 32u) / 2u, k = (local + u * 32u) % 2u * 4u;
            k += 0u;
            m = min(first_m + m, 5u);
            next_a[u] = wide_in0[base_in0 / 4u + m * 50u + (k / 4u)];
        }
        [[unroll]] for (uint u = 0u; u < 2u; ++u) {
            uint n = (local + u * 32u) % 8u * 4u, k = (local + u * 32u) / 8u;
            k += 0u;
            n = min(first_n + n, 36u);
            next_b[u] = wide_in1[base_in1 / 4u + (n / 4u) + k * 10u];
        }
        [[dont_unroll]] for (uint round = 0u; round < 200u; round += 128u) {
            uint steps = min(128u, 200u - round);
            float sum0_0 = ZERO, sum0_1 = ZERO, sum0_2 = ZERO, sum0_3 = ZERO, sum1_0 = ZERO, sum1_1 = ZERO, sum1_2 = ZERO, sum1_3 = ZERO, sum2_0 = ZERO, sum2_1 = ZERO, sum2_2 = ZERO, sum2_3 = ZERO, sum3_0 = ZERO, sum3_1 = ZERO, sum3_2 = ZERO, sum3_3 = ZERO;
            [[dont_unroll]] for (uint stage = 0u; stage < steps; stage += 8u) {
                barrier();
                [[unroll]] for (uint u = 0u; u < 1u; ++u) {
                    uint m = (local + u * 32u) / 2u, k = (local + u * 32u) % 2u * 4u;
                    [[unroll]] for (uint c = 0u; c < 4u; ++c) TILE_a(k + c, m / 4u)[m % 4u] = next_a[u][c];
                }
                [[unroll]] for (uint u = 0u; u < 2u; ++u) {
                    uint n = (local + u * 32u) % 8u * 4u, k = (local + u * 32u) / 8u;
                    TILE_b(k, n / 4u) = next_b[u];
                }
                barrier();
                if (round + stage + 8u < 200u) {
                    [[unroll]] for (uint u = 0u; u < 1u; ++u) {
                        uint m = (local + u * 32u) / 2u, k = (local + u * 32u) % 2u * 4u;
                        k += round + stage + 8u;
                        m = min(first_m + m, 5u);
                        next_a[u] = wide_in0[base_in0 / 4u + m * 50u + (k / 4u)];
                    }
                    [[unroll]] for (uint u = 0u; u < 2u; ++u) {
                        uint n = (local + u * 32u) % 8u * 4u, k = (local + u * 32u) / 8u;
                        k += round + stage + 8u;
                        n = min(first_n + n, 36u);
                        next_b[u] = wide_in1[base_in1 / 4u + (n / 4u) + k * 10u];
                    }
                }
                [[dont_unroll]] for (uint s = 0u; s < 8u; ++s) {
                    vec4 a0 = TILE_a(s, 0u + local_m);
                    vec4 b0 = TILE_b(s, 0u + local_n);
                    sum0_0 = add(sum0_0, mul(a0[0], b0[0]));
                    sum0_1 = add(sum0_1, mul(a0[0], b0[1]));
                    sum0_2 = add(sum0_2, mul(a0[0], b0[2]));
                    sum0_3 = add(sum0_3, mul(a0[0], b0[3]));
                    sum1_0 = add(sum1_0, mul(a0[1], b0[0]));
                    sum1_1 = add(sum1_1, mul(a0[1], b0[1]));
                    sum1_2 = add(sum1_2, mul(a0[1], b0[2]));
                    sum1_3 = add(sum1_3, mul(a0[1], b0[3]));
                    sum2_0 = add(sum2_0, mul(a0[2], b0[0]));
                    sum2_1 = add(sum2_1, mul(a0[2], b0[1]));
                    sum2_2 = add(sum2_2, mul(a0[2], b0[2]));
                    sum2_3 = add(sum2_3, mul(a0[2], b0[3]));
                    sum3_0 = add(sum3_0, mul(a0[3], b0[0]));
                    sum3_1 = add(sum3_1, mul(a0[3], b0[1]));
                    sum3_2 = add(sum3_2, mul(a0[3], b0[2]));
                    sum3_3 = add(sum3_3, mul(a0[3], b0[3]));
                }
            }
            bool first = round == 0u;
            float next;
            next = add(total0_0, sum0_0);
            total0_0 = first ? sum0_0 : next;
            next = add(total0_1, sum0_1);
            total0_1 = first ? sum0_1 : next;
            next = add(total0_2, sum0_2);
            total0_2 = first ? sum0_2 : next;
            next = add(total0_3, sum0_3);
            total0_3 = first ? sum0_3 : next;
            next = add(total1_0, sum1_0);
            total1_0 = first ? sum1_0 : next;
            next = add(total1_1, sum1_1);
            total1_1 = first ? sum1_1 : next;
            next = add(total1_2, sum1_2);
            total1_2 = first ? sum1_2 : next;
            next = add(total1_3, sum1_3);
            total1_3 = first ? sum1_3 : next;
            next = add(total2_0, sum2_0);
            total2_0 = first ? sum2_0 : next;
            next = add(total2_1, sum2_1);
            total2_1 = first ? sum2_1 : next;
            next = add(total2_2, sum2_2);
            total2_2 = first ? sum2_2 : next;
            next = add(total2_3, sum2_3);
            total2_3 = first ? sum2_3 : next;
            next = add(total3_0, sum3_0);
            total3_0 = first ? sum3_0 : next;
            next = add(total3_1, sum3_1);
            total3_1 = first ? sum3_1 : next;
            next = add(total3_2, sum3_2);
            total3_2 = first ? sum3_2 : next;
            next = add(total3_3, sum3_3);
            total3_3 = first ? sum3_3 : next;
        }
        float total[16];
        total[0] = total0_0; total[1] = total0_1; total[2] = total0_2; total[3] = total0_3;
        total[4] = total1_0; total[5] = total1_1; total[6] = total1_2; total[7] = total1_3;
        total[8] = total2_0; total[9] = total2_1; total[10] = total2_2; total[11] = total2_3;
        total[12] = total3_0; total[13] = total3_1; total[14] = total3_2; total[15] = total3_3;
        [[unroll]] for (uint e = 0u; e < 4u; ++e) {
            uint four = e;
            uint r = four / 1u, c = four % 1u;
            uint m = first_m + r / 4u * 16u + local_m * 4u + r % 4u;
            uint first_column = first_n + c * 32u + local_n * 4u;
            if (m < 6u && first_column < 40u) {
                vec4 result0;
                [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                    uint n = first_column + i, at = (batch * 6u + m) * 40u + n;
                    float sum = total[e * 4u + i];
                    float t1 = in2[base_in2 + n];
                    float t2 = add(sum, t1);
                    float t3 = maximum(t2, ZERO);
                    result0[i] = t3;
                }
                uint at = (batch * 6u + m) * 40u + first_column;
                wide_out0[(base_out0 + at) / 4u] = result0;
            }
        }
    }
}
