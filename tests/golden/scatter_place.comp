#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { int in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { int in1[]; };
layout(std430, binding = 2) readonly buffer Buffer_in2 { int in2[]; };
layout(std430, binding = 3) readonly buffer Buffer_in3 { int in3[]; };
layout(std430, binding = 4) buffer Buffer_out0 { int out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_in1;
    uint base_in2;
    uint base_in3;
    uint base_out0;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

#extension GL_EXT_control_flow_attributes : require
// Scatter-add of 40 source rows into 50 table rows, stage "place" of a stable
// counting sort and sum: contributions to one table row are added in ascending source index.
void main() {
    for (uint i = gl_GlobalInvocationID.x; i < 40u; i += gl_NumWorkGroups.x * 64u) {
        uint row = i;
        uint v = uint(clamp(in0[base_in0 + row], 0, 49));
        int rank = in1[base_in1 + row];
        uint column = v;
        row = i / 64u;
        int offset = in2[base_in2 + column];
        row = v;
        int start = in3[base_in3 + row];
        out0[base_out0 + uint(start + offset + rank)] = int(i);
    }
}
