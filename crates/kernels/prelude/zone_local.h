/* The instant of a local time, as in date_trunc of arrow-rs. A repeated local time takes the given
   offset if it matches, else the later instant; a skipped one takes the offset of three hours
   before. NO_INSTANT without a result. */
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
