/* The second at which a zone's clocks show a local time. Where they do so twice, at the given offset, or else the second
   time; where never, what was shown three hours before tells the offset. NO_INSTANT where that helps nothing. */
#define NO_INSTANT (-(i64)0x7fffffffffffffffL - 1)
COLD_FN i64 zone_instant(const G i64 *instants, u32 count, const G i64 *locals, u32 local_count, i64 shown, i64 offset) {
  i64 only = zone_offset(locals, local_count, shown);
  if (only != NO_OFFSET) return shown - only;
  if (zone_offset(instants, count, shown - offset) == offset) return shown - offset;
  i64 before = zone_offset(locals, local_count, shown - 10800);
  if (before == NO_OFFSET) return NO_INSTANT;
  if (zone_offset(instants, count, shown - before) != before) return shown - before;
  return shown - zone_offset(instants, count, shown - before + 86400);
}
