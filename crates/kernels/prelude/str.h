/* Strings: a pointer to bytes in global memory, and their number. */
typedef struct { const G u8 *p; u32 len; } str;
FN str str_make(const G u8 *p, u32 len) { str s; s.p = p; s.len = len; return s; }
FN str str_sel(i32 c, str a, str b) { str s; s.p = c ? a.p : b.p; s.len = c ? a.len : b.len; return s; }
FN i32 str_eq(str a, str b) {
  if (a.len != b.len) return 0;
  if (a.len < 8) {
    for (u32 i = 0; i < a.len; ++i)
      if (a.p[i] != b.p[i]) return 0;
    return 1;
  }
  for (u32 i = 8; i < a.len; i += 8)
    if (LOAD64(a.p + i - 8) != LOAD64(b.p + i - 8)) return 0;
  return LOAD64(a.p + a.len - 8) == LOAD64(b.p + b.len - 8);
}
/* Lexicographic comparison of bytes: -1, 0, 1. */
FN i32 str_cmp(str a, str b) {
  u32 n = a.len < b.len ? a.len : b.len;
  for (u32 i = 0; i < n; ++i)
    if (a.p[i] != b.p[i]) return a.p[i] < b.p[i] ? -1 : 1;
  return a.len == b.len ? 0 : a.len < b.len ? -1 : 1;
}
