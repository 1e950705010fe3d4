/* Length, characters and LIKE of a concatenation, given as an array of strings. */
FN u64 concat_len(const str *s, u32 n) {
  u64 len = 0;
  for (u32 i = 0; i < n; ++i) len += s[i].len;
  return len;
}
FN u64 concat_characters(const str *s, u32 n) {
  u64 count = 0;
  for (u32 i = 0; i < n; ++i) count += str_characters(s[i]);
  return count;
}
FN u8 concat_at(const str *s, u64 i) {
  for (; i >= s->len; ++s) i -= s->len;
  return s->p[i];
}
/* The offset after the character at `i`. */
FN u64 concat_next(const str *s, u64 len, u64 i) {
  for (++i; i < len && !is_first(concat_at(s, i)); ++i) {}
  return i;
}
/* As str_like. */
COLD_FN i32 concat_like(const str *s, u32 n, str p) {
  u64 len = concat_len(s, n), i = 0, from = 0;
  u32 j = 0, after = 0;
  i32 any = 0;
  while (i < len) {
    u8 c = j < p.len ? p.p[j] : 0;
    if (j < p.len && c == '%') {
      any = 1;
      after = ++j;
      from = i;
      continue;
    }
    if (j < p.len && c == '_') {
      ++j;
      i = concat_next(s, len, i);
      continue;
    }
    u32 escape = j + 1 < p.len && c == '\\';
    if (j < p.len && concat_at(s, i) == p.p[j + escape]) {
      j += 1 + escape;
      ++i;
      continue;
    }
    if (!any) return 0;
    j = after;
    i = from = concat_next(s, len, from);
  }
  while (j < p.len && p.p[j] == '%') ++j;
  return j == p.len;
}
