/* The string of an Arrow view: up to 12 bytes inline, else an offset in a buffer of the column. */
FN str view_str(const G u32 *views, const G u8 *heap, const G u64 *bases, u64 i) {
  const G u32 *v = views + i * 4;
  u32 len = v[0];
  return len <= 12 ? str_make((const G u8 *)(v + 1), len) : str_make(heap + bases[v[2]] + v[3], len);
}
/* Whether the string of view i equals the string at b: its own view, followed by all its bytes.
   Views hold up to 12 bytes, zero-padded; longer strings mostly differ in length or the first four
   bytes. */
FN i32 view_is(const G u32 *views, const G u8 *heap, const G u64 *bases, u64 i, const G u8 *b) {
  const G u32 *v = views + i * 4, *w = (const G u32 *)b;
  u32 differ = (v[0] ^ w[0]) | (v[1] ^ w[1]);
  if (w[0] <= 12) return (differ | (v[2] ^ w[2]) | (v[3] ^ w[3])) == 0;
  return differ == 0 && str_eq(str_make(heap + bases[v[2]] + v[3], w[0]), str_make(b + 16, w[0]));
}
