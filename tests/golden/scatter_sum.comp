#version 450
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { int in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { int in1[]; };
layout(std430, binding = 2) readonly buffer Buffer_in2 { int in2[]; };
layout(std430, binding = 3) readonly buffer Buffer_in3 { float in3[]; };
layout(std430, binding = 4) buffer Buffer_out0 { float out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_in1;
    uint base_in2;
    uint base_in3;
    uint base_out0;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

#extension GL_EXT_control_flow_attributes : require
// Scatter-add of 40 source rows into 50 table rows, stage "sum" of a stable
// counting sort and sum: contributions to one table row are added in ascending source index.
void main() {
    for (uint i = gl_GlobalInvocationID.x; i < 100u; i += gl_NumWorkGroups.x * 128u) {
        uint row = i / 2u, place = i % 2u;
        uint first = uint(in1[base_in1 + row]), last = first + uint(in2[base_in2 + row]);
        uint column0 = place;
        uint column1 = place + 2u * 1u;
        uint column2 = place + 2u * 2u;
        uint column3 = place + 2u * 3u;
        float sum0 = ZERO;
        float sum1 = ZERO;
        float sum2 = ZERO;
        float sum3 = ZERO;
        uint s = first;
        if (s + 16u <= last) {
            uint from[16];
            [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                row = min(s + u, last - 1u);
                from[u] = uint(in0[base_in0 + row]);
            }
            for (; s + 16u <= last; s += 16u) {
                float next0[16], next1[16], next2[16], next3[16];
                [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                    row = from[u];
                    next0[u] = in3[base_in3 + row * 8u + column0];
                    next1[u] = in3[base_in3 + row * 8u + column1];
                    next2[u] = in3[base_in3 + row * 8u + column2];
                    next3[u] = in3[base_in3 + row * 8u + column3];
                }
                [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                    row = min(s + 16u + u, last - 1u);
                    from[u] = uint(in0[base_in0 + row]);
                }
                [[unroll]] for (uint u = 0u; u < 16u; ++u) {
                    sum0 = add(sum0, next0[u]);
                    sum1 = add(sum1, next1[u]);
                    sum2 = add(sum2, next2[u]);
                    sum3 = add(sum3, next3[u]);
                }
            }
        }
        if (s + 4u <= last) {
            uint from[4];
            [[unroll]] for (uint u = 0u; u < 4u; ++u) {
                row = min(s + u, last - 1u);
                from[u] = uint(in0[base_in0 + row]);
            }
            for (; s + 4u <= last; s += 4u) {
                float next0[4], next1[4], next2[4], next3[4];
                [[unroll]] for (uint u = 0u; u < 4u; ++u) {
                    row = from[u];
                    next0[u] = in3[base_in3 + row * 8u + column0];
                    next1[u] = in3[base_in3 + row * 8u + column1];
                    next2[u] = in3[base_in3 + row * 8u + column2];
                    next3[u] = in3[base_in3 + row * 8u + column3];
                }
                [[unroll]] for (uint u = 0u; u < 4u; ++u) {
                    row = min(s + 4u + u, last - 1u);
                    from[u] = uint(in0[base_in0 + row]);
                }
                [[unroll]] for (uint u = 0u; u < 4u; ++u) {
                    sum0 = add(sum0, next0[u]);
                    sum1 = add(sum1, next1[u]);
                    sum2 = add(sum2, next2[u]);
                    sum3 = add(sum3, next3[u]);
                }
            }
        }
        for (; s < last; ++s) {
            row = s;
            row = uint(in0[base_in0 + row]);
            sum0 = add(sum0, in3[base_in3 + row * 8u + column0]);
            sum1 = add(sum1, in3[base_in3 + row * 8u + column1]);
            sum2 = add(sum2, in3[base_in3 + row * 8u + column2]);
            sum3 = add(sum3, in3[base_in3 + row * 8u + column3]);
        }
        row = i / 2u;
        out0[base_out0 + row * 8u + column0] = sum0;
        out0[base_out0 + row * 8u + column1] = sum1;
        out0[base_out0 + row * 8u + column2] = sum2;
        out0[base_out0 + row * 8u + column3] = sum3;
    }
}
