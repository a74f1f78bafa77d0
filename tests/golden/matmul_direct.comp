#version 450
layout(local_size_x = 8, local_size_y = 8, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { float in1[]; };
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
void main() {
    uint local_n = gl_LocalInvocationID.x;
    uint local_m = gl_LocalInvocationID.y;
    for (uint batch = gl_WorkGroupID.z; batch < batches; batch += gl_NumWorkGroups.z)
    for (uint tile_row = gl_WorkGroupID.y; tile_row * 32u < 6u; tile_row += gl_NumWorkGroups.y)
    for (uint tile_column = gl_WorkGroupID.x; tile_column * 32u < 40u; tile_column += gl_NumWorkGroups.x) {
        uint i0 = batch;
        // Spare rows and columns read the last ones and discard the result.
        uint row0 = min(tile_row * 32u + 0u + local_m, 5u);
        uint row1 = min(tile_row * 32u + 8u + local_m, 5u);
        uint row2 = min(tile_row * 32u + 16u + local_m, 5u);
        uint row3 = min(tile_row * 32u + 24u + local_m, 5u);
        uint column0 = min(tile_column * 32u + 0u + local_n, 39u);
        uint column1 = min(tile_column * 32u + 8u + local_n, 39u);
        uint column2 = min(tile_column * 32u + 16u + local_n, 39u);
        uint column3 = min(tile_column * 32u + 24u + local_n, 39u);
        float total[16];
        for (uint e = 0u; e < 16u; ++e) total[e] = ZERO;
        for (uint block = 0u; block < 200u; block += 128u) {
            uint block_end = min(block + 128u, 200u);
            float sum0_0 = ZERO, sum0_1 = ZERO, sum0_2 = ZERO, sum0_3 = ZERO;
            float sum1_0 = ZERO, sum1_1 = ZERO, sum1_2 = ZERO, sum1_3 = ZERO;
            float sum2_0 = ZERO, sum2_1 = ZERO, sum2_2 = ZERO, sum2_3 = ZERO;
            float sum3_0 = ZERO, sum3_1 = ZERO, sum3_2 = ZERO, sum3_3 = ZERO;
            for (uint k = block; k < block_end; ++k) {
                float a0 = in0[base_in0 + row0 * 200u + k];
                float a1 = in0[base_in0 + row1 * 200u + k];
                float a2 = in0[base_in0 + row2 * 200u + k];
                float a3 = in0[base_in0 + row3 * 200u + k];
                float b0 = in1[base_in1 + k * 40u + column0];
                float b1 = in1[base_in1 + k * 40u + column1];
                float b2 = in1[base_in1 + k * 40u + column2];
                float b3 = in1[base_in1 + k * 40u + column3];
                sum0_0 = add(sum0_0, mul(a0, b0));
                sum0_1 = add(sum0_1, mul(a0, b1));
                sum0_2 = add(sum0_2, mul(a0, b2));
                sum0_3 = add(sum0_3, mul(a0, b3));
                sum1_0 = add(sum1_0, mul(a1, b0));
                sum1_1 = add(sum1_1, mul(a1, b1));
                sum1_2 = add(sum1_2, mul(a1, b2));
                sum1_3 = add(sum1_3, mul(a1, b3));
                sum2_0 = add(sum2_0, mul(a2, b0));
                sum2_1 = add(sum2_1, mul(a2, b1));
                sum2_2 = add(sum2_2, mul(a2, b2));
                sum2_3 = add(sum2_3, mul(a2, b3));
                sum3_0 = add(sum3_0, mul(a3, b0));
                sum3_1 = add(sum3_1, mul(a3, b1));
                sum3_2 = add(sum3_2, mul(a3, b2));
                sum3_3 = add(sum3_3, mul(a3, b3));
            }
            bool first = block == 0u;
            float next;
            next = add(total[0], sum0_0);
            total[0] = first ? sum0_0 : next;
            next = add(total[1], sum0_1);
            total[1] = first ? sum0_1 : next;
            next = add(total[2], sum0_2);
            total[2] = first ? sum0_2 : next;
            next = add(total[3], sum0_3);
            total[3] = first ? sum0_3 : next;
            next = add(total[4], sum1_0);
            total[4] = first ? sum1_0 : next;
            next = add(total[5], sum1_1);
            total[5] = first ? sum1_1 : next;
            next = add(total[6], sum1_2);
            total[6] = first ? sum1_2 : next;
            next = add(total[7], sum1_3);
            total[7] = first ? sum1_3 : next;
            next = add(total[8], sum2_0);
            total[8] = first ? sum2_0 : next;
            next = add(total[9], sum2_1);
            total[9] = first ? sum2_1 : next;
            next = add(total[10], sum2_2);
            total[10] = first ? sum2_2 : next;
            next = add(total[11], sum2_3);
            total[11] = first ? sum2_3 : next;
            next = add(total[12], sum3_0);
            total[12] = first ? sum3_0 : next;
            next = add(total[13], sum3_1);
            total[13] = first ? sum3_1 : next;
            next = add(total[14], sum3_2);
            total[14] = first ? sum3_2 : next;
            next = add(total[15], sum3_3);
            total[15] = first ? sum3_3 : next;
        }
        for (uint e = 0u; e < 16u; ++e) {
            uint m = tile_row * 32u + e / 4u * 8u + local_m;
            uint n = tile_column * 32u + e % 4u * 8u + local_n;
            if (m < 6u && n < 40u) {
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
