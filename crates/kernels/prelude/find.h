/* Substring search. Offsets are in bytes; NOT_FOUND without a match. */
#define NOT_FOUND (~0u)
FN i32 str_starts(str s, str p) {
  if (s.len < p.len) return 0;
  return str_eq(str_make(s.p, p.len), p);
}
FN i32 str_ends(str s, str p) {
  if (s.len < p.len) return 0;
  return str_eq(str_make(s.p + (s.len - p.len), p.len), p);
}
/* Whether `p` occurs at offset `i`; i + p.len <= s.len. */
FN i32 str_stands(str s, u32 i, str p) {
  u32 j = 0;
  while (j < p.len && s.p[i + j] == p.p[j]) ++j;
  return j == p.len;
}
/* Whether `p` may occur at one of the 16 offsets from `i`: its first and its last byte match there.
   */
FN i32 str_may_stand(str s, u32 i, str p) {
  u32 last = p.len - 1;
  return ANY_OF_16(s.p + i, p.p[0], s.p + i + last, p.p[last]);
}
/* The first offset of `p` from `i`. */
FN u32 str_find(str s, str p, u32 i) {
  if ((u64)i + p.len > s.len) return NOT_FOUND;
  if (p.len == 0) return i;
  u32 end = s.len - p.len + 1;
  while (i < end) {
    u32 to = end;
    if (BYTE_VECTORS && end - i >= 16) {
      to = i + 16;
      if (!str_may_stand(s, i, p)) { i = to; continue; }
    }
    for (; i < to; ++i)
      if (str_stands(s, i, p)) return i;
  }
  return NOT_FOUND;
}
/* The last offset at which `p` ends at or before `end`. */
FN u32 str_find_back(str s, str p, u32 end) {
  if (end < p.len) return NOT_FOUND;
  for (u32 i = end - p.len;; --i) {
    if (str_stands(s, i, p)) return i;
    if (i == 0) return NOT_FOUND;
  }
}
FN i32 str_contains(str s, str p) { return str_find(s, p, 0) != NOT_FOUND; }
