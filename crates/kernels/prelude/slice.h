/* Slices and searches of strings, with the meaning of DataFusion's functions. */
#define LAST_I64 ((i64)0x7fffffffffffffffL)
/* `count` characters from character `start`, where 1 is the first; positions below 1 count as well.
   */
COLD_FN str str_substring(str s, i64 start, i64 count) {
  i64 from = start - 1, to = from > 0 && count > LAST_I64 - from ? LAST_I64 : from + count;
  from = from < 0 ? 0 : from;
  u32 first = str_skip(s, 0, (u64)from);
  return str_slice(s, first, to > from ? str_skip(s, first, (u64)(to - from)) : first);
}
/* The first `n` characters, or all but the last `-n`. */
COLD_FN str str_left(str s, i64 n) {
  return str_slice(s, 0, n < 0 ? str_skip_back(s, (u64)0 - (u64)n) : str_skip(s, 0, (u64)n));
}
/* The last `n` characters, or all but the first `-n`; the least `n` gives none. */
COLD_FN str str_right(str s, i64 n) {
  if (n == -LAST_I64 - 1) return str_make(s.p, 0);
  return str_slice(s, n < 0 ? str_skip(s, 0, (u64)(-n)) : str_skip_back(s, (u64)n), s.len);
}
/* Removes the characters of a set at the start, at the end. */
COLD_FN str str_trim_of(str s, str set, i32 start, i32 end) {
  u32 from = 0, to = s.len;
  while (start && from < to) {
    u32 next = str_next(s, from);
    if (!str_contains(set, str_slice(s, from, next))) break;
    from = next;
  }
  while (end && from < to) {
    u32 last = str_previous(s, to);
    if (!str_contains(set, str_slice(s, last, to))) break;
    to = last;
  }
  return str_slice(s, from, to);
}
/* Part `n` of a string split by a delimiter: from 1, or from -1 backwards; empty without such a
   part. */
COLD_FN str str_part(str s, str delimiter, i64 n) {
  str none = str_make(s.p, 0);
  if (delimiter.len == 0) return n == 1 || n == -1 ? s : none;
  u32 from = 0, to = s.len;
  while (n > 0) {
    u32 at = str_find(s, delimiter, from);
    if (--n == 0) return str_slice(s, from, at == NOT_FOUND ? s.len : at);
    if (at == NOT_FOUND) return none;
    from = at + delimiter.len;
  }
  while (n < 0) {
    u32 at = str_find_back(s, delimiter, to);
    if (++n == 0) return str_slice(s, at == NOT_FOUND ? 0 : at + delimiter.len, to);
    if (at == NOT_FOUND) return none;
    to = at;
  }
  return none;
}
/* The position in characters, from 1, of a substring; 0 without a match. */
COLD_FN u32 str_position(str s, str p) {
  u32 at = str_find(s, p, 0);
  return at == NOT_FOUND ? 0 : str_characters(str_make(s.p, at)) + 1;
}
/* The code point of the first character; 0 for an empty string. */
FN i32 str_ascii(str s) {
  if (s.len == 0) return 0;
  i32 code = s.p[0];
  if (code < 0x80) return code;
  code &= code < 0xe0 ? 0x1f : code < 0xf0 ? 0x0f : 0x07;
  for (u32 i = 1; i < s.len && !is_first(s.p[i]); ++i) code = code << 6 | (s.p[i] & 0x3f);
  return code;
}
