/* Tables of time zones. An entry has its first second in the high 44 bits, and offset + 2^19 in the
   low 20. */
#define NO_OFFSET 0x7ffff
/* The offset at a second: that of the last entry at or before it, or of the first entry. */
FN i64 zone_offset(const G i64 *table, u32 len, i64 second) {
  i64 key = (i64)((u64)second << 20 | 0xfffff);
  u32 from = 0, to = len - 1;
  while (from < to) {
    u32 mid = (from + to + 1) >> 1;
    if (table[mid] <= key) from = mid; else to = mid - 1;
  }
  return (table[from] & 0xfffff) - 0x80000;
}
