/* Binary search in a sorted list of `len` values: whether it has x. */
#define LIST_HAS(T) \
  FN i32 list_has_##T(const G T *list, u32 len, T x) { \
    u32 from = 0, to = len; \
    while (from < to) { \
      u32 mid = (from + to) >> 1; \
      if (list[mid] < x) from = mid + 1; else to = mid; \
    } \
    return from < len && list[from] == x; \
  }
LIST_HAS(i8)
LIST_HAS(u8)
LIST_HAS(i16)
LIST_HAS(u16)
LIST_HAS(i32)
LIST_HAS(u32)
LIST_HAS(i64)
LIST_HAS(u64)
