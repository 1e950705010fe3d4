FN i32 list_has_i256(const G i256 *list, u32 len, i256 x) {
  u32 from = 0, to = len;
  while (from < to) {
    u32 mid = (from + to) >> 1;
    if (i256_lt(list[mid], x)) from = mid + 1; else to = mid;
  }
  return from < len && i256_eq(list[from], x);
}
