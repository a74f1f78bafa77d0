#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { int in0[]; };
layout(std430, binding = 1) buffer Buffer_out0 { int out0[]; };
layout(std430, binding = 2) buffer Buffer_out1 { int out1[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_out0;
    uint base_out1;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

#extension GL_EXT_control_flow_attributes : require
// Scatter-add of 40 source rows into 50 table rows, stage "offset" of a stable
// counting sort and sum: contributions to one table row are added in ascending source index.
void main() {
    for (uint i = gl_GlobalInvocationID.x; i < 50u; i += gl_NumWorkGroups.x * 64u) {
        uint column = i;
        int total = 0;
        for (uint first = 0u; first < 1u; first += 16u) {
            int next[16];
            [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                uint row = min(first + u, 1u - 1u);
                next[u] = in0[base_in0 + column];
            }
            [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                if (first + u < 1u) {
                    out0[base_out0 + (first + u) * 50u + column] = total;
                    total += next[u];
                }
            }
        }
        out1[base_out1 + column] = total;
    }
}
