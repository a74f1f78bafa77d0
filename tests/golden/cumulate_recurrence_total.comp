#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { float in1[]; };
layout(std430, binding = 2) buffer Buffer_out0 { float out0[]; };
layout(std430, binding = 3) buffer Buffer_out1 { float out1[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_in1;
    uint base_out0;
    uint base_out1;
    uint outer;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

// Recurrence, stage "total": s[k] = a[k] s[k - 1] + b[k] along 17000 elements, block by block
// of 128.
float next(float a, float state, float b) {
    float moved = add(mul(a, state), b);
    return moved;
}

void main() {
    for (uint i = gl_GlobalInvocationID.x; i < outer * 132u; i += gl_NumWorkGroups.x * 64u) {
        uint column = i % 1u, block = i / 1u % 132u, row = i / 132u;
        uint first = block * 128u, last = min(first + 128u, 17000u);
        uint k = first;
        float product = in0[base_in0 + row * 17000u + k], state = in1[base_in1 + row * 17000u + k];
        for (k = first + 1u; k < last; ++k) {
            float a = in0[base_in0 + row * 17000u + k];
            product = mul(product, a);
            state = next(a, state, in1[base_in1 + row * 17000u + k]);
        }
        out0[base_out0 + i] = product;
        out1[base_out1 + i] = state;
}
}
