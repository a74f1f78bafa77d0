#version 450
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) buffer Buffer_out0 { float out0[]; };
layout(std430, binding = 2) buffer Buffer_out1 { float out1[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_out0;
    uint base_out1;
    uint rows;
};

#define ZERO_BITS (base_out0 >> 31u)
// numerics.glsl

// Rows of 200 elements. Order of each reduction: lane j takes elements j, j + 128, ... in sequence,
// then a tree over the lanes (stride 64, 32, ... 1); lanes past the end hold the identity.
struct moments_ffff { float count; float mean; float rest; float squares; };
// Counts, means and sums of squared deviations of two sets, of the two together (Chan, Golub and LeVeque 1979).
moments_ffff merge_moments_ffff(moments_ffff a, moments_ffff b) {
    float a_count = a.count;
    float a_mean = a.mean;
    float a_rest = a.rest;
    float a_squares = a.squares;
    float b_count = b.count;
    float b_mean = b.mean;
    float b_rest = b.rest;
    float b_squares = b.squares;
    float t0 = add(a_count, b_count);
    bool t1 = either((bits_to_uint(b_count) == 0u), (bits_to_uint(b_count) == 2147483648u));
    bool t2 = either((bits_to_uint(a_count) == 0u), (bits_to_uint(a_count) == 2147483648u));
    bool t3 = is_finite(a_mean);
    bool t4 = is_finite(b_mean);
    bool t5 = (t3 && t4);
    float t6 = sub(b_mean, a_mean);
    float t7 = sub(b_rest, a_rest);
    float t8 = add(t6, t7);
    float t9 = divide(b_count, t0);
    float t10 = mul(t8, t9);
    float t11 = add(a_mean, t10);
    float t12 = add(a_mean, b_mean);
    float t13 = (t5 ? t11 : t12);
    float t14 = (t2 ? b_mean : t13);
    float t15 = (t1 ? a_mean : t14);
    float t16 = sub(t11, a_mean);
    float t17 = sub(t11, t16);
    float t18 = sub(a_mean, t17);
    float t19 = sub(t10, t16);
    float t20 = add(t18, t19);
    float t21 = add(t20, a_rest);
    float t22 = (t5 ? t21 : ZERO);
    float t23 = (t2 ? b_rest : t22);
    float t24 = (t1 ? a_rest : t23);
    float t25 = add(a_squares, b_squares);
    float t26 = mul(t8, t8);
    float t27 = mul(a_count, t9);
    float t28 = mul(t26, t27);
    float t29 = add(t25, t28);
    float t30 = (t2 ? b_squares : t29);
    float t31 = (t1 ? a_squares : t30);
    return moments_ffff(t0, t15, t24, t31);
}

// One invocation a row. Lanes are visited in bit-reversed order, so that the tree needs a stack of partial results
// only: level k of the stack waits for its sibling, as a carry does in a binary counter.
void main() {
    for (uint row = gl_GlobalInvocationID.x; row < rows; row += gl_NumWorkGroups.x * 128u) {
        uint i0 = row;

        moments_ffff waiting0[8];
        for (uint step = 0u; step < 128u; ++step) {
            moments_ffff partial0 = moments_ffff(ZERO, ZERO, ZERO, ZERO);
            for (uint e = bitfieldReverse(step) >> 25u; e < 200u; e += 128u) {
                uint i1 = e;
                float t1 = in0[base_in0 + i0 * 200u + i1];
                partial0 = merge_moments_ffff(partial0, moments_ffff(1.0, t1, ZERO, ZERO));
            }
            uint level = 0u;
            for (uint carry = step; (carry & 1u) != 0u; carry >>= 1u) {
                partial0 = merge_moments_ffff(waiting0[level], partial0);
                ++level;
            }
            waiting0[level] = partial0;
        }
        moments_ffff reduced0 = waiting0[7];
        float reduced0_count = reduced0.count;
        float reduced0_mean = reduced0.mean;
        float reduced0_rest = reduced0.rest;
        float reduced0_squares = reduced0.squares;
        float t6 = add(reduced0_mean, reduced0_rest);
        float t7 = sub(t6, t6);
        float t8 = t7;
        float t9 = add(reduced0_squares, t8);
        float t11 = divide(t9, 200.0);
        out0[base_out0 + i0] = t11;
        out1[base_out1 + i0] = t6;
    }
}
