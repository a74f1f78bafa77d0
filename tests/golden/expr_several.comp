#version 450
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) buffer Buffer_out0 { float out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_out0;
    uint count;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

// Fused elementwise kernel: every output element is one expression of the inputs at its own index.
// An invocation computes 4 elements at a time, so that their loads are under way together.
#extension GL_EXT_control_flow_attributes : require
void main() {
    uint local = gl_LocalInvocationID.x;
    for (uint first = gl_WorkGroupID.x * 512u; first < count; first += gl_NumWorkGroups.x * 512u) {
        if (first + 512u <= count) {
            float values0[4];
            [[unroll]] for (uint u = 0u; u < 4u; ++u) {
                uint i = first + u * 128u + local;
                uint i1 = i % 200u;
                uint i0 = i / 200u;
                int t0 = int(i1);
                bool t2 = (t0 < 100);
                float t3 = (int(i1) >= 0 && int(i1) < 100) ? in0[base_in0 + i0 * 200u - i1 * 2u + 199u] : ZERO;
                bool t5 = (int(i1) >= 0 && int(i1) < 100);
                float t6 = (t5 ? t3 : ZERO);
                float t7 = (int(i1 - 100u) >= 0 && int(i1 - 100u) < 100) && (int(i1 - 150u) >= 0 && int(i1 - 150u) < 50) ? in0[base_in0 + i0 * 200u + i1 - 150u] : ZERO;
                bool t8 = (int(i1 - 150u) >= 0 && int(i1 - 150u) < 50);
                float t9 = (t8 ? t7 : ZERO);
                bool t10 = (int(i1 - 100u) >= 0 && int(i1 - 100u) < 100);
                float t11 = (t10 ? t9 : ZERO);
                float t12 = (t2 ? t6 : t11);
                float t13 = to_float(t0);
                float t14 = mul(t12, t13);
                values0[u] = t14;
            }
            [[unroll]] for (uint u = 0u; u < 4u; ++u) {
                uint i = first + u * 128u + local;
                out0[base_out0 + i] = values0[u];
            }
        } else {
            for (uint i = first + local; i < count; i += 128u) {
                uint i1 = i % 200u;
                uint i0 = i / 200u;
                int t0 = int(i1);
                bool t2 = (t0 < 100);
                float t3 = (int(i1) >= 0 && int(i1) < 100) ? in0[base_in0 + i0 * 200u - i1 * 2u + 199u] : ZERO;
                bool t5 = (int(i1) >= 0 && int(i1) < 100);
                float t6 = (t5 ? t3 : ZERO);
                float t7 = (int(i1 - 100u) >= 0 && int(i1 - 100u) < 100) && (int(i1 - 150u) >= 0 && int(i1 - 150u) < 50) ? in0[base_in0 + i0 * 200u + i1 - 150u] : ZERO;
                bool t8 = (int(i1 - 150u) >= 0 && int(i1 - 150u) < 50);
                float t9 = (t8 ? t7 : ZERO);
                bool t10 = (int(i1 - 100u) >= 0 && int(i1 - 100u) < 100);
                float t11 = (t10 ? t9 : ZERO);
                float t12 = (t2 ? t6 : t11);
                float t13 = to_float(t0);
                float t14 = mul(t12, t13);
                out0[base_out0 + i] = t14;
            }
        }
    }
}
