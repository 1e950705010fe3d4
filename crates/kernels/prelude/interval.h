/* Timestamps plus intervals, and bins. A cleared `ok` means that there is no result: it lies
   outside the calendar of arrow-rs, or exceeds 64 bits. */
#define DAY_NANOS ((i64)86400000000000L)
FN i64 floor_div(i64 a, i64 b) { return a / b - (a % b < 0); }
FN i32 is_day(i64 day) { return (day >= -96465292) & (day <= 95026236); }
FN i32 is_second(i64 second) { return is_day(floor_div(second, 86400)); }
/* The same day of another month, or the last day of that month. */
FN i64 add_months(i64 day, i64 months, i32 *ok) {
  civil c = civil_of_days(day);
  i64 all = c.year * 12 + (i64)c.month - 1 + months, year = floor_div(all, 12);
  u32 month = (u32)(all - year * 12) + 1, last = last_of_month(year, month);
  day = days_of_civil(year, month, c.day < last ? c.day : last);
  *ok &= is_day(day);
  return day;
}
/* A day plus an interval; fractions of days in the nanoseconds are dropped. */
COLD_FN i64 add_to_day(i64 day, i64 months, i64 days, i64 nanos, i32 *ok) {
  *ok = is_day(day);
  day = add_months(day, months, ok) + days;
  *ok &= is_day(day);
  day += nanos / DAY_NANOS;
  *ok &= is_day(day);
  return day;
}
/* Local time in seconds plus months, at the same time of day. */
COLD_FN i64 add_months_to_second(i64 second, i64 months, i32 *ok) {
  i64 day = floor_div(second, 86400);
  return months ? add_months(day, months, ok) * 86400 + (second - day * 86400) : second;
}
/* A time of day plus nanoseconds, modulo a day. `tick`: nanoseconds of a tick. */
FN i64 add_to_time(i64 ticks, i64 nanos, i64 tick) {
  i64 day = DAY_NANOS / tick, moved = (ticks + floor_div(nanos % DAY_NANOS, tick)) % day;
  return moved < 0 ? moved + day : moved;
}
/* Nanoseconds since 1970-01-01 of a day and a time of day. */
FN i64 nanos_of(i64 day, i64 time, i32 *ok) {
  i64 nanos = (i64)((u64)day * (u64)DAY_NANOS + (u64)time);
  *ok &= (day >= -106752) & (day <= 106751) & ((day < 0) == (nanos < 0));
  return nanos;
}
/* The greatest multiple of a stride at or below a difference from the origin. */
FN i64 bin_distance(i64 difference, i64 stride, i32 *ok) {
  i64 rest = difference % stride, distance = difference - rest;
  if (difference >= 0 || stride <= 1 || rest == 0) return distance;
  *ok &= distance >= -(i64)0x7fffffffffffffffL - 1 + stride;
  return (i64)((u64)distance - (u64)stride);
}
/* The start of the bin of a timestamp: bins of `stride` nanoseconds from an origin. */
COLD_FN i64 date_bin(i64 nanos, i64 stride, i64 origin, i32 *ok) {
  i64 difference = (i64)((u64)nanos - (u64)origin);
  *ok = (((nanos ^ origin) & (nanos ^ difference)) >= 0) & (stride != 0);
  *ok &= (stride != -1) | (difference != -(i64)0x7fffffffffffffffL - 1);
  if (!*ok) return 0;
  i64 distance = bin_distance(difference, stride, ok), bin = (i64)((u64)origin + (u64)distance);
  *ok &= ((origin ^ bin) & (distance ^ bin)) >= 0;
  return bin;
}
/* The same with a stride in months. */
COLD_FN i64 date_bin_months(i64 nanos, i64 stride, i64 origin, i32 *ok) {
  i64 day = floor_div(nanos, DAY_NANOS), first = floor_div(origin, DAY_NANOS), time = origin - first * DAY_NANOS;
  civil c = civil_of_days(day), o = civil_of_days(first);
  *ok = stride != 0;
  if (!*ok) return 0;
  i64 months = bin_distance((c.year - o.year) * 12 + (i64)c.month - (i64)o.month, stride, ok);
  i64 bin = add_months(first, months, ok);
  if (bin > day || (bin == day && time > nanos - day * DAY_NANOS)) bin = add_months(first, months - stride, ok);
  return nanos_of(bin, time, ok);
}
