/* log2, in the operations of glibc on processors with fused multiply-adds. The source is Arm's
   optimized-routines (math/log2.c, log2_data.c, log2f.c, log2f_data.c).
   Method: log2(2^k * z) = k + log2 c + log2(z / c) for a c near z. A table has log2 c, a polynomial
   gives the last term. */
/* For each c: 1/c and log2 c. */
TABLE(u64, LOG2_PARTS, 128) = {
  0x3ff724286bb1acf8UL, 0xbfe1095feecdb000UL, 0x3ff6e1f766d2cca1UL, 0xbfe08494bd76d000UL,
  0x3ff6a13d0e30d48aUL, 0xbfe00143aee8f800UL, 0x3ff661ec32d06c85UL, 0xbfdefec5360b4000UL,
  0x3ff623fa951198f8UL, 0xbfddfdd91ab7e000UL, 0x3ff5e75ba4cf026cUL, 0xbfdcffae0cc79000UL,
  0x3ff5ac055a214fb8UL, 0xbfdc043811fda000UL, 0x3ff571ed0f166e1eUL, 0xbfdb0b67323ae000UL,
  0x3ff53909590bf835UL, 0xbfda152f5a2db000UL, 0x3ff5014fed61adddUL, 0xbfd9217f5af86000UL,
  0x3ff4cab88e487bd0UL, 0xbfd8304db0719000UL, 0x3ff49539b4334feeUL, 0xbfd74189f9a9e000UL,
  0x3ff460cbdfafd569UL, 0xbfd6552bb5199000UL, 0x3ff42d664ee4b953UL, 0xbfd56b23a29b1000UL,
  0x3ff3fb01111dd8a6UL, 0xbfd483650f5fa000UL, 0x3ff3c995b70c5836UL, 0xbfd39de937f6a000UL,
  0x3ff3991c4ab6fd4aUL, 0xbfd2baa1538d6000UL, 0x3ff3698e0ce099b5UL, 0xbfd1d98340ca4000UL,
  0x3ff33ae48213e7b2UL, 0xbfd0fa853a40e000UL, 0x3ff30d191985bdb1UL, 0xbfd01d9c32e73000UL,
  0x3ff2e025cab271d7UL, 0xbfce857da2fa6000UL, 0x3ff2b404cf13cd82UL, 0xbfccd3c8633d8000UL,
  0x3ff288b02c7ccb50UL, 0xbfcb26034c14a000UL, 0x3ff25e2263944de5UL, 0xbfc97c1c2f4fe000UL,
  0x3ff234563d8615b1UL, 0xbfc7d6023f800000UL, 0x3ff20b46e33eaf38UL, 0xbfc633a71a05e000UL,
  0x3ff1e2eefdcda3ddUL, 0xbfc494f5e9570000UL, 0x3ff1bb4a580b3930UL, 0xbfc2f9e424e0a000UL,
  0x3ff19453847f2200UL, 0xbfc162595afdc000UL, 0x3ff16e06c0d5d73cUL, 0xbfbf9c9a75bd8000UL,
  0x3ff1485f47b7e4c2UL, 0xbfbc7b575bf9c000UL, 0x3ff12358ad0085d1UL, 0xbfb960c60ff48000UL,
  0x3ff0fef00f532227UL, 0xbfb64ce247b60000UL, 0x3ff0db2077d03a8fUL, 0xbfb33f78b2014000UL,
  0x3ff0b7e6d65980d9UL, 0xbfb0387d1a42c000UL, 0x3ff0953efe7b408dUL, 0xbfaa6f9208b50000UL,
  0x3ff07325cac53b83UL, 0xbfa47a954f770000UL, 0x3ff05197e40d1b5cUL, 0xbf9d23a8c50c0000UL,
  0x3ff03091c1208ea2UL, 0xbf916a2629780000UL, 0x3ff0101025b37e21UL, 0xbf7720f8d8e80000UL,
  0x3fefc07ef9caa76bUL, 0x3f86fe53b1500000UL, 0x3fef4465d3f6f184UL, 0x3fa11ccce10f8000UL,
  0x3feecc079f84107fUL, 0x3fac4dfc8c8b8000UL, 0x3fee573a99975ae8UL, 0x3fb3aa321e574000UL,
  0x3fede5d6f0bd3de6UL, 0x3fb918a0d08b8000UL, 0x3fed77b681ff38b3UL, 0x3fbe72e9da044000UL,
  0x3fed0cb5724de943UL, 0x3fc1dcd2507f6000UL, 0x3feca4b2dc0e7563UL, 0x3fc476ab03dea000UL,
  0x3fec3f8ee8d6cb51UL, 0x3fc7074377e22000UL, 0x3febdd2b4f020c4cUL, 0x3fc98ede8ba94000UL,
  0x3feb7d6c006015caUL, 0x3fcc0db86ad2e000UL, 0x3feb20366e2e338fUL, 0x3fce840aafcee000UL,
  0x3feac57026295039UL, 0x3fd0790ab4678000UL, 0x3fea6d01bc2731ddUL, 0x3fd1ac056801c000UL,
  0x3fea16d3bc3ff18bUL, 0x3fd2db11d4fee000UL, 0x3fe9c2d14967feadUL, 0x3fd406464ec58000UL,
  0x3fe970e4f47c9902UL, 0x3fd52dbe093af000UL, 0x3fe920fb3982bcf2UL, 0x3fd651902050d000UL,
  0x3fe8d30187f759f1UL, 0x3fd771d2cdeaf000UL, 0x3fe886e5ebb9f66dUL, 0x3fd88e9c857d9000UL,
  0x3fe83c97b658b994UL, 0x3fd9a80155e16000UL, 0x3fe7f405ffc61022UL, 0x3fdabe186ed3d000UL,
  0x3fe7ad22181415caUL, 0x3fdbd0f2aea0e000UL, 0x3fe767dcf99eff8cUL, 0x3fdce0a43dbf4000UL
};
TABLE(u64, LOG2_PARTS_F32, 32) = {
  0x3ff661ec79f8f3beUL, 0xbfdefec65b963019UL, 0x3ff571ed4aaf883dUL, 0xbfdb0b6832d4fca4UL,
  0x3ff49539f0f010b0UL, 0xbfd7418b0a1fb77bUL, 0x3ff3c995b0b80385UL, 0xbfd39de91a6dcf7bUL,
  0x3ff30d190c8864a5UL, 0xbfd01d9bf3f2b631UL, 0x3ff25e227b0b8ea0UL, 0xbfc97c1d1b3b7af0UL,
  0x3ff1bb4a4a1a343fUL, 0xbfc2f9e393af3c9fUL, 0x3ff12358f08ae5baUL, 0xbfb960cbbf788d5cUL,
  0x3ff0953f419900a7UL, 0xbfaa6f9db6475fceUL, 0x3ff0000000000000UL, 0x0000000000000000UL,
  0x3fee608cfd9a47acUL, 0x3fb338ca9f24f53dUL, 0x3feca4b31f026aa0UL, 0x3fc476a9543891baUL,
  0x3feb2036576afce6UL, 0x3fce840b4ac4e4d2UL, 0x3fe9c2d163a1aa2dUL, 0x3fd40645f0c6651cUL,
  0x3fe886e6037841edUL, 0x3fd88e9c2c1b9ff8UL, 0x3fe767dcf5534862UL, 0x3fdce0a44eb17bccUL
};
FN f64 f64_log2_of(f64 x) {
  /* 1 / ln 2 as a sum of two floats. */
  const f64 scale = 0x1.71547652p+0, scale_rest = 0x1.705fc2eefa2p-33;
  f64 r, r2, r4, high, low, p, y;
  if (F64_BITS(x) - (u64)0x3feea4af00000000UL < (u64)0x000210aa00000000UL) {
    r = f64_minus(x, 1);
    high = f64_times(scale, r);
    low = f64_fma(r, scale_rest, f64_fma(scale, r, -high));
    r2 = f64_times(r, r);
    r4 = f64_times(r2, r2);
    p = f64_fma(r, 0x1.ec709dc3a03f7p-2, -0x1.71547652b82fep-1);
    y = f64_fma(p, r2, high);
    low = f64_plus(f64_fma(p, r2, f64_minus(high, y)), low);
    p = f64_fma(f64_fma(r, 0x1.0b32f285aee66p-3, -0x1.289e4a72c383cp-3), r2, f64_fma(r, 0x1.484d154f01b4ap-3, -0x1.7153fbc64a79bp-3));
    p = f64_fma(p, r4,
      f64_fma(f64_fma(r, 0x1.a61761ec4e736p-3, -0x1.ec709dd768fe5p-3), r2, f64_fma(r, 0x1.2776c50f05be4p-2, -0x1.71547652b7c3fp-2)));
    return f64_plus(y, f64_fma(p, r4, low));
  }
  f64_parts of = f64_parted(x, (u64)0x3fe6000000000000UL);
  u64 i = (of.index >> 46) * 2;
  f64 w = f64_plus(of.exponent, BITS_F64(LOG2_PARTS[i + 1])), t;
  r = f64_fma(of.part, BITS_F64(LOG2_PARTS[i]), -1);
  t = f64_times(scale, r);
  high = f64_plus(t, w);
  low = f64_plus(f64_plus(f64_minus(w, high), t), f64_fma(r, scale_rest, f64_fma(scale, r, -t)));
  r2 = f64_times(r, r);
  p = f64_fma(f64_fma(r, 0x1.2776c50034c48p-2, -0x1.7154764702ffbp-2), r2, f64_fma(r, 0x1.ec709dc3a04bep-2, -0x1.71547652b8339p-1));
  p = f64_fma(f64_fma(r, 0x1.a6225e117f92ep-3, -0x1.ec7b328ea92bcp-3), f64_times(r2, r2), p);
  return f64_plus(f64_fma(r2, p, low), high);
}
FN f64 f64_log2(f64 a) { return a > 0 && a < F64_INF ? f64_log2_of(a) : f64_log_edge(a); }
FN f32 f32_log2_of(f32 x) {
  f64_parts of = f64_parted((f64)x, (u64)0x3fe6600000000000UL);
  u64 i = (of.index >> 48) * 2;
  f64 r = f64_fma(of.part, BITS_F64(LOG2_PARTS_F32[i]), -1), r2 = f64_times(r, r);
  f64 y = f64_fma(r2, -0x1.712b6f70a7e4dp-2, f64_fma(r, 0x1.ecabf496832ep-2, -0x1.715479ffae3dep-1));
  f64 w = f64_plus(of.exponent, BITS_F64(LOG2_PARTS_F32[i + 1]));
  return (f32)f64_fma(r2, y, f64_fma(r, 0x1.715475f35c8b8p0, w));
}
FN f32 f32_log2(f32 a) { return a > 0 && a < F32_INF ? f32_log2_of(a) : f32_log_edge(a); }
