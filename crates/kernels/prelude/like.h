/* The number of literal bytes of a pattern from offset `j`. */
FN u32 like_plain(str p, u32 j) {
  u32 end = j;
  while (end < p.len && p.p[end] != '%' && p.p[end] != '_' && p.p[end] != '\\') ++end;
  return end - j;
}
/* SQL's LIKE: `%` matches any string, `_` a character, and a backslash escapes the next byte. After
   a mismatch the last `%` takes more characters, up to the next occurrence of the literal bytes
   behind it; earlier ones keep theirs. */
COLD_FN i32 str_like(str s, str p) {
  u32 i = 0, j = 0, after = 0, from = 0, plain = 0;
  i32 any = 0, again = 0;
  while (i < s.len) {
    u8 c = j < p.len ? p.p[j] : 0;
    if (!again) {
      if (j < p.len && c == '%') {
        any = again = 1;
        after = ++j;
        from = i;
        plain = like_plain(p, j);
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
      from = str_next(s, from);
    }
    again = 0;
    if (plain) from = str_find(s, str_make(p.p + after, plain), from);
    if (from == NOT_FOUND) return 0;
    i = from + plain;
    j = after + plain;
  }
  while (j < p.len && p.p[j] == '%') ++j;
  return j == p.len;
}
