/* Binary search in a sorted list of integers of more than 64 bits: whether it has x. */
#define LIST_HAS_WIDE(T) \
  FN i32 list_has_##T(const G T *list, u32 len, T x) { \
    u32 from = 0, to = len; \
    while (from < to) { \
      u32 mid = (from + to) >> 1; \
      if (T##_lt(list[mid], x)) from = mid + 1; else to = mid; \
    } \
    return from < len && T##_eq(list[from], x); \
  }
