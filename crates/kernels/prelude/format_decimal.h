/* Formats a decimal from its `n` digits, least significant first: at most `precision` leading
   digits, with the point before the last `scale`. */
COLD_FN u32 put_decimal(G u8 *p, const u8 *digits, u32 n, i32 negative, u32 precision, i32 scale) {
  u32 len = 0;
  while (n > 1 && digits[n - 1] == 48) --n;
  if (negative) p[len++] = 45;
  if (scale > 0 && n <= (u32)scale) {
    p[len++] = 48;
    p[len++] = 46;
    ROLLED for (u32 j = n; j < (u32)scale; ++j) p[len++] = 48;
    while (n) p[len++] = digits[--n];
    return len;
  }
  u32 kept = precision < n ? precision : n;
  u32 whole = scale > 0 ? kept - (u32)scale : kept;
  ROLLED for (u32 j = 0; j < kept; ++j) {
    if (scale > 0 && j == whole) p[len++] = 46;
    p[len++] = digits[n - 1 - j];
  }
  ROLLED for (i32 j = scale; j < 0; ++j) p[len++] = 48;
  return len;
}
/* Appends the digits of a number, least significant first: all of them, or exactly 18 if `most` is.
   */
FN u32 decimal_digits(u8 *digits, u32 n, u64 part, u32 most) {
  ROLLED for (u32 j = 0; j < most && (part || most == 18); ++j) { digits[n++] = (u8)(48 + (u32)(part % 10)); part /= 10; }
  return n;
}
/* Formats a decimal. */
COLD_FN u32 format_decimal(G u8 *p, i128 v, u32 precision, i32 scale) {
  u8 digits[40];
  u32 n = 0;
  i128 m = i128_abs(v);
  if (m.hi == 0 && m.lo == 0) digits[n++] = 48;
  ROLLED while (m.hi != 0) {
    /* m = high * 10^18 + low */
    i128 low;
    m = u128_divmod(m, i128_of_u64((u64)1000000000000000000UL), &low);
    n = decimal_digits(digits, n, low.lo, 18);
  }
  n = decimal_digits(digits, n, m.lo, 20);
  return put_decimal(p, digits, n, i128_is_neg(v), precision, scale);
}
