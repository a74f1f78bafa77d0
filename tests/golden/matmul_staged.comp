#version 450
layout(local_size_x = 16, local_size_y = 16, local_size_z = 1) in;

layout(std430, binding = 0) readonly buffer Buffer_in0 { float in0[]; };
layout(std430, binding = 1) readonly buffer Buffer_in1 { float in1[]; };
layout(std430, binding = 2) readonly buffer Buffer_in2 { float in2[]; };
layout(std430, binding = 3) buffer Buffer_out0 { float out0[]; };
layout(push_constant) uniform Push {
    uint base_in0;
    uint base_in1;
    uint base_in2;
    uint base_out0;
    uint batches;
};

// numerics.glsl

// x Phi(x), Phi the normal distribution (Hendrycks and Gimpel 2016)
float gelu_(float x) {
    bool t0 = (6.0 < x);
    bool t1 = (x < -13.25);
    bool t2 = (x < 0.0);
    float t3 = absolute(x);
    bool t4 = (13.25 < t3);
    float t5 = (t4 ? 13.25 : t3);
    float t6 = mul(t5, t5);
    float t7 = mul(-0.5, t6);
    bool t8 = (8.125 <= t5);
    bool t9 = (4.75 <= t5);
    bool t10 = (2.5 <= t5);
    bool t11 = (1.125 <= t5);
    float t12 = (t11 ? -0.40625 : -0.625);
    float t13 = (t10 ? -0.25 : t12);
    float t14 = (t9 ? -0.15625 : t13);
    float t15 = (t8 ? -0.09375 : t14);
    uint t16 = bits_to_uint(t5);
    uint t17 = (t16 & 0xfffff000u);
    float t18 = bits_to_float(t17);
    float t19 = mul(t15, t18);
    float t20 = add(t7, t19);
    float t21 = (t11 ? -0.9581288 : -0.71602297);
    float t22 = (t10 ? -1.347952 : t21);
    float t23 = (t9 ? -1.7791698 : t22);
    float t24 = (t8 ? -2.2805896 : t23);
    float t25 = add(t20, t24);
    float t26 = (t11 ? -8.816139143164037e-07 : 0.000028885912);
    float t27 = (t10 ? -1.0691454690459068e-06 : t26);
    float t28 = (t9 ? -1.0692978236193085e-07 : t27);
    float t29 = (t8 ? -6.2025762304074306e-09 : t28);
    float t30 = (t11 ? 1.8125 : 0.5625);
    float t31 = (t10 ? 3.625 : t30);
    float t32 = (t9 ? 6.4375 : t31);
    float t33 = (t8 ? 10.6875 : t32);
    float t34 = sub(t5, t33);
    float t35 = mul(t29, t34);
    float t36 = (t11 ? 0.000030110416 : -0.000050749302);
    float t37 = (t10 ? 9.22372146305861e-06 : t36);
    float t38 = (t9 ? 1.059102032741066e-06 : t37);
    float t39 = (t8 ? 8.508569493415052e-08 : t38);
    float t40 = add(t35, t39);
    float t41 = mul(t40, t34);
    float t42 = (t11 ? -0.00027591814 : -0.00037248206);
    float t43 = (t10 ? -0.00006941061 : t42);
    float t44 = (t9 ? -9.78515345195774e-06 : t43);
    float t45 = (t8 ? -1.1191572184543475e-06 : t44);
    float t46 = add(t41, t45);
    float t47 = mul(t46, t34);
    float t48 = (t11 ? 0.0018854294 : 0.004179586);
    float t49 = (t10 ? 0.0005089779 : t48);
    float t50 = (t9 ? 0.00009606808 : t49);
    float t51 = (t8 ? 0.000016228292 : t50);
    float t52 = add(t47, t51);
    float t53 = mul(t52, t34);
    float t54 = (t11 ? -0.011213662 : -0.026041653);
    float t55 = (t10 ? -0.0036509978 : t54);
    float t56 = (t9 ? -0.0009700597 : t55);
    float t57 = (t8 ? -0.0002471789 : t56);
    float t58 = add(t53, t57);
    float t59 = mul(t58, t34);
    float t60 = (t11 ? 0.063067175 : 0.1292585);
    float t61 = (t10 ? 0.027048318 : t60);
    float t62 = (t9 ? 0.010601446 : t61);
    float t63 = (t8 ? 0.0041629053 : t62);
    float t64 = add(t59, t63);
    float t65 = mul(t64, t34);
    float t66 = (t11 ? 0.010518922 : 0.00038883352);
    float t67 = (t10 ? 0.0055460036 : t66);
    float t68 = (t9 ? 0.0076347403 : t67);
    float t69 = (t8 ? 0.0017536599 : t68);
    float t70 = add(t65, t69);
    float t71 = mul(t70, t34);
    float t72 = (t11 ? -0.016673377 : -0.022875829);
    float t73 = (t10 ? -0.017849939 : t72);
    float t74 = (t9 ? -0.01887305 : t73);
    float t75 = (t8 ? -0.014041677 : t74);
    float t76 = add(t71, t75);
    float t77 = sub(t20, t7);
    float t78 = sub(t20, t77);
    float t79 = sub(t7, t78);
    float t80 = sub(t19, t77);
    float t81 = add(t79, t80);
    float t82 = sub(t25, t20);
    float t83 = sub(t25, t82);
    float t84 = sub(t20, t83);
    float t85 = sub(t24, t82);
    float t86 = add(t84, t85);
    float t87 = add(t81, t86);
    float t88 = sub(t5, t18);
    float t89 = mul(t15, t88);
    float t90 = add(t87, t89);
    float t91 = mul(t18, t18);
    float t92 = sub(t91, t6);
    float t93 = mul(t18, t88);
    float t94 = add(t92, t93);
    float t95 = mul(t88, t18);
    float t96 = add(t94, t95);
    float t97 = mul(t88, t88);
    float t98 = add(t96, t97);
    float t99 = mul(0.5, t98);
    float t100 = sub(t90, t99);
    float t101 = add(t76, t100);
    float t102 = add(t25, t101);
    float t103 = mul(t102, 1.442695);
    float t104 = add(t103, 12582912.0);
    float t105 = sub(t104, 12582912.0);
    float t106 = mul(t105, 0.69314575);
    float t107 = sub(t102, t106);
    float t108 = sub(t102, t25);
    float t109 = sub(t101, t108);
    float t110 = mul(t105, 1.428606765330187e-06);
    float t111 = sub(t109, t110);
    float t112 = add(t107, t111);
    float t113 = add(1.0, t112);
    float t114 = sub(t113, 1.0);
    float t115 = sub(t112, t114);
    float t116 = mul(t112, t112);
    float t117 = mul(0.00019739557, t112);
    float t118 = add(t117, 0.0013935097);
    float t119 = mul(t118, t112);
    float t120 = add(t119, 0.008333571);
    float t121 = mul(t120, t112);
    float t122 = add(t121, 0.041666463);
    float t123 = mul(t122, t112);
    float t124 = add(t123, 0.16666666);
    float t125 = mul(t124, t112);
    float t126 = add(t125, 0.5);
    float t127 = mul(t116, t126);
    float t128 = sub(t112, t107);
    float t129 = sub(t111, t128);
    float t130 = mul(t129, t113);
    float t131 = add(t127, t130);
    float t132 = add(t115, t131);
    float t133 = add(t113, t132);
    uint t134 = bits_to_uint(t104);
    uint t135 = (t134 << 23u);
    uint t136 = (t135 + 0x5f800000u);
    float t137 = bits_to_float(t136);
    float t138 = mul(t133, t137);
    float t139 = mul(t138, 5.421010862427522e-20);
    float t140 = negate(t139);
    float t141 = add(1.0, t140);
    float t142 = (t2 ? t133 : t141);
    float t143 = mul(x, t142);
    bool t144 = (t143 == 0.0);
    uint t145 = bits_to_uint(x);
    uint t146 = (t145 & 0xfffff000u);
    float t147 = bits_to_float(t146);
    uint t148 = bits_to_uint(t142);
    uint t149 = (t148 & 0xfffff000u);
    float t150 = bits_to_float(t149);
    float t151 = mul(t147, t150);
    float t152 = sub(t151, t143);
    float t153 = sub(t142, t150);
    float t154 = mul(t147, t153);
    float t155 = add(t152, t154);
    float t156 = sub(x, t147);
    float t157 = mul(t156, t150);
    float t158 = add(t155, t157);
    float t159 = mul(t156, t153);
    float t160 = add(t158, t159);
    float t161 = sub(t133, t113);
    float t162 = sub(t132, t161);
    float t163 = sub(t141, 1.0);
    float t164 = sub(t140, t163);
    float t165 = mul(t162, t137);
    float t166 = mul(t165, 5.421010862427522e-20);
    float t167 = sub(t164, t166);
    float t168 = (t2 ? t162 : t167);
    float t169 = mul(x, t168);
    float t170 = mul(0.0, t142);
    float t171 = add(t169, t170);
    float t172 = add(t160, t171);
    float t173 = add(t143, t172);
    float t174 = (t144 ? t143 : t173);
    float t175 = mul(t174, t137);
    float t176 = mul(t175, 5.421010862427522e-20);
    float t177 = (t2 ? t176 : t174);
    float t178 = (t1 ? uintBitsToFloat(0x80000000u) : t177);
    float t179 = (t0 ? x : t178);
    return t179;
}

// out[batch, m, n] = epilogue(sum over k of a[batch, m, k] * b[batch, k, n]).
// Order along k: in sequence from +0 inside blocks of 128, block sums added in sequence.
shared float tile_a[16][64 + 1];
shared float tile_b[16][64];

void main() {
    uint local_n = gl_LocalInvocationID.x;
    uint local_m = gl_LocalInvocationID.y;
    uint local = local_m * 16u + local_n;
    for (uint batch = gl_WorkGroupID.z; batch < batches; batch += gl_NumWorkGroups.z)
    for (uint tile_row = gl_WorkGroupID.y; tile_row * 64u < 6u; tile_row += gl_NumWorkGroups.y)
    for (uint tile_column = gl_WorkGroupID.x; tile_column * 64u < 40u; tile_column += gl_NumWorkGroups.x) {
        uint i0 = batch;
        // Spare rows and columns read the last ones and discard the result.
        uint row0 = min(tile_row * 64u + 0u + local_m, 5u);
        uint row1 = min(tile_row * 64u + 16u + local_m, 5u);
        uint row2 = min(tile_row * 64u + 32u + local_m, 5u);
        uint row3 = min(tile_row * 64u + 48u + local_m, 5u);
        uint column0 = min(tile_column * 64u + 0u + local_n, 39u);
        uint column1 = min(tile_column * 64u + 16u + local_n, 39u);
        uint column2 = min(tile_column * 64u + 32u + local_n, 39u);
        uint column3 = min(tile_column * 64u + 48u + local_n, 39u);
        float total[16];
        for (uint block = 0u; block < 200u; block += 128u) {
            uint block_end = min(block + 128u, 200u);
            float sum0_0 = 0.0, sum0_1 = 0.0, sum0_2 = 0.0, sum0_3 = 0.0;
            float sum1_0 = 0.0, sum1_1 = 0.0, sum1_2 = 0.0, sum1_3 = 0.0;
            float sum2_0 = 0.0, sum2_1 = 0.0, sum2_2 = 0.0, sum2_3 = 0.0;
            float sum3_0 = 0.0, sum3_1 = 0.0, sum3_2 = 0.0, sum3_3 = 0.0;
            for (uint stage = block; stage < block_end; stage += 16u) {
                barrier();
                for (uint e = local; e < 1024u; e += 256u) {
                    uint k = min(stage + e % 16u, 199u);
                    uint m = min(tile_row * 64u + e / 16u, 5u);
                    tile_a[e % 16u][e / 16u] = in0[base_in0 + m * 200u + k];
                }
                for (uint e = local; e < 1024u; e += 256u) {
                    uint k = min(stage + e / 64u, 199u);
                    uint n = min(tile_column * 64u + e % 64u, 39u);
                    tile_b[e / 64u][e % 64u] = in1[base_in1 + k * 40u + n];
                }
                barrier();
                uint stage_end = min(16u, block_end - stage);
                for (uint s = 0u; s < stage_end; ++s) {
                    float a0 = tile_a[s][0u + local_m];
                    float a1 = tile_a[s][16u + local_m];
                    float a2 = tile_a[s][32u + local_m];
                    float a3 = tile_a[s][48u + local_m];
                    float b0 = tile_b[s][0u + local_n];
                    float b1 = tile_b[s][16u + local_n];
                    float b2 = tile_b[s][32u + local_n];
                    float b3 = tile_b[s][48u + local_n];
                    sum0_0 = add(sum0_0, mul(a0, b0));
                    sum0_1 = add(sum0_1, mul(a0, b1));
                    sum0_2 = add(sum0_2, mul(a0, b2));
                    sum0_3 = add(sum0_3, mul(a0, b3));
                    sum1_0 = add(sum1_0, mul(a1, b0));
                    sum1_1 = add(sum1_1, mul(a1, b1));
                    sum1_2 = add(sum1_2, mul(a1, b2));
                    sum1_3 = add(sum1_3, mul(a1, b3));
                    sum2_0 = add(sum2_0, mul(a2, b0));
                    sum2_1 = add(sum2_1, mul(a2, b1));
                    sum2_2 = add(sum2_2, mul(a2, b2));
                    sum2_3 = add(sum2_3, mul(a2, b3));
                    sum3_0 = add(sum3_0, mul(a3, b0));
                    sum3_1 = add(sum3_1, mul(a3, b1));
                    sum3_2 = add(sum3_2, mul(a3, b2));
                    sum3_3 = add(sum3_3, mul(a3, b3));
                }
            }
            bool first = block == 0u;
            total[0] = first ? sum0_0 : add(total[0], sum0_0);
            total[1] = first ? sum0_1 : add(total[1], sum0_1);
            total[2] = first ? sum0_2 : add(total[2], sum0_2);
            total[3] = first ? sum0_3 : add(total[3], sum0_3);
            total[4] = first ? sum1_0 : add(total[4], sum1_0);
            total[5] = first ? sum1_1 : add(total[5], sum1_1);
            total[6] = first ? sum1_2 : add(total[6], sum1_2);
            total[7] = first ? sum1_3 : add(total[7], sum1_3);
            total[8] = first ? sum2_0 : add(total[8], sum2_0);
            total[9] = first ? sum2_1 : add(total[9], sum2_1);
            total[10] = first ? sum2_2 : add(total[10], sum2_2);
            total[11] = first ? sum2_3 : add(total[11], sum2_3);
            total[12] = first ? sum3_0 : add(total[12], sum3_0);
            total[13] = first ? sum3_1 : add(total[13], sum3_1);
            total[14] = first ? sum3_2 : add(total[14], sum3_2);
            total[15] = first ? sum3_3 : add(total[15], sum3_3);
        }
        for (uint e = 0u; e < 16u; ++e) {
            uint m = tile_row * 64u + e / 4u * 16u + local_m;
            uint n = tile_column * 64u + e % 4u * 16u + local_n;
            if (m < 6u && n < 40u) {
                uint at = (batch * 6u + m) * 40u + n;
                float sum = total[e];
                float t1 = in2[base_in2 + n];
                float t2 = add(sum, t1);
                float t3 = gelu_(t2);
                out0[base_out0 + at] = t3;
            }
        }
    }
}
