/* 128-bit integers from and to f64. */
/* Rounds to nearest, ties to even. */
FN f64 i128_to_f64(i128 a) {
  i128 m = i128_abs(a);
  f64 r;
  if (m.hi == 0) {
    r = (f64)m.lo;
  } else {
    u32 s = CLZ64(m.hi);
    u64 top = s ? (m.hi << s) | (m.lo >> (64 - s)) : m.hi;
    u64 rest = m.lo << s;
    /* The dropped bits matter for ties only: one bit stands for them. */
    r = (f64)(top | (rest != 0)) * BITS_F64((u64)(1023 + 64 - s) << 52);
  }
  return i128_is_neg(a) ? -r : r;
}
/* Truncates; |a| < 2^127. */
FN i128 f64_to_i128(f64 a) {
  u64 bits = F64_BITS(a);
  i32 exponent = (i32)((bits >> 52) & 0x7ff) - 1075;
  u64 m = (bits & (u64)0x000fffffffffffffUL) | (u64)0x0010000000000000UL;
  i128 r;
  if (exponent <= -53) return i128_of(0);
  if (exponent < 0) r = i128_of_u64(m >> -exponent);
  else if (exponent == 0) r = i128_of_u64(m);
  else if (exponent < 64) r = i128_make(m << exponent, m >> (64 - exponent));
  else r = i128_make(0, m << (exponent - 64));
  return bits >> 63 ? i128_neg(r) : r;
}
