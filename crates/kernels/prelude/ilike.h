/* SQL's ILIKE: as str_like, ignoring case by the case table. */
COLD_FN i32 str_ilike(str s, str p, const G u32 *cases) {
  u32 i = 0, j = 0, after = 0, from = 0;
  i32 any = 0;
  while (i < s.len) {
    u8 c = j < p.len ? p.p[j] : 0;
    if (j < p.len && c == '%') {
      any = 1;
      after = ++j;
      from = i;
      continue;
    }
    if (j < p.len && c == '_') {
      ++j;
      i = str_next(s, i);
      continue;
    }
    if (j < p.len) {
      u32 escape = j + 1 < p.len && c == '\\';
      character a = str_at(s, i), b = str_at(p, j + escape);
      if (folded(cases, a.code) == folded(cases, b.code)) {
        i = a.next;
        j = b.next;
        continue;
      }
    }
    if (!any) return 0;
    j = after;
    i = from = str_next(s, from);
  }
  while (j < p.len && p.p[j] == '%') ++j;
  return j == p.len;
}
