/* Intervals in Arrow's MonthDayNano layout: months and days of 32 bits, nanoseconds of 64. */
FN i64 interval_months(i128 v) { return (i64)(i32)(u32)v.lo; }
FN i64 interval_days(i128 v) { return (i64)(i32)(u32)(v.lo >> 32); }
FN i64 interval_nanos(i128 v) { return (i64)v.hi; }
/* A sort key: an integer that orders by months, then days, then nanoseconds. */
FN i128 interval_sort_key(i128 v) {
  return i128_make(v.hi ^ (u64)0x8000000000000000UL, (v.lo << 32) | ((v.lo >> 32) ^ 0x80000000u));
}
/* The inverse of interval_sort_key. */
FN i128 interval_of_sort_key(i128 v) {
  return i128_make((v.hi >> 32) | ((v.hi ^ 0x80000000u) << 32), v.lo ^ (u64)0x8000000000000000UL);
}
/* An interval of wrapping sums of months, days and nanoseconds. */
FN i128 interval_of(u64 months, u64 days, u64 nanos) { return i128_make((u64)(u32)months | days << 32, nanos); }
/* An interval of a sum or difference by fields. A field that overflows clears `ok`. */
FN i128 interval_made(i64 months, i64 days, i128 nanos, i32 *ok) {
  *ok = (months == (i32)months) & (days == (i32)days) & i128_fits(nanos);
  return i128_make((u64)(u32)months | ((u64)(u32)days << 32), nanos.lo);
}
COLD_FN i128 interval_add(i128 a, i128 b, i32 *ok) {
  i128 nanos = i128_add(i128_of(interval_nanos(a)), i128_of(interval_nanos(b)));
  return interval_made(interval_months(a) + interval_months(b), interval_days(a) + interval_days(b), nanos, ok);
}
COLD_FN i128 interval_sub(i128 a, i128 b, i32 *ok) {
  i128 nanos = i128_sub(i128_of(interval_nanos(a)), i128_of(interval_nanos(b)));
  return interval_made(interval_months(a) - interval_months(b), interval_days(a) - interval_days(b), nanos, ok);
}
/* Seconds, with months of 30 days. */
FN f64 interval_seconds(i128 v) {
  f64 months = f64_mul(f64_mul((f64)interval_months(v), 30), 86400), days = f64_mul((f64)interval_days(v), 86400);
  return f64_add(f64_add(months, days), f64_div((f64)interval_nanos(v), 1000000000));
}
/* The nanoseconds within a minute; 0 if they exceed 32 bits, as in DataFusion. */
FN i64 interval_fraction(i128 v) {
  i64 nanos = interval_nanos(v) % 60000000000L;
  return nanos == (i32)nanos ? nanos : 0;
}
