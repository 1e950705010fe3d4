/* SQL's LIKE: % is any text, _ a character, a backslash makes whatever follows an ordinary byte. Where what follows a %
   fails, that % takes a character more; the ones before it never have to. */
COLD_FN i32 str_like(str s, str p) {
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
    u32 escape = j + 1 < p.len && c == '\\';
    if (j < p.len && s.p[i] == p.p[j + escape]) {
      j += 1 + escape;
      ++i;
      continue;
    }
    if (!any) return 0;
    j = after;
    i = from = str_next(s, from);
  }
  while (j < p.len && p.p[j] == '%') ++j;
  return j == p.len;
}
