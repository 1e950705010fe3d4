/* Whether bytes are valid UTF-8, as in Rust's from_utf8. */
COLD_FN i32 str_is_utf8(str s) {
  for (u32 i = 0; i < s.len;) {
    u8 c = s.p[i];
    u32 n = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (n == 0 || s.len - i < n) return 0;
    if (n > 1) {
      u8 d = s.p[i + 1];
      u8 least = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80, most = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
      if (d < least || d > most) return 0;
      for (u32 j = 2; j < n; ++j)
        if ((s.p[i + j] & 0xc0) != 0x80) return 0;
    }
    i += n;
  }
  return 1;
}
