/* Formats a decimal of 256 bits. */
COLD_FN u32 format_decimal256(G u8 *p, i256 v, u32 precision, i32 scale) {
  u8 digits[92];
  u32 n = 0;
  i256 m = i256_abs(v);
  if ((m.w[0] | m.w[1] | m.w[2] | m.w[3]) == 0) digits[n++] = 48;
  ROLLED while ((m.w[1] | m.w[2] | m.w[3]) != 0) {
    /* m = high * 10^18 + low */
    i256 low;
    m = u256_divmod(m, i256_of_u64((u64)1000000000000000000UL), &low);
    n = decimal_digits(digits, n, low.w[0], 18);
  }
  n = decimal_digits(digits, n, m.w[0], 20);
  return put_decimal(p, digits, n, i256_is_neg(v), precision, scale);
}
