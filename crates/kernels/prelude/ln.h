/* ln, in the operations of glibc on processors with fused multiply-adds. The source is Arm's
   optimized-routines (math/log.c, log_data.c, logf.c, logf_data.c). Method: ln(2^k * z) = k ln 2 +
   ln c + ln(z / c) for a c near z. A table has ln c, a polynomial gives the last term. */
/* For each c: 1/c and ln c. */
TABLE(u64, LN_PARTS, 256) = {
  0x3ff734f0c3e0de9fUL, 0xbfd7cc7f79e69000UL, 0x3ff713786a2ce91fUL, 0xbfd76feec20d0000UL,
  0x3ff6f26008fab5a0UL, 0xbfd713e31351e000UL, 0x3ff6d1a61f138c7dUL, 0xbfd6b85b38287800UL,
  0x3ff6b1490bc5b4d1UL, 0xbfd65d5590807800UL, 0x3ff69147332f0cbaUL, 0xbfd602d076180000UL,
  0x3ff6719f18224223UL, 0xbfd5a8ca86909000UL, 0x3ff6524f99a51ed9UL, 0xbfd54f4356035000UL,
  0x3ff63356aa8f24c4UL, 0xbfd4f637c36b4000UL, 0x3ff614b36b9ddc14UL, 0xbfd49da7fda85000UL,
  0x3ff5f66452c65c4cUL, 0xbfd445923989a800UL, 0x3ff5d867b5912c4fUL, 0xbfd3edf439b0b800UL,
  0x3ff5babccb5b90deUL, 0xbfd396ce448f7000UL, 0x3ff59d61f2d91a78UL, 0xbfd3401e17bda000UL,
  0x3ff5805612465687UL, 0xbfd2e9e2ef468000UL, 0x3ff56397cee76bd3UL, 0xbfd2941b3830e000UL,
  0x3ff54725e2a77f93UL, 0xbfd23ec58cda8800UL, 0x3ff52aff42064583UL, 0xbfd1e9e129279000UL,
  0x3ff50f22dbb2bddfUL, 0xbfd1956d2b48f800UL, 0x3ff4f38f4734ded7UL, 0xbfd141679ab9f800UL,
  0x3ff4d843cfde2840UL, 0xbfd0edd094ef9800UL, 0x3ff4bd3ec078a3c8UL, 0xbfd09aa518db1000UL,
  0x3ff4a27fc3e0258aUL, 0xbfd047e65263b800UL, 0x3ff4880524d48434UL, 0xbfcfeb224586f000UL,
  0x3ff46dce1b192d0bUL, 0xbfcf474a7517b000UL, 0x3ff453d9d3391854UL, 0xbfcea4443d103000UL,
  0x3ff43a2744b4845aUL, 0xbfce020d44e9b000UL, 0x3ff420b54115f8fbUL, 0xbfcd60a22977f000UL,
  0x3ff40782da3ef4b1UL, 0xbfccc00104959000UL, 0x3ff3ee8f5d57fe8fUL, 0xbfcc202956891000UL,
  0x3ff3d5d9a00b4ce9UL, 0xbfcb81178d811000UL, 0x3ff3bd60c010c12bUL, 0xbfcae2c9ccd3d000UL,
  0x3ff3a5242b75dab8UL, 0xbfca45402e129000UL, 0x3ff38d22cd9fd002UL, 0xbfc9a877681df000UL,
  0x3ff3755bc5847a1cUL, 0xbfc90c6d69483000UL, 0x3ff35dce49ad36e2UL, 0xbfc87120a645c000UL,
  0x3ff34679984dd440UL, 0xbfc7d68fb4143000UL, 0x3ff32f5cceffcb24UL, 0xbfc73cb83c627000UL,
  0x3ff3187775a10d49UL, 0xbfc6a39a9b376000UL, 0x3ff301c8373e3990UL, 0xbfc60b3154b7a000UL,
  0x3ff2eb4ebb95f841UL, 0xbfc5737d76243000UL, 0x3ff2d50a0219a9d1UL, 0xbfc4dc7b8fc23000UL,
  0x3ff2bef9a8b7fd2aUL, 0xbfc4462c51d20000UL, 0x3ff2a91c7a0c1babUL, 0xbfc3b08abc830000UL,
  0x3ff293726014b530UL, 0xbfc31b996b490000UL, 0x3ff27dfa5757a1f5UL, 0xbfc2875490a44000UL,
  0x3ff268b39b1d3bbfUL, 0xbfc1f3b9f879a000UL, 0x3ff2539d838ff5bdUL, 0xbfc160c8252ca000UL,
  0x3ff23eb7aac9083bUL, 0xbfc0ce7f57f72000UL, 0x3ff22a012ba940b6UL, 0xbfc03cdc49fea000UL,
  0x3ff2157996cc4132UL, 0xbfbf57bdbc4b8000UL, 0x3ff201201dd2fc9bUL, 0xbfbe370896404000UL,
  0x3ff1ecf4494d480bUL, 0xbfbd17983ef94000UL, 0x3ff1d8f5528f6569UL, 0xbfbbf9674ed8a000UL,
  0x3ff1c52311577e7cUL, 0xbfbadc79202f6000UL, 0x3ff1b17c74cb26e9UL, 0xbfb9c0c3e7288000UL,
  0x3ff19e010c2c1ab6UL, 0xbfb8a646b372c000UL, 0x3ff18ab07bb670bdUL, 0xbfb78d01b3ac0000UL,
  0x3ff1778a25efbcb6UL, 0xbfb674f145380000UL, 0x3ff1648d354c31daUL, 0xbfb55e0e6d878000UL,
  0x3ff151b990275fddUL, 0xbfb4485cdea1e000UL, 0x3ff13f0ea432d24cUL, 0xbfb333d94d6aa000UL,
  0x3ff12c8b7210f9daUL, 0xbfb22079f8c56000UL, 0x3ff11a3028ecb531UL, 0xbfb10e4698622000UL,
  0x3ff107fbda8434afUL, 0xbfaffa6c6ad20000UL, 0x3ff0f5ee0f4e6bb3UL, 0xbfadda8d4a774000UL,
  0x3ff0e4065d2a9fceUL, 0xbfabbcece4850000UL, 0x3ff0d244632ca521UL, 0xbfa9a1894012c000UL,
  0x3ff0c0a77ce2981aUL, 0xbfa788583302c000UL, 0x3ff0af2f83c636d1UL, 0xbfa5715e67d68000UL,
  0x3ff09ddb98a01339UL, 0xbfa35c8a49658000UL, 0x3ff08cabaf52e7dfUL, 0xbfa149e364154000UL,
  0x3ff07b9f2f4e28fbUL, 0xbf9e72c082eb8000UL, 0x3ff06ab58c358f19UL, 0xbf9a55f152528000UL,
  0x3ff059eea5ecf92cUL, 0xbf963d62cf818000UL, 0x3ff04949cdd12c90UL, 0xbf9228fb8caa0000UL,
  0x3ff038c6c6f0ada9UL, 0xbf8c317b20f90000UL, 0x3ff02865137932a9UL, 0xbf8419355daa0000UL,
  0x3ff0182427ea7348UL, 0xbf781203c2ec0000UL, 0x3ff008040614b195UL, 0xbf60040979240000UL,
  0x3fefe01ff726fa1aUL, 0x3f6feff384900000UL, 0x3fefa11cc261ea74UL, 0x3f87dc41353d0000UL,
  0x3fef6310b081992eUL, 0x3f93cea3c4c28000UL, 0x3fef25f63ceeadcdUL, 0x3f9b9fc114890000UL,
  0x3feee9c8039113e7UL, 0x3fa1b0d8ce110000UL, 0x3feeae8078cbb1abUL, 0x3fa58a5bd001c000UL,
  0x3fee741aa29d0c9bUL, 0x3fa95c8340d88000UL, 0x3fee3a91830a99b5UL, 0x3fad276aef578000UL,
  0x3fee01e009609a56UL, 0x3fb07598e598c000UL, 0x3fedca01e577bb98UL, 0x3fb253f5e30d2000UL,
  0x3fed92f20b7c9103UL, 0x3fb42edd8b380000UL, 0x3fed5cac66fb5cceUL, 0x3fb606598757c000UL,
  0x3fed272caa5ede9dUL, 0x3fb7da76356a0000UL, 0x3fecf26e3e6b2ccdUL, 0x3fb9ab434e1c6000UL,
  0x3fecbe6da2a77902UL, 0x3fbb78c7bb0d6000UL, 0x3fec8b266d37086dUL, 0x3fbd431332e72000UL,
  0x3fec5894bd5d5804UL, 0x3fbf0a3171de6000UL, 0x3fec26b533bb9f8cUL, 0x3fc067152b914000UL,
  0x3febf583eeece73fUL, 0x3fc147858292b000UL, 0x3febc4fd75db96c1UL, 0x3fc2266ecdca3000UL,
  0x3feb951e0c864a28UL, 0x3fc303d7a6c55000UL, 0x3feb65e2c5ef3e2cUL, 0x3fc3dfc33c331000UL,
  0x3feb374867c9888bUL, 0x3fc4ba366b7a8000UL, 0x3feb094b211d304aUL, 0x3fc5933928d1f000UL,
  0x3feadbe885f2ef7eUL, 0x3fc66acd2418f000UL, 0x3feaaf1d31603da2UL, 0x3fc740f8ec669000UL,
  0x3fea82e63fd358a7UL, 0x3fc815c0f51af000UL, 0x3fea5740ef09738bUL, 0x3fc8e92954f68000UL,
  0x3fea2c2a90ab4b27UL, 0x3fc9bb3602f84000UL, 0x3fea01a01393f2d1UL, 0x3fca8bed1c2c0000UL,
  0x3fe9d79f24db3c1bUL, 0x3fcb5b515c01d000UL, 0x3fe9ae2505c7b190UL, 0x3fcc2967ccbcc000UL,
  0x3fe9852ef297ce2fUL, 0x3fccf635d5486000UL, 0x3fe95cbaeea44b75UL, 0x3fcdc1bd3446c000UL,
  0x3fe934c69de74838UL, 0x3fce8c01b8cfe000UL, 0x3fe90d4f2f6752e6UL, 0x3fcf5509c0179000UL,
  0x3fe8e6528effd79dUL, 0x3fd00e6c121fb800UL, 0x3fe8bfce9fcc007cUL, 0x3fd071b80e93d000UL,
  0x3fe899c0dabec30eUL, 0x3fd0d46b9e867000UL, 0x3fe87427aa2317fbUL, 0x3fd13687334bd000UL,
  0x3fe84f00acb39a08UL, 0x3fd1980d67234800UL, 0x3fe82a49e8653e55UL, 0x3fd1f8ffe0cc8000UL,
  0x3fe8060195f40260UL, 0x3fd2595fd7636800UL, 0x3fe7e22563e0a329UL, 0x3fd2b9300914a800UL,
  0x3fe7beb377dcb5adUL, 0x3fd3187210436000UL, 0x3fe79baa679725c2UL, 0x3fd377266dec1800UL,
  0x3fe77907f2170657UL, 0x3fd3d54ffbaf3000UL, 0x3fe756cadbd6130cUL, 0x3fd432eee32fe000UL
};
TABLE(u64, LN_PARTS_F32, 32) = {
  0x3ff661ec79f8f3beUL, 0xbfd57bf7808caadeUL, 0x3ff571ed4aaf883dUL, 0xbfd2bef0a7c06ddbUL,
  0x3ff49539f0f010b0UL, 0xbfd01eae7f513a67UL, 0x3ff3c995b0b80385UL, 0xbfcb31d8a68224e9UL,
  0x3ff30d190c8864a5UL, 0xbfc6574f0ac07758UL, 0x3ff25e227b0b8ea0UL, 0xbfc1aa2bc79c8100UL,
  0x3ff1bb4a4a1a343fUL, 0xbfba4e76ce8c0e5eUL, 0x3ff12358f08ae5baUL, 0xbfb1973c5a611cccUL,
  0x3ff0953f419900a7UL, 0xbfa252f438e10c1eUL, 0x3ff0000000000000UL, 0x0000000000000000UL,
  0x3fee608cfd9a47acUL, 0x3faaa5aa5df25984UL, 0x3feca4b31f026aa0UL, 0x3fbc5e53aa362eb4UL,
  0x3feb2036576afce6UL, 0x3fc526e57720db08UL, 0x3fe9c2d163a1aa2dUL, 0x3fcbc2860d224770UL,
  0x3fe886e6037841edUL, 0x3fd1058bc8a07ee1UL, 0x3fe767dcf5534862UL, 0x3fd4043057b6ee09UL
};
/* Input: a positive finite number. */
FN f64 f64_ln_of(f64 x) {
  f64 r, r2, r3, w, high, low, y;
  if (F64_BITS(x) - (u64)0x3fee000000000000UL < (u64)0x0003090000000000UL) {
    /* Near 1: a longer polynomial, and r - r*r/2 in twice the precision. */
    f64 front, back;
    r = f64_minus(x, 1);
    r2 = f64_times(r, r);
    r3 = f64_times(r, r2);
    y = f64_fma(r2, 0x1.78182f7afd085p-4, f64_fma(r, -0x1.999eb43b068ffp-4, 0x1.c7184282ad6cap-4));
    y = f64_fma(r3, -0x1.5521375d145cdp-4, y);
    y = f64_fma(y, r3, f64_fma(r2, -0x1.fffffa4423d65p-4, f64_fma(r, 0x1.24924a344de3p-3, -0x1.55555556745a7p-3)));
    y = f64_fma(y, r3, f64_fma(r2, 0x1.999999995dd0cp-3, f64_fma(r, -0x1.ffffffffffdcbp-3, 0x1.5555555555577p-2)));
    front = f64_fma(r, -0x1p27, f64_fma(r, 0x1p27, r));
    back = f64_minus(r, front);
    w = f64_times(front, front);
    high = f64_fma(w, -0.5, r);
    low = f64_fma(w, -0.5, f64_minus(r, high));
    low = f64_fma(f64_times(-0.5, back), f64_plus(r, front), low);
    return f64_plus(high, f64_fma(y, r3, low));
  }
  f64_parts of = f64_parted(x, (u64)0x3fe6000000000000UL);
  u64 i = (of.index >> 45) * 2;
  w = f64_fma(of.exponent, 0x1.62e42fefa38p-1, BITS_F64(LN_PARTS[i + 1]));
  r = f64_fma(of.part, BITS_F64(LN_PARTS[i]), -1);
  high = f64_plus(w, r);
  low = f64_fma(of.exponent, 0x1.ef35793c7673p-45, f64_plus(f64_minus(w, high), r));
  r2 = f64_times(r, r);
  low = f64_fma(r2, -0x1.0000000000001p-1, low);
  y = f64_fma(r, -0x1.55575e506c89fp-3, 0x1.999b324f10111p-3);
  y = f64_fma(y, r2, f64_fma(r, -0x1.fffffffeb459p-3, 0x1.555555551305bp-2));
  return f64_plus(f64_fma(f64_times(r, r2), y, low), high);
}
FN f64 f64_ln(f64 a) { return a > 0 && a < F64_INF ? f64_ln_of(a) : f64_log_edge(a); }
FN f32 f32_ln_of(f32 x) {
  f64_parts of = f64_parted((f64)x, (u64)0x3fe6600000000000UL);
  u64 i = (of.index >> 48) * 2;
  f64 r = f64_fma(of.part, BITS_F64(LN_PARTS_F32[i]), -1), r2 = f64_times(r, r);
  f64 y = f64_fma(r2, -0x1.00ea348b88334p-2, f64_fma(r, 0x1.5575b0be00b6ap-2, -0x1.ffffef20a4123p-2));
  f64 w = f64_fma(of.exponent, 0x1.62e42fefa39efp-1, BITS_F64(LN_PARTS_F32[i + 1]));
  return (f32)f64_fma(r2, y, f64_plus(r, w));
}
FN f32 f32_ln(f32 a) { return a > 0 && a < F32_INF ? f32_ln_of(a) : f32_log_edge(a); }
