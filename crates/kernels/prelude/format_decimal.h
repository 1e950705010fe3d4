/* A decimal as text: at most `precision` digits, the point before the last `scale` of them. */
COLD_FN u32 format_decimal(G u8 *p, i128 v, u32 precision, i32 scale) {
  u8 digits[40];
  u32 n = 0, len = 0;
  i128 m = i128_abs(v);
  if (m.hi == 0 && m.lo == 0) digits[n++] = 48;
  ROLLED while (m.hi != 0) {
    /* m = high * 10^18 + low */
    i128 low;
    m = u128_divmod(m, i128_of_u64((u64)1000000000000000000UL), &low);
    u64 part = low.lo;
    ROLLED for (u32 j = 0; j < 18; ++j) { digits[n++] = (u8)(48 + (u32)(part % 10)); part /= 10; }
  }
  ROLLED for (u64 part = m.lo; part; part /= 10) digits[n++] = (u8)(48 + (u32)(part % 10));
  while (n > 1 && digits[n - 1] == 48) --n;
  /* digits[n - 1] is the first one. */
  if (i128_is_neg(v)) p[len++] = 45;
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
