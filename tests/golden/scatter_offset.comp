#version 450
layout(local_size_x = 256, local_size_y = 1, local_size_z = 1) in;

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
shared int slice_total[8][32];

// A workgroup has 32 table rows and 8 slices of the blocks: each adds up its own, then starts with what is before.
void main() {
    uint own = gl_LocalInvocationID.x % 32u, slice = gl_LocalInvocationID.x / 32u;
    uint first = min(slice * 1u, 1u), last = min(first + 1u, 1u);
    for (uint i = gl_WorkGroupID.x; i < 2u; i += gl_NumWorkGroups.x) {
        uint column = min(i * 32u + own, 50u - 1u);
        int total = 0;
        for (uint from = first; from < last; from += 16u) {
            int next[16];
            [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                uint row = min(from + u, 1u - 1u);
                next[u] = in0[base_in0 + column];
            }
            [[unroll]] for (uint u = 0u; u < 16u; ++u) total += from + u < last ? next[u] : 0;
        }
        barrier();
        slice_total[slice][own] = total;
        barrier();
        total = 0;
        for (uint other = 0u; other < slice; ++other) total += slice_total[other][own];
        if (i * 32u + own < 50u) {
            for (uint from = first; from < last; from += 16u) {
                int next[16];
                [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                    uint row = min(from + u, 1u - 1u);
                    next[u] = in0[base_in0 + column];
                }
                [[unroll]] for (uint u = 0u; u < 16u; ++u)
                    if (from + u < last) {
                        out0[base_out0 + (from + u) * 50u + column] = total;
                        total += next[u];
                    }
            }
            if (slice == 7u) out1[base_out1 + column] = total;
        }
    }
}
