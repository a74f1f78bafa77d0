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

#extension GL_EXT_control_flow_attributes : require
// Scatter-add of 9 source rows into 200 table rows, stage "find" of a stable
// sort and sum, for each of 6: contributions to one table row are added in ascending source index.
// How many of the sorted numbers in0[batch ...] are below one. The steps are fixed: a driver's compiler crashed on
// a loop without a bound.
uint rows_below(uint batch, uint number) {
    uint below = 0u;
    for (uint step = 8u; step > 0u; step >>= 1) {
        uint next = below + step;
        uint row = batch + min(next, 9u) - 1u;
        bool before = next <= 9u && in0[base_in0 + row] < number;
        below = before ? next : below;
    }
    return below;
}

void main() {
    for (uint i = gl_GlobalInvocationID.x; i < 1200u; i += gl_NumWorkGroups.x * 64u) {
        uint batch = i / 200u * 9u, number = i % 200u;
        uint first = rows_below(batch, number), last = rows_below(batch, number + 1u);
        out0[base_out0 + i] = int(batch + first);
        out1[base_out1 + i] = int(last - first);
    }
}
