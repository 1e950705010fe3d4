/* Offsets in [+-]digits[.digits] without white space: of the first digit, and of the point, or the
   end; and the number of digits behind the point. 0 for another string. */
FN i32 decimal_parts(str s, u32 *at, u32 *point, u32 *decimals) {
  u32 points = 0;
  *point = s.len;
  ROLLED for (u32 i = 0; i < s.len; ++i)
    if (s.p[i] == 46) { *point = points ? *point : i; ++points; }
  *at = s.len && (s.p[0] == 45 || s.p[0] == 43);
  *decimals = points ? s.len - *point - 1 : 0;
  return points < 2 && (*point != *at || *decimals);
}
/* Whether 77 digits from offset `at` exceed 2^255 - 1. */
COLD_FN i32 is_beyond_256_bits(str s, u32 at) {
  const u64 most[5] = {(u64)57896UL, (u64)44618658097711785UL, (u64)492504343953926634UL, (u64)992332820282019728UL, (u64)792003956564819967UL};
  ROLLED for (u32 j = 0; j < 5; ++j) {
    u64 part = 0;
    ROLLED for (u32 k = 0; k < (j ? 18u : 5u); ++k) part = part * 10 + (u64)(s.p[at++] - 48);
    if (part != most[j]) return part > most[j];
  }
  return 0;
}
/* [+-]digits[.digits], rounded half away from zero to `scale` decimals. */
COLD_FN i32 parse_decimal(str s, u32 scale, i128 *value) {
  *value = i128_of(0);
  s = str_trim(s);
  u32 at, point, decimals;
  i32 negative = s.len && s.p[0] == 45;
  if (!decimal_parts(s, &at, &point, &decimals)) return 0;
  /* arrow-rs parses the decimals in 256 bits and fails if they overflow. */
  if (decimals > scale) {
    u32 zeros = 0;
    while (zeros < decimals && s.p[point + 1 + zeros] == 48) ++zeros;
    u32 digits = decimals - zeros;
    if (decimals - scale > 76 || digits > 77) return 0;
    if (digits == 77 && is_beyond_256_bits(s, point + 1 + zeros)) return 0;
  }
  i128 m = i128_of(0);
  u32 kept = decimals < scale ? decimals : scale, up = 0;
  ROLLED for (u32 i = at; i < s.len; ++i) {
    if (i == point) continue;
    u8 c = s.p[i];
    if (!is_digit(c)) return 0;
    if (i > point + kept) {
      up |= i == point + kept + 1 && c >= 53;
      continue;
    }
    if (m.hi > (u64)0x0cccccccccccccccUL) return 0;
    m = i128_add(i128_mul(m, i128_of(10)), i128_of_u64((u64)(c - 48)));
  }
  ROLLED for (u32 i = kept; i < scale; ++i) {
    if (m.hi > (u64)0x0cccccccccccccccUL) return 0;
    m = i128_mul(m, i128_of(10));
  }
  m = i128_add(m, i128_of_u64(up));
  if (i128_is_neg(m)) return 0;
  *value = negative ? i128_neg(m) : m;
  return 1;
}
