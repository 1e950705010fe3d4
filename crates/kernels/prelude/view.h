/* Arrow's 16-byte views: up to 12 bytes inline, else a place in one of the column's buffers. */
FN str view_str(const G u32 *views, const G u8 *heap, const G u64 *bases, u64 i) {
  const G u32 *v = views + i * 4;
  u32 len = v[0];
  return len <= 12 ? str_make((const G u8 *)(v + 1), len) : str_make(heap + bases[v[2]] + v[3], len);
}
