/* Strings in another case, by the case table. Functions append as those of append.h. */
FN u64 append_cased(G u8 *to, u64 n, u32 code, const G u32 *cases, u32 kind) {
  if (code < 0x80) {
    u32 first = kind == UPPER ? 'a' : 'A';
    return append_byte(to, n, code - first < 26 ? code ^ 32 : code);
  }
  u32 other = case_of(cases, kind, code);
  if (!(other >> 31)) return append_code_point(to, n, other);
  const G u32 *several = cases + (other & 0x7fffffff);
  for (u32 i = 0; i < 3 && several[i]; ++i) n = append_code_point(to, n, several[i]);
  return n;
}
COLD_FN u64 append_upper(G u8 *to, u64 n, str s, const G u32 *cases) {
  for (u32 i = 0; i < s.len;) {
    character c = str_at(s, i);
    n = append_cased(to, n, c.code, cases, UPPER);
    i = c.next;
  }
  return n;
}
/* Whether the sigma between offsets `i` and `next` is final (Unicode's Final_Sigma). A cased
   letter precedes it, and none follows; ignorable characters between are skipped. */
COLD_FN i32 is_final(str s, u32 i, u32 next, const G u32 *cases) {
  u32 before = IGNORED, behind = IGNORED;
  while (i > 0 && (before & IGNORED)) {
    i = str_previous(s, i);
    before = case_of(cases, PROPERTIES, str_at(s, i).code);
  }
  while (next < s.len && (behind & IGNORED)) {
    character c = str_at(s, next);
    behind = case_of(cases, PROPERTIES, c.code);
    next = c.next;
  }
  return (before & CASED) && !(behind & CASED);
}
COLD_FN u64 append_lower(G u8 *to, u64 n, str s, const G u32 *cases) {
  for (u32 i = 0; i < s.len;) {
    character c = str_at(s, i);
    if (c.code == 0x3a3) n = append_code_point(to, n, is_final(s, i, c.next, cases) ? 0x3c2 : 0x3c3);
    else n = append_cased(to, n, c.code, cases, LOWER);
    i = c.next;
  }
  return n;
}
/* The first of adjacent letters and digits in upper case, the others in lower case. */
COLD_FN u64 append_initcap(G u8 *to, u64 n, str s, const G u32 *cases) {
  u32 inside = 0;
  for (u32 i = 0; i < s.len;) {
    character c = str_at(s, i);
    n = append_cased(to, n, c.code, cases, inside ? LOWER : UPPER);
    inside = case_of(cases, PROPERTIES, c.code) & ALPHANUMERIC;
    i = c.next;
  }
  return n;
}
