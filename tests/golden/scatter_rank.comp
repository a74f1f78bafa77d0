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

// Scatter-add of 40 source rows into 50 table rows, stage "rank" of a stable
// counting sort and sum: contributions to one table row are added in ascending source index.
void main() {
    for (uint i = gl_GlobalInvocationID.x; i < 1u; i += gl_NumWorkGroups.x * 64u) {
        uint counts = base_out0 + i * 50u;
        for (uint v = 0u; v < 50u; ++v) out0[counts + v] = 0;
        uint stop = min((i + 1u) * 64u, 40u);
        for (uint row = i * 64u; row < stop; ++row) {
            uint v = uint(clamp(in0[base_in0 + row], 0, 49));
            int rank = out0[counts + v];
            out1[base_out1 + row] = rank;
            out0[counts + v] = rank + 1;
        }
    }
}
