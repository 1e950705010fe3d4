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
/* As str_like. */
COLD_FN i32 concat_like(const str *s, u32 n, str p, u32 least) { return like_matches(s, n, p, least, 0); }
