/* The Arrow view of a string. Up to 12 bytes are inline; a longer string has the first four bytes,
   buffer 0 and the offset in `heap`, which must contain it. Oclgrind does not support several
   parameters of type str. */
FN i128 view_of(const G u8 *p, u32 len, const G u8 *heap) {
  u64 first = len, rest = 0;
  u32 n = len < 4 ? len : 4;
  for (u32 i = 0; i < n; ++i) first |= (u64)p[i] << (32 + 8 * i);
  if (len > 12) rest = (u64)(p - heap) << 32;
  else
    for (u32 i = 4; i < len; ++i) rest |= (u64)p[i] << (8 * (i - 4));
  return i128_make(first, rest);
}
