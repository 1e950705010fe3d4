/* The proleptic Gregorian calendar: days since 1970-01-01 from and to year, month and day. Computed
   in eras of 400 years (146097 days), as in Howard Hinnant's "chrono-Compatible Low-Level Date
   Algorithms". */
typedef struct { i64 year; u32 month, day; } civil;
FN civil civil_of_days(i64 days) {
  civil c;
  days += 719468;
  i64 era = (days >= 0 ? days : days - 146096) / 146097;
  u32 doe = (u32)(days - era * 146097);
  u32 yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
  u32 doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
  u32 mp = (5 * doy + 2) / 153;
  c.day = doy - (153 * mp + 2) / 5 + 1;
  c.month = mp < 10 ? mp + 3 : mp - 9;
  c.year = (i64)yoe + era * 400 + (c.month <= 2);
  return c;
}
FN i64 days_of_civil(i64 year, u32 month, u32 day) {
  year -= month <= 2;
  i64 era = (year >= 0 ? year : year - 399) / 400;
  u32 yoe = (u32)(year - era * 400);
  u32 doy = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
  u32 doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
  return era * 146097 + (i64)doe - 719468;
}
FN u32 last_of_month(i64 year, u32 month) {
  u32 leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0));
  return month == 2 ? 28 + leap : 30 + ((month + (month >> 3)) & 1);
}
FN i32 is_civil(i64 year, u32 month, u32 day) {
  return (month >= 1) & (month <= 12) & (day >= 1) & (day <= last_of_month(year, month));
}
