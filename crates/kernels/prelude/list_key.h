/* Row format of lists, whose bytes compare as the lists do. Functions append to the n bytes at `to`
   and return the new length; without `to` they only count. */
/* The low `bytes` bytes of an integer, big-endian. */
FN u64 key_integer(G u8 *to, u64 n, u64 v, u32 bytes) {
  if (to)
    for (u32 i = 0; i < bytes; ++i) to[n + i] = (u8)(v >> (8 * (bytes - 1 - i)));
  return n + bytes;
}
/* A string: zeros are escaped by 0xff, and two zeros terminate it. */
FN u64 key_string(G u8 *to, u64 n, str s) {
  for (u32 i = 0; i < s.len; ++i) {
    n = append_byte(to, n, s.p[i]);
    if (s.p[i] == 0) n = append_byte(to, n, 0xff);
  }
  return append_byte(to, append_byte(to, n, 0), 0);
}
