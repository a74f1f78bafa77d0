#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { float in1[]; };
layout(std430, binding = 2) buffer Buffer_out0 { float out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_in1;
    uint base_out0;
    uint outer;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

// Cumulated by "add", stage "result", along 300 elements: in sequence inside blocks of 128.
// The result of the blocks before meets each prefix once.
float combine(float a, float b) { return add(a, b); }

void main() {
    for (uint i = gl_GlobalInvocationID.x; i < outer * 3u; i += gl_NumWorkGroups.x * 64u) {
        uint column = i % 1u, block = i / 1u % 3u, row = i / 3u;
        uint first = block * 128u, last = min(first + 128u, 300u);
        uint k = first;
        uint to = base_out0 + (row * 300u + first) * 1u + column;
        k = max(block, 1u) - 1u;
        float before = in1[base_in1 + row * 2u + k];
        k = first;
        float prefix = in0[base_in0 + row * 300u + k];
        for (k = first + 1u; k < last; ++k) {
            float both = combine(before, prefix);
            out0[to] = block == 0u ? prefix : both;
            prefix = combine(prefix, in0[base_in0 + row * 300u + k]);
            to += 1u;
        }
        float both = combine(before, prefix);
        out0[to] = block == 0u ? prefix : both;
}
}
