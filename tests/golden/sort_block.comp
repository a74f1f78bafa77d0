#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { uint in0[]; };
layout(std430, binding = 1) buffer Buffer_out0 { uint out0[]; };
layout(std430, binding = 2) buffer Buffer_out1 { int out1[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_out0;
    uint base_out1;
    uint rows;
    uint size;
    uint run;
    uint keep;
    uint kept;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

// Stable sort of rows of keys with their positions, stage "block": every element finds its own place.
void main() {
    for (uint i = gl_GlobalInvocationID.x; i < rows * size; i += gl_NumWorkGroups.x * 64u) {
        uint row = i / size, at = i % size;
        uint part = at / 32u, own = at, place = 0u;
        uint key = in0[base_in0 + row * 100u + at];
        int position = int(own);
        uint first = part * 32u, last = min(first + 32u, size);
        for (at = first; at < last; ++at) {
            uint other = in0[base_in0 + row * 100u + at];
            place += other < key || (other == key && at < own) ? 1u : 0u;
        }
        if (place < keep) {
            uint to = row * kept + part * keep + place;
            out0[base_out0 + to] = key;
            out1[base_out1 + to] = position;
        }
    }
}
