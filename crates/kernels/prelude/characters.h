/* Characters of UTF-8 strings, by byte offsets. */
/* Whether a byte begins a character. */
FN i32 is_first(u8 c) { return (c & 0xc0) != 0x80; }
/* The offset after the character at `i`. */
FN u32 str_next(str s, u32 i) {
  for (++i; i < s.len && !is_first(s.p[i]); ++i) {}
  return i;
}
/* The offset of the character before `i`; `i` > 0. */
FN u32 str_previous(str s, u32 i) {
  for (--i; i > 0 && !is_first(s.p[i]); --i) {}
  return i;
}
/* The offset after `n` characters from `i`, at most the end. */
FN u32 str_skip(str s, u32 i, u64 n) {
  for (; n > 0 && i < s.len; --n) i = str_next(s, i);
  return i;
}
/* The offset of the last `n` characters, at least 0. */
FN u32 str_skip_back(str s, u64 n) {
  u32 i = s.len;
  for (; n > 0 && i > 0; --n) i = str_previous(s, i);
  return i;
}
FN u32 str_characters(str s) {
  u32 n = 0;
  for (u32 i = 0; i < s.len; ++i) n += (u32)is_first(s.p[i]);
  return n;
}
FN str str_slice(str s, u32 from, u32 to) { return str_make(s.p + from, to - from); }
