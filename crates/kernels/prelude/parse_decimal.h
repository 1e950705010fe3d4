/* [+-]digits[.digits], rounded half away from zero to `scale` digits. */
COLD_FN i32 parse_decimal(str s, u32 scale, i128 *value) {
  *value = i128_of(0);
  s = str_trim(s);
  u32 at = 0, point, points = 0;
  i32 negative = s.len && s.p[0] == 45;
  point = s.len;
  ROLLED for (u32 i = 0; i < s.len; ++i)
    if (s.p[i] == 46) { point = points ? point : i; ++points; }
  if (points > 1) return 0;
  if (s.len && (s.p[0] == 45 || s.p[0] == 43)) at = 1;
  u32 decimals = points ? s.len - point - 1 : 0;
  if (point == at && decimals == 0) return 0;
  /* What arrow-rs computes in 256 bits on the way. */
  if (decimals > scale) {
    u32 zeros = 0;
    while (zeros < decimals && s.p[point + 1 + zeros] == 48) ++zeros;
    u32 digits = decimals - zeros;
    if (decimals - scale > 76 || digits > 77) return 0;
    if (digits == 77 && (u32)(s.p[point + 1 + zeros] - 48) * 10 + (u32)(s.p[point + 2 + zeros] - 48) > 57) return 0;
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
