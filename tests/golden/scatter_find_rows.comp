#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { uint in0[]; };
layout(std430, binding = 1) buffer Buffer_out0 { int out0[]; };
layout(std430, binding = 2) buffer Buffer_out1 { int out1[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_out0;
    uint base_out1;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

// Scatter-add of 9 source rows into 200 table rows, stage "find" of a stable
// sort and sum, for each of 6: contributions to one table row are added in ascending source index.
void main() {
    for (uint i = gl_GlobalInvocationID.x; i < 1200u; i += gl_NumWorkGroups.x * 64u) {
        uint batch = i / 200u * 9u, number = i % 200u;
        uint bound[2];
        for (uint j = 0u; j < 2u; ++j) {
            uint low = batch, high = batch + 9u;
            while (low < high) {
                uint row = (low + high) >> 1;
                bool before = in0[base_in0 + row] < number + j;
                low = before ? row + 1u : low;
                high = before ? high : row;
            }
            bound[j] = low;
        }
        out0[base_out0 + i] = int(bound[0]);
        out1[base_out1 + i] = int(bound[1] - bound[0]);
    }
}
