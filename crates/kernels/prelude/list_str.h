/* Binary search in a sorted list of strings, pairs of heap offset and length: whether it has x. */
FN i32 list_has_str(const G u32 *list, const G u8 *heap, u32 len, str x) {
  u32 from = 0, to = len;
  while (from < to) {
    u32 mid = (from + to) >> 1;
    i32 c = str_cmp(str_make(heap + list[mid * 2], list[mid * 2 + 1]), x);
    if (c == 0) return 1;
    if (c < 0) from = mid + 1; else to = mid;
  }
  return 0;
}
