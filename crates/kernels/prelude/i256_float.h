/* 256-bit integers from and to f64. */
FN i256 i256_shl(i256 a, u32 n) {
  i256 r;
  for (u32 i = 0; i < 4; ++i) {
    u32 words = n >> 6, bits = n & 63;
    u64 high = i >= words ? a.w[i - words] : 0, low = i > words ? a.w[i - words - 1] : 0;
    r.w[i] = bits ? (high << bits) | (low >> (64 - bits)) : high;
  }
  return r;
}
/* As in arrow-rs: bits below the top 64 are dropped, then the rest is rounded. */
FN f64 i256_to_f64(i256 a) {
  u64 sign = (u64)((i64)a.w[3] >> 63);
  u32 same = 0, i = 4;
  while (i > 0 && a.w[i - 1] == sign) {
    --i;
    same += 64;
  }
  if (i) same += CLZ64(a.w[i - 1] ^ sign);
  --same;
  return (f64)(i64)i256_shl(a, same).w[3] * BITS_F64((u64)(1023 + 192 - same) << 52);
}
/* Truncates; -2^255 <= a < 2^255. */
FN i256 f64_to_i256(f64 a) {
  u64 bits = F64_BITS(a);
  i32 exponent = (i32)((bits >> 52) & 0x7ff) - 1075;
  u64 m = (bits & (u64)0x000fffffffffffffUL) | (u64)0x0010000000000000UL;
  if (exponent <= -53) return i256_of(0);
  i256 r = exponent < 0 ? i256_of_u64(m >> -exponent) : i256_shl(i256_of_u64(m), (u32)exponent);
  return bits >> 63 ? i256_neg(r) : r;
}
