/* New strings. Each function appends to the `n` bytes at `to` and returns the new length; without
   `to` it only counts. */
FN u64 append_byte(G u8 *to, u64 n, u32 c) {
  if (to) to[n] = (u8)c;
  return n + 1;
}
FN u64 append_str(G u8 *to, u64 n, str s) {
  if (to)
    for (u32 i = 0; i < s.len; ++i) to[n + i] = s.p[i];
  return n + s.len;
}
/* Appends strings in turn. */
COLD_FN u64 append_all(G u8 *to, u64 n, const str *parts, u32 count) {
  ROLLED for (u32 i = 0; i < count; ++i) n = append_str(to, n, parts[i]);
  return n;
}
/* A character by its code point. */
FN u64 append_code_point(G u8 *to, u64 n, u32 code) {
  if (code < 0x80) return append_byte(to, n, code);
  if (code < 0x800) return append_byte(to, append_byte(to, n, 0xc0 | code >> 6), 0x80 | (code & 0x3f));
  if (code < 0x10000) n = append_byte(to, n, 0xe0 | code >> 12);
  else n = append_byte(to, append_byte(to, n, 0xf0 | code >> 18), 0x80 | (code >> 12 & 0x3f));
  return append_byte(to, append_byte(to, n, 0x80 | (code >> 6 & 0x3f)), 0x80 | (code & 0x3f));
}
COLD_FN u64 append_replaced(G u8 *to, u64 n, str s, str from, str with) {
  u32 i = 0;
  while (from.len) {
    u32 at = str_find(s, from, i);
    if (at == NOT_FOUND) break;
    n = append_str(to, append_str(to, n, str_slice(s, i, at)), with);
    i = at + from.len;
  }
  return append_str(to, n, str_slice(s, i, s.len));
}
COLD_FN u64 append_repeated(G u8 *to, u64 n, str s, i64 count) {
  if (count <= 0 || s.len == 0) return n;
  if (to)
    for (i64 k = 0; k < count; ++k) append_str(to, n + (u64)k * s.len, s);
  return n + (u64)count * s.len;
}
/* A string padded with the repeated fill to `count` characters, or truncated to them. */
COLD_FN u64 append_padded(G u8 *to, u64 n, str s, i64 count, str fill, i32 left) {
  u64 wanted = count < 0 ? 0 : (u64)count, known = str_characters(s);
  if (known >= wanted) return append_str(to, n, str_slice(s, 0, str_skip(s, 0, wanted)));
  if (!left) n = append_str(to, n, s);
  if (fill.len) {
    u64 missing = wanted - known, all = str_characters(fill);
    n = append_repeated(to, n, fill, (i64)(missing / all));
    n = append_str(to, n, str_slice(fill, 0, str_skip(fill, 0, missing % all)));
  }
  return left ? append_str(to, n, s) : n;
}
COLD_FN u64 append_reversed(G u8 *to, u64 n, str s) {
  for (u32 end = s.len; end > 0;) {
    u32 from = str_previous(s, end);
    n = append_str(to, n, str_slice(s, from, end));
    end = from;
  }
  return n;
}
/* A string with the characters of `from` replaced by those at the same position of `with`;
   characters without a counterpart are removed. */
COLD_FN u64 append_translated(G u8 *to, u64 n, str s, str from, str with) {
  for (u32 i = 0; i < s.len;) {
    u32 next = str_next(s, i);
    str c = str_slice(s, i, next);
    u32 at = str_find(from, c, 0);
    if (at == NOT_FOUND) {
      n = append_str(to, n, c);
    } else {
      u32 first = str_skip(with, 0, str_characters(str_make(from.p, at)));
      if (first < with.len) n = append_str(to, n, str_slice(with, first, str_next(with, first)));
    }
    i = next;
  }
  return n;
}
/* A string with `count` characters from character `start` replaced, where 1 is the first. */
COLD_FN u64 append_overlay(G u8 *to, u64 n, str s, str with, i64 start, i64 count) {
  i64 from = start - 1, end = count > LAST_I64 - from ? LAST_I64 : from + count;
  n = append_str(to, n, str_slice(s, 0, str_skip(s, 0, (u64)from)));
  n = append_str(to, n, with);
  return append_str(to, n, str_slice(s, str_skip(s, 0, end < 0 ? 0 : (u64)end), s.len));
}
