/* Lists as bytes that order as the lists do. */
FN u64 key_word(G u8 *to, u64 n, u64 v, u32 bytes) {
  if (to)
    for (u32 i = 0; i < bytes; ++i) to[n + i] = (u8)(v >> (8 * (bytes - 1 - i)));
  return n + bytes;
}
/* Two zeros end a text, whose own zeros have ones behind them. */
FN u64 key_text(G u8 *to, u64 n, str s) {
  for (u32 i = 0; i < s.len; ++i) {
    n = text_byte(to, n, s.p[i]);
    if (s.p[i] == 0) n = text_byte(to, n, 0xff);
  }
  return text_byte(to, text_byte(to, n, 0), 0);
}
