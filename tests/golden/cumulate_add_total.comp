#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) buffer Buffer_out0 { float out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_out0;
    uint outer;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

// Cumulated by "add", stage "total", along 300 elements: in sequence inside blocks of 128.
float combine(float a, float b) { return add(a, b); }

void main() {
    for (uint i = gl_GlobalInvocationID.x; i < outer * 2u; i += gl_NumWorkGroups.x * 64u) {
        uint column = i % 1u, block = i / 1u % 2u, row = i / 2u;
        uint first = block * 128u, last = min(first + 128u, 300u);
        uint k = first;
        float total = in0[base_in0 + row * 300u + k];
        for (k = first + 1u; k < last; ++k) total = combine(total, in0[base_in0 + row * 300u + k]);
        out0[base_out0 + i] = total;
}
}
