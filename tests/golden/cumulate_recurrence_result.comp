#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { float in1[]; };
layout(std430, binding = 2) readonly buffer Buffer_in2 { float in2[]; };
layout(std430, binding = 3) buffer Buffer_out0 { float out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_in1;
    uint base_in2;
    uint base_out0;
    uint outer;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

// Recurrence, stage "result": s[k] = a[k] s[k - 1] + b[k] along 17000 elements, block by block
// of 128, each from the state before it.
float next(float a, float state, float b) {
    float moved = add(mul(a, state), b);
    return moved;
}

void main() {
    for (uint i = gl_GlobalInvocationID.x; i < outer * 133u; i += gl_NumWorkGroups.x * 64u) {
        uint column = i % 1u, block = i / 1u % 133u, row = i / 133u;
        uint first = block * 128u, last = min(first + 128u, 17000u);
        uint k = first;
        uint to = base_out0 + (row * 17000u + first) * 1u + column;
        k = max(block, 1u) - 1u;
        float before = in2[base_in2 + row * 132u + k];
        k = first;
        float state = in1[base_in1 + row * 17000u + k];
        float after = next(in0[base_in0 + row * 17000u + k], before, state);
        state = block == 0u ? state : after;
        out0[to] = state;
        for (k = first + 1u; k < last; ++k) {
            state = next(in0[base_in0 + row * 17000u + k], state, in1[base_in1 + row * 17000u + k]);
            to += 1u;
            out0[to] = state;
        }
}
}
