/* Compares two concatenations, given as arrays of strings: -1, 0, 1. */
COLD_FN i32 concat_cmp(const str *a, u32 na, const str *b, u32 nb) {
  u32 i = 0, j = 0, x = 0, y = 0;
  for (;;) {
    while (i < na && x == a[i].len) { ++i; x = 0; }
    while (j < nb && y == b[j].len) { ++j; y = 0; }
    if (i == na || j == nb) return (j == nb) - (i == na);
    u8 c = a[i].p[x++], d = b[j].p[y++];
    if (c != d) return c < d ? -1 : 1;
  }
}
