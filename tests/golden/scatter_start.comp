#version 450
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { int in0[]; };
layout(std430, binding = 1) buffer Buffer_out0 { int out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_out0;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

// Scatter-add of 40 source rows into 50 table rows, stage "start" of a stable
// counting sort and sum: contributions to one table row are added in ascending source index.
shared int lane_total[128];

// Exclusive sums of in0 along the table: each lane owns 1 neighbours.
void main() {
    uint lane = gl_LocalInvocationID.x;
    uint first = lane * 1u, last = min(first + 1u, 50u);
    int total = 0;
    for (uint row = first; row < last; ++row) total += in0[base_in0 + row];
    lane_total[lane] = total;
    barrier();
    int start = 0;
    for (uint other = 0u; other < lane; ++other) start += lane_total[other];
    for (uint row = first; row < last; ++row) {
        out0[base_out0 + row] = start;
        start += in0[base_in0 + row];
    }
}
