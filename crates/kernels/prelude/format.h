/* Formatting. Functions write a string of at most 64 bytes to p and return its length. `put_`
   functions append at offset n and return the new length. */
FN u32 put_char(G u8 *p, u32 n, u8 c) { p[n] = c; return n + 1; }
/* At least `width` digits. */
COLD_FN u32 put_u64(G u8 *p, u32 n, u64 v, u32 width) {
  u8 digits[20];
  u32 k = 0;
  do {
    u64 q = v / 10;
    digits[k++] = (u8)(48 + (u32)(v - q * 10));
    v = q;
  } while (v);
  ROLLED for (u32 j = k; j < width; ++j) p[n++] = 48;
  while (k) p[n++] = digits[--k];
  return n;
}
FN u32 format_u64(G u8 *p, u64 v) { return put_u64(p, 0, v, 1); }
FN u32 format_i64(G u8 *p, i64 v) {
  u32 n = 0;
  if (v < 0) n = put_char(p, n, 45);
  return put_u64(p, n, v < 0 ? (u64)0 - (u64)v : (u64)v, 1);
}
FN u32 format_bool(G u8 *p, i32 v) {
  u32 word = v ? 0x65757274u : 0x736c6166u;
  ROLLED for (u32 j = 0; j < 4; ++j) p[j] = (u8)(word >> (8 * j));
  if (!v) p[4] = 101;
  return v ? 4 : 5;
}
