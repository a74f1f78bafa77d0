#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { uint in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { int in1[]; };
layout(std430, binding = 2) buffer Buffer_out0 { int out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_in1;
    uint base_out0;
    uint rows;
    uint size;
    uint run;
    uint keep;
    uint kept;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

// Stable sort of rows of keys with their positions, stage "merge": every element finds its own place.
void main() {
    for (uint i = gl_GlobalInvocationID.x; i < rows * size; i += gl_NumWorkGroups.x * 64u) {
        uint row = i / size, at = i % size;
        uint key = in0[base_in0 + i];
        int position = in1[base_in1 + i];
        uint part = at / (2u * run), own = at - part * 2u * run;
        bool is_right = own >= run;
        own -= is_right ? run : 0u;
        // Equal keys of the left run go before those of the right one.
        uint first = min(2u * part * run + (is_right ? 0u : run), size);
        uint low = first, high = min(first + run, size);
        while (low < high) {
            uint middle = (low + high) >> 1;
            uint other = in0[base_in0 + row * size + middle];
            bool before = is_right ? other <= key : other < key;
            low = before ? middle + 1u : low;
            high = before ? high : middle;
        }
        uint place = own + low - first;
        if (place < keep) {
            uint to = row * kept + part * keep + place;
            out0[base_out0 + to] = position;
        }
    }
}
