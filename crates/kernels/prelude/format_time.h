/* Formats dates, times, durations and intervals as chrono and arrow-cast do. */
COLD_FN u32 put_date(G u8 *p, u32 n, i64 days) {
  civil c = civil_of_days(days);
  if (c.year < 0 || c.year > 9999) n = put_char(p, n, c.year < 0 ? 45 : 43);
  n = put_u64(p, n, (u64)(c.year < 0 ? -c.year : c.year), 4);
  n = put_u64(p, put_char(p, n, 45), c.month, 2);
  return put_u64(p, put_char(p, n, 45), c.day, 2);
}
/* Appends a time of day, with 0, 3, 6 or 9 fractional digits. */
COLD_FN u32 put_time(G u8 *p, u32 n, u32 seconds, u32 nanos) {
  n = put_u64(p, n, seconds / 3600, 2);
  n = put_u64(p, put_char(p, n, 58), seconds / 60 % 60, 2);
  n = put_u64(p, put_char(p, n, 58), seconds % 60, 2);
  if (nanos == 0) return n;
  n = put_char(p, n, 46);
  if (nanos % 1000000 == 0) return put_u64(p, n, nanos / 1000000, 3);
  if (nanos % 1000 == 0) return put_u64(p, n, nanos / 1000, 6);
  return put_u64(p, n, nanos, 9);
}
FN u32 format_date(G u8 *p, i64 days) { return put_date(p, 0, days); }
FN u32 format_time(G u8 *p, u32 seconds, u32 nanos) { return put_time(p, 0, seconds, nanos); }
/* Formats ticks, `per` in a second, in local time `offset` seconds east of UTC. `zone`: whether to
   show the offset, in minutes. */
COLD_FN u32 format_timestamp(G u8 *p, i64 ticks, i64 per, i64 offset, i32 zone) {
  i64 seconds = ticks / per - (ticks % per < 0);
  u32 nanos = (u32)((ticks - seconds * per) * (1000000000 / per));
  seconds += offset;
  i64 days = seconds / 86400 - (seconds % 86400 < 0);
  u32 n = put_char(p, put_date(p, 0, days), 84);
  n = put_time(p, n, (u32)(seconds - days * 86400), nanos);
  if (!zone) return n;
  if (offset == 0) return put_char(p, n, 90);
  n = put_char(p, n, offset < 0 ? 45 : 43);
  u32 minutes = (u32)(((offset < 0 ? -offset : offset) + 30) / 60);
  n = put_u64(p, n, minutes / 60, 2);
  return put_u64(p, put_char(p, n, 58), minutes % 60, 2);
}
/* Appends the bytes of a little-endian word up to a zero. */
FN u32 put_word(G u8 *p, u32 n, u64 word) {
  for (; word; word >>= 8) n = put_char(p, n, (u8)word);
  return n;
}
FN u32 put_i64(G u8 *p, u32 n, i64 v) {
  if (v < 0) n = put_char(p, n, 45);
  return put_u64(p, n, v < 0 ? (u64)0 - (u64)v : (u64)v, 1);
}
/* Example: "1 days 2 hours 3 mins 4.005 secs". */
COLD_FN u32 format_duration(G u8 *p, i64 ticks, i64 per, u32 digits) {
  i64 seconds = ticks / per, rest = ticks - seconds * per;
  i64 minutes = seconds / 60, hours = minutes / 60, days = hours / 24;
  seconds -= minutes * 60;
  minutes -= hours * 60;
  hours -= days * 24;
  u32 n = put_i64(p, 0, days);
  n = put_word(p, n, (u64)0x207379616420UL);
  n = put_word(p, put_i64(p, n, hours), (u64)0x207372756f6820UL);
  n = put_word(p, put_i64(p, n, minutes), (u64)0x20736e696d20UL);
  if (digits == 0) {
    n = put_i64(p, n, seconds);
  } else {
    if (rest < 0) n = put_char(p, n, 45);
    n = rest < 0 ? put_u64(p, n, (u64)(seconds < 0 ? -seconds : seconds), 1) : put_i64(p, n, seconds);
    n = put_char(p, n, 46);
    n = put_u64(p, n, (u64)(rest < 0 ? -rest : rest), digits);
  }
  return put_word(p, n, (u64)0x7363657320UL);
}
/* Appends a field of an interval and its unit, unless it is 0. */
FN u32 put_part(G u8 *p, u32 n, i64 v, u64 unit) {
  if (v == 0) return n;
  if (n) n = put_char(p, n, 32);
  return put_word(p, put_i64(p, n, v), unit);
}
/* Example: "1 mons 2 days 3 hours 4 mins 5.000000006 secs". */
COLD_FN u32 format_interval(G u8 *p, i64 months, i64 days, i64 nanos) {
  i64 seconds = nanos / 1000000000, rest = nanos % 1000000000;
  i64 minutes = seconds / 60, hours = minutes / 60;
  seconds -= minutes * 60;
  u32 n = put_part(p, 0, months, (u64)0x736e6f6d20UL);
  n = put_part(p, n, days, (u64)0x7379616420UL);
  n = put_part(p, n, hours, (u64)0x7372756f6820UL);
  n = put_part(p, n, minutes - hours * 60, (u64)0x736e696d20UL);
  if (seconds | rest) {
    if (n) n = put_char(p, n, 32);
    if (nanos < 0) n = put_char(p, n, 45);
    n = put_u64(p, n, (u64)(seconds < 0 ? -seconds : seconds), 1);
    n = put_u64(p, put_char(p, n, 46), (u64)(rest < 0 ? -rest : rest), 9);
  } else if (n == 0) {
    n = put_char(p, n, 48);
  } else {
    return n;
  }
  return put_word(p, n, (u64)0x7363657320UL);
}
