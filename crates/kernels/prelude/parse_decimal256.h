/* *m = *m * factor + part, unsigned; 0 if the result is 2^255 or more. */
FN i32 i256_take(i256 *m, u64 factor, u64 part) {
  i32 over;
  i256 product = u256_mul(*m, i256_of_u64(factor), &over);
  if (over | i256_is_neg(product)) return 0;
  *m = i256_add(product, i256_of_u64(part));
  return !i256_is_neg(*m);
}
/* Appends decimal digits to *m, 18 at a time; 0 for other characters, or a result of 2^255 or more.
   */
COLD_FN i32 i256_take_digits(i256 *m, str s, u32 at, u32 end) {
  ROLLED while (at < end) {
    u64 part = 0, factor = 1;
    ROLLED for (u32 j = 0; j < 18 && at < end; ++j) {
      if (!is_digit(s.p[at])) return 0;
      part = part * 10 + (u64)(s.p[at++] - 48);
      factor *= 10;
    }
    if (!i256_take(m, factor, part)) return 0;
  }
  return 1;
}
/* *m = *m * 10^power; 0 if the result is 2^255 or more. */
COLD_FN i32 i256_take_zeros(i256 *m, u32 power) {
  ROLLED while (power) {
    u64 factor = 1;
    ROLLED for (u32 j = 0; j < 18 && power; ++j) { factor *= 10; --power; }
    if (!i256_take(m, factor, 0)) return 0;
  }
  return 1;
}
/* Decimals of 256 bits, as in arrow-rs: a string of more than `scale` decimals may wrap. */
COLD_FN i32 parse_decimal256(str s, u32 scale, i256 *value) {
  *value = i256_of(0);
  s = str_trim(s);
  u32 at, point, decimals;
  i32 negative = s.len && s.p[0] == 45;
  if (!decimal_parts(s, &at, &point, &decimals)) return 0;
  i256 m = i256_of(0);
  if (!i256_take_digits(&m, s, at, point)) return 0;
  if (decimals <= scale) {
    if (decimals && !i256_take_digits(&m, s, point + 1, s.len)) return 0;
    if (!i256_take_zeros(&m, scale - decimals)) return 0;
  } else {
    i256 rest = i256_of(0), unit = i256_of(1), one = i256_of(1);
    if (decimals - scale > 76 || !i256_take_digits(&rest, s, point + 1, s.len)) return 0;
    i256_take_zeros(&unit, decimals - scale);
    i256_take_zeros(&one, scale);
    m = i256_add(i256_mul(m, one), i256_div_half_up(rest, unit));
    if (negative && i256_is_neg(m)) return 0;
  }
  *value = negative ? i256_neg(m) : m;
  return 1;
}
