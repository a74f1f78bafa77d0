#version 450
layout(local_size_x = 256, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { int in0[]; };
layout(std430, binding = 1) buffer Buffer_out0 { int out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_out0;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

#extension GL_EXT_control_flow_attributes : require
// Scatter-add of 40 source rows into 50 table rows, stage "start" of a stable
// counting sort and sum: contributions to one table row are added in ascending source index.
shared int lane_total[256];

// Exclusive sums of in0 along the table. A workgroup has neighbouring strips of 1024, adds up all that is before
// them, and goes along them, each lane with 4 neighbours.
void main() {
    uint lane = gl_LocalInvocationID.x, own_strips = (1u + gl_NumWorkGroups.x - 1u) / gl_NumWorkGroups.x;
    uint first = min(gl_WorkGroupID.x * own_strips * 1024u, 50u);
    uint last = min(first + own_strips * 1024u, 50u);
    int start = 0;
    if (first > 0u) {
        int before = 0;
        for (uint from = lane; from < first; from += 2048u) {
            int next[8];
            [[unroll]] for (uint u = 0u; u < 8u; ++u) {
                uint row = min(from + u * 256u, first - 1u);
                next[u] = in0[base_in0 + row];
            }
            [[unroll]] for (uint u = 0u; u < 8u; ++u) before += from + u * 256u < first ? next[u] : 0;
        }
        lane_total[lane] = before;
        for (uint half_ = 128u; half_ > 0u; half_ >>= 1) {
            barrier();
            if (lane < half_) lane_total[lane] += lane_total[lane + half_];
        }
        barrier();
        start = lane_total[0];
    }
    for (uint from = first; from < last; from += 1024u) {
        int own[4], total = 0;
        [[unroll]] for (uint u = 0u; u < 4u; ++u) {
            uint row = min(from + lane * 4u + u, last - 1u);
            own[u] = from + lane * 4u + u < last ? in0[base_in0 + row] : 0;
            total += own[u];
        }
        barrier();
        lane_total[lane] = total;
        barrier();
        for (uint stride = 1u; stride < 256u; stride <<= 1) {
            int before = lane < stride ? 0 : lane_total[lane - min(lane, stride)];
            barrier();
            lane_total[lane] += before;
            barrier();
        }
        int at = start + lane_total[lane] - total;
        [[unroll]] for (uint u = 0u; u < 4u; ++u) {
            uint row = from + lane * 4u + u;
            if (row < last) out0[base_out0 + row] = at;
            at += own[u];
        }
        start += lane_total[255];
    }
}
