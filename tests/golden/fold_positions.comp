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

// Rows of 200 elements. Order of each reduction: lane j takes elements j, j + 128, ... in sequence,
// then a tree over the lanes (stride 64, 32, ... 1); lanes past the end hold the identity.
shared float lanes_float[128];
shared int lanes_int[128];

// One workgroup a row, one invocation a lane.
void main() {
    uint lane = gl_LocalInvocationID.x;
    for (uint row = gl_WorkGroupID.x; row < rows; row += gl_NumWorkGroups.x) {
        uint i0 = row;

        float lane0 = uintBitsToFloat(0xff800000u);
        for (uint e = lane; e < 200u; e += 128u) {
            uint i1 = e;
            float t0 = in0[base_in0 + i0 * 200u + i1];
            lane0 = maximum(lane0, t0);
        }
        lanes_float[lane] = lane0;
        barrier();
        for (uint stride = 64u; stride > 0u; stride >>= 1u) {
            if (lane < stride) lanes_float[lane] = maximum(lanes_float[lane], lanes_float[lane + stride]);
            barrier();
        }
        float reduced0 = lanes_float[0];
        barrier();
        bool t4 = is_nan(reduced0);
        int lane1 = 2147483647;
        for (uint e = lane; e < 200u; e += 128u) {
            uint i1 = e;
            float t0 = in0[base_in0 + i0 * 200u + i1];
            bool t2 = is_equal(t0, reduced0);
            bool t3 = is_nan(t0);
            bool t5 = (t3 && t4);
            bool t6 = (t2 || t5);
            int t7 = int(i1);
            int t9 = (t6 ? t7 : 2147483647);
            lane1 = min(lane1, t9);
        }
        lanes_int[lane] = lane1;
        barrier();
        for (uint stride = 64u; stride > 0u; stride >>= 1u) {
            if (lane < stride) lanes_int[lane] = min(lanes_int[lane], lanes_int[lane + stride]);
            barrier();
        }
        int reduced1 = lanes_int[0];
        barrier();

        barrier();  // a row result may take the place of a row input, which every lane has read by now
        if (lane == 0u) {
            out0[base_out0 + i0] = reduced1;
        }
    }
}
