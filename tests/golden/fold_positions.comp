#version 450
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) buffer Buffer_out0 { int out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_out0;
    uint rows;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

#extension GL_EXT_control_flow_attributes : require
// Rows of 200 elements. Order of each reduction: lane j takes elements j, j + 128, ... in sequence,
// then a tree over the lanes (stride 64, 32, ... 1); lanes past the end hold the identity.
struct argmax_fi { float value; int index; };
// The larger value and its index; the lower index at ties, and of NaNs, which are beyond all numbers.
argmax_fi merge_argmax_fi(argmax_fi a, argmax_fi b) {
    float a_value = a.value;
    int a_index = a.index;
    float b_value = b.value;
    int b_index = b.index;
    bool t0 = is_less(a_value, b_value);
    bool t1 = is_nan(b_value);
    bool t2 = is_nan(a_value);
    bool t3 = (!t2);
    bool t4 = (t1 && t3);
    bool t5 = (t0 || t4);
    bool t6 = is_equal(a_value, b_value);
    bool t7 = (t2 && t1);
    bool t8 = (t6 || t7);
    bool t9 = (b_index < a_index);
    bool t10 = (t8 && t9);
    bool t11 = (t5 || t10);
    float t12 = (t11 ? b_value : a_value);
    int t13 = (t11 ? b_index : a_index);
    return argmax_fi(t12, t13);
}

shared argmax_fi lanes0_argmax_fi[128];

// A workgroup has 8 rows, each folded by 16 invocations; invocation `group` has lanes group, group + 16, ...
// The tree's strides of 16 and more meet inside an invocation, the others in shared memory.
void main() {
    uint place = gl_LocalInvocationID.x;
    uint group = place % 16u, line = place / 16u;
    for (uint first = gl_WorkGroupID.x * 8u; first < rows; first += gl_NumWorkGroups.x * 8u) {
        uint row = min(first + line, rows - 1u);  // spare ones fold the last row and store nothing
        bool live = first + line < rows;
        uint i0 = row;

        argmax_fi lane0[8];
        [[unroll]] for (uint u = 0u; u < 8u; ++u) lane0[u] = argmax_fi(uintBitsToFloat(0xff800000u), 2147483647);
        {
        uint begin = group;
        for (; begin < 200u; begin += 128u) {
            [[unroll]] for (uint u = 0u; u < 8u; ++u) {
                uint e = begin + u * 16u;
                if (e < 200u) {
            uint i1 = e;
            float t0 = in0[base_in0 + i0 * 200u + i1];
            int t1 = int(i1);
                lane0[u] = merge_argmax_fi(lane0[u], argmax_fi(t0, t1));
                }
            }
        }
        }
        [[unroll]] for (uint u = 0u; u < 4u; ++u) lane0[u] = merge_argmax_fi(lane0[u], lane0[u + 4u]);
        [[unroll]] for (uint u = 0u; u < 2u; ++u) lane0[u] = merge_argmax_fi(lane0[u], lane0[u + 2u]);
        [[unroll]] for (uint u = 0u; u < 1u; ++u) lane0[u] = merge_argmax_fi(lane0[u], lane0[u + 1u]);
        lanes0_argmax_fi[place] = lane0[0];
        barrier();
        for (uint stride = 8u; stride > 0u; stride >>= 1u) {
            if (group < stride) {
                lanes0_argmax_fi[place] = merge_argmax_fi(lanes0_argmax_fi[place], lanes0_argmax_fi[place + stride]);
            }
            barrier();
        }
        argmax_fi reduced0 = lanes0_argmax_fi[line * 16u];
        float reduced0_value = reduced0.value;
        int reduced0_index = reduced0.index;
        barrier();

        if (group == 0u && live) {
            out0[base_out0 + i0] = reduced0_index;
        }
    }
}
