#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { int in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { int in1[]; };
layout(std430, binding = 2) readonly buffer Buffer_in2 { int in2[]; };
layout(std430, binding = 3) readonly buffer Buffer_in3 { float in3[]; };
layout(std430, binding = 4) buffer Buffer_out0 { float out0[]; };
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
// Scatter-add of 9 source rows into 200 table rows, stage "sum" of a stable
// sort and sum, for each of 6: contributions to one table row are added in ascending source index.
void main() {
    for (uint i = gl_GlobalInvocationID.x; i < 1200u; i += gl_NumWorkGroups.x * 64u) {
        uint row = i / 1u, place = i % 1u;
        uint first = uint(in1[base_in1 + row]), last = first + uint(in2[base_in2 + row]);
        uint column0 = place;
        float sum0 = ZERO;
        uint batch = row / 200u * 9u;
        uint s = first;
        for (; s < last; ++s) {
            row = s;
            row = uint(in0[base_in0 + row]) + batch;
            sum0 = add(sum0, in3[base_in3 + row]);
        }
        for (; s < last; ++s) {
            row = s;
            row = uint(in0[base_in0 + row]) + batch;
            sum0 = add(sum0, in3[base_in3 + row]);
        }
        row = i / 1u;
        out0[base_out0 + row * 1u + column0] = sum0;
    }
}
