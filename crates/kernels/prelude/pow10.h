/* Powers of ten: 10^n = (hi:lo) * 2^e for -342 <= n <= 324. (hi:lo) is at least 2^126, and at most
   2 too large. */
typedef struct { u64 hi, lo; i32 e; } pow10;
/* 5^0, 5^1, ..., 5^27, shifted left to the top bit. */
TABLE(u64, FIVES, 28) = {
  0x8000000000000000UL, 0xa000000000000000UL, 0xc800000000000000UL, 0xfa00000000000000UL,
  0x9c40000000000000UL, 0xc350000000000000UL, 0xf424000000000000UL, 0x9896800000000000UL,
  0xbebc200000000000UL, 0xee6b280000000000UL, 0x9502f90000000000UL, 0xba43b74000000000UL,
  0xe8d4a51000000000UL, 0x9184e72a00000000UL, 0xb5e620f480000000UL, 0xe35fa931a0000000UL,
  0x8e1bc9bf04000000UL, 0xb1a2bc2ec5000000UL, 0xde0b6b3a76400000UL, 0x8ac7230489e80000UL,
  0xad78ebc5ac620000UL, 0xd8d726b7177a8000UL, 0x878678326eac9000UL, 0xa968163f0a57b400UL,
  0xd3c21bcecceda100UL, 0x84595161401484a0UL, 0xa56fa5b99019a5c8UL, 0xcecb8f27f4200f3aUL
};
/* 10^-364, 10^-336, ..., 10^308: high and low word, rounded up. */
TABLE(u64, TENS, 50) = {
  0xe1afa13afbd14d6dUL, 0x82189c09a3a1ec22UL, 0xe3e27a444d8d98b7UL, 0xfd1b1b2308169b26UL,
  0xe61acf033d1a45dfUL, 0x6fb92487298e33beUL, 0xe858ad248f5c22c9UL, 0xd1b3400f8f9cff69UL,
  0xea9c227723ee8bcbUL, 0x465e15a979c1caddUL, 0xece53cec4a314ebdUL, 0xa4f8bf5635246429UL,
  0xef340a98172aace4UL, 0x86fb897116c87c35UL, 0xf18899b1bc3f8ca1UL, 0xdc44e6c3cb279ac2UL,
  0xf3e2f893dec3f126UL, 0x5a89dba3c3efccfbUL, 0xf64335bcf065d37dUL, 0x4d4617b5ff4a16d6UL,
  0xf8a95fcf88747d94UL, 0x75a44c6397ce912bUL, 0xfb158592be068d2eUL, 0xeed6e2f0f0d56713UL,
  0xfd87b5f28300ca0dUL, 0x8bca9d6e188853fdUL, 0x8000000000000000UL, 0x0000000000000000UL,
  0x813f3978f8940984UL, 0x4000000000000000UL, 0x82818f1281ed449fUL, 0xbff8f10e7a8921a5UL,
  0x83c7088e1aab65dbUL, 0x792667c6da79e0fbUL, 0x850fadc09923329eUL, 0x03e2cf6bc604ddb1UL,
  0x865b86925b9bc5c2UL, 0x0b8a2392ba45a9b3UL, 0x87aa9aff79042286UL, 0x90fb44d2f05d0843UL,
  0x88fcf317f22241e2UL, 0x441fece3bdf81f04UL, 0x8a5296ffe33cc92fUL, 0x82bd6b70d99aaa70UL,
  0x8bab8eefb6409c1aUL, 0x1ad089b6c2f7548fUL, 0x8d07e33455637eb2UL, 0xdb0b487b6423e1e9UL,
  0x8e679c2f5e44ff8fUL, 0x570f09eaa7ea7649UL
};
/* The exponent of the greatest power of two at or below 10^n. */
FN i32 pow2_below(i32 n) { return n * 217706 >> 16; }
COLD_FN pow10 pow10_of(i32 n) {
  u32 ten = (u32)(n + 364) / 28, five = (u32)(n + 364) - ten * 28;
  u64 hi = TENS[ten * 2], lo = TENS[ten * 2 + 1], f = FIVES[five], cross = hi * f;
  pow10 r;
  r.lo = MULHI64(lo, f) + cross;
  r.hi = MULHI64(hi, f) + (r.lo < cross);
  r.lo += lo * f != 0;
  r.e = pow2_below(n - (i32)five) + pow2_below((i32)five) - 126;
  return r;
}
