/* Parsing. Functions return whether the string is valid, and write the value to a pointer. */
FN i32 is_digit(u8 c) { return (u8)(c - 48) < 10; }
FN i32 is_blank(u8 c) { return (c == 32) | (c == 9) | (c == 10) | (c == 12) | (c == 13); }
FN str str_from(str s, u32 from) { return str_make(s.p + from, s.len - from); }
/* The length in bytes of a Unicode white space character at p, or 0. */
FN u32 white_space(const G u8 *p, u32 len) {
  u8 c = p[0];
  if (((c >= 9) & (c <= 13)) | (c == 32)) return 1;
  if (c == 0xc2) return len >= 2 && (p[1] == 0x85 || p[1] == 0xa0) ? 2 : 0;
  if (c < 0xe1 || c > 0xe3 || len < 3) return 0;
  u32 x = (u32)p[1] << 8 | p[2];
  if (c == 0xe1) return x == 0x9a80 ? 3 : 0;
  if (c == 0xe3) return x == 0x8080 ? 3 : 0;
  return (x >= 0x8080 && x <= 0x808a) || x == 0x80a8 || x == 0x80a9 || x == 0x80af || x == 0x819f ? 3 : 0;
}
COLD_FN str str_trim_start(str s) {
  while (s.len) {
    u32 w = white_space(s.p, s.len);
    if (w == 0) break;
    s = str_from(s, w);
  }
  return s;
}
COLD_FN str str_trim(str s) {
  s = str_trim_start(s);
  while (s.len) {
    u32 w = 1;
    while (w < 3 && w < s.len && (s.p[s.len - w] & 0xc0) == 0x80) ++w;
    if (white_space(s.p + (s.len - w), w) != w) break;
    s.len -= w;
  }
  return s;
}
/* [+-]digits between ASCII blanks, as magnitude and sign. */
COLD_FN i32 parse_int(str s, u64 *magnitude, i32 *negative) {
  while (s.len && is_blank(s.p[s.len - 1])) --s.len;
  while (s.len && is_blank(s.p[0])) s = str_from(s, 1);
  *magnitude = 0;
  *negative = s.len && s.p[0] == 45;
  if (s.len && (s.p[0] == 45 || s.p[0] == 43)) s = str_from(s, 1);
  if (s.len == 0) return 0;
  u64 m = 0;
  for (u32 i = 0; i < s.len; ++i) {
    if (!is_digit(s.p[i])) return 0;
    u64 next = m * 10 + (u64)(s.p[i] - 48);
    if (m > (u64)0x1999999999999999UL || next < m) return 0;
    m = next;
  }
  *magnitude = m;
  return 1;
}
/* Case-insensitive prefixes of true, yes, false, no; on, off, of, 1, 0. */
COLD_FN i32 parse_bool(str s, i32 *value) {
  s = str_trim(s);
  *value = 0;
  if (s.len == 0 || s.len > 5) return 0;
  u64 w = 0;
  for (u32 i = 0; i < s.len; ++i) {
    u8 c = s.p[i];
    w |= (u64)(c >= 65 && c <= 90 ? c + 32 : c) << (8 * i);
  }
  *value = (w == (u64)0x74UL) | (w == (u64)0x7274UL) | (w == (u64)0x757274UL) | (w == (u64)0x65757274UL) |
           (w == (u64)0x79UL) | (w == (u64)0x6579UL) | (w == (u64)0x736579UL) | (w == (u64)0x6e6fUL) |
           (w == (u64)0x31UL);
  return *value | ((w == (u64)0x66UL) | (w == (u64)0x6166UL) | (w == (u64)0x6c6166UL) | (w == (u64)0x736c6166UL) |
           (w == (u64)0x65736c6166UL) | (w == (u64)0x6eUL) | (w == (u64)0x6f6eUL) | (w == (u64)0x666fUL) |
           (w == (u64)0x66666fUL) | (w == (u64)0x30UL));
}
/* [+-]digits without blanks, as Rust parses integers. */
FN i32 parse_ticks(str s, u64 *magnitude, i32 *negative) {
  if (s.len == 0 || is_blank(s.p[0]) || is_blank(s.p[s.len - 1])) return 0;
  return parse_int(s, magnitude, negative);
}
