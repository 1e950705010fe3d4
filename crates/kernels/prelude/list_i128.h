FN i32 list_has_i128(const G i128 *list, u32 len, i128 x) {
  u32 from = 0, to = len;
  while (from < to) {
    u32 mid = (from + to) >> 1;
    if (i128_lt(list[mid], x)) from = mid + 1; else to = mid;
  }
  return from < len && i128_eq(list[from], x);
}
