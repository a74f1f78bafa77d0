#version 450
layout(local_size_x = 1024, local_size_y = 1, local_size_z = 1) in;

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
// Scatter-add of 40 source rows into 50 table rows, stage "rank" of a stable
// counting sort and sum: contributions to one table row are added in ascending source index.
shared uvec4 numbers[16];
shared uint named[2048];  // a bit for each of 65536 table rows

// A workgroup has a block: every source row looks at the numbers of the others. A counter is written once: by the last
// source row of its number, or as 0 if there is none.
void main() {
    uint lane = gl_LocalInvocationID.x;
    for (uint i = gl_WorkGroupID.x; i < 1u; i += gl_NumWorkGroups.x) {
        uint counts = base_out0 + i * 50u, first = i * 64u;
        uint size = min(40u - first, 64u);
        barrier();
        for (uint e = lane; e < 64u; e += 1024u) {
            uint row = first + min(e, size - 1u);
            uint v = uint(clamp(in0[base_in0 + row], 0, 49));
            numbers[e / 4u][e % 4u] = e < size ? v : 0xffffffffu;
        }
        for (uint from = 0u; from < 50u; from += 65536u) {
            for (uint word = lane; word < 2048u; word += 1024u) named[word] = 0u;
            barrier();
            for (uint e = lane; e < size; e += 1024u) {
                uint v = numbers[e / 4u][e % 4u] - from;
                if (v < 65536u) atomicOr(named[v / 32u], 1u << (v % 32u));
            }
            barrier();
            uint stop = min(50u - from, 65536u);
            for (uint first_v = lane; first_v < stop; first_v += 4096u)
                [[unroll]] for (uint v = first_v; v < first_v + 4096u; v += 1024u)
                    if (v < stop && (named[v / 32u] >> (v % 32u) & 1u) == 0u) out0[counts + from + v] = 0;
            barrier();
        }
        for (uint e = lane; e < size; e += 1024u) {
            uint own = e / 4u, v = numbers[own][e % 4u], rank = 0u, later = 0u;
            for (uint n = 0u; n < own; ++n) {
                uvec4 same = uvec4(equal(numbers[n], uvec4(v)));
                rank += same.x + same.y + same.z + same.w;
            }
            for (uint n = 0u; n < 4u; ++n) {
                uint same = numbers[own][n] == v ? 1u : 0u;
                rank += n < e % 4u ? same : 0u;
                later |= n > e % 4u ? same : 0u;
            }
            for (uint n = own + 1u; n < 16u; ++n) later |= any(equal(numbers[n], uvec4(v))) ? 1u : 0u;
            out1[base_out1 + first + e] = int(rank);
            if (later == 0u) out0[counts + v] = int(rank) + 1;
        }
    }
}
