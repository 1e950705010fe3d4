/* Arrow's view of a string: up to 12 bytes inline; else the first four, buffer 0, and the place in `heap`, where the string
   must lie. Values under NULLs are views of nothing. */
FN i128 view_of(str s, const G u8 *heap) {
  u64 lo = s.len, hi = 0;
  u32 first = s.len < 4 ? s.len : 4;
  for (u32 i = 0; i < first; ++i) lo |= (u64)s.p[i] << (32 + 8 * i);
  if (s.len > 12) hi = (u64)(s.p - heap) << 32;
  else
    for (u32 i = 4; i < s.len; ++i) hi |= (u64)s.p[i] << (8 * (i - 4));
  return i128_make(lo, hi);
}
