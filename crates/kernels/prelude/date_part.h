/* Parts of dates. Input: days since 1970-01-01. */
FN i32 date_year(i64 days) { return (i32)civil_of_days(days).year; }
FN i32 date_month(i64 days) { return (i32)civil_of_days(days).month; }
FN i32 date_quarter(i64 days) { return (date_month(days) + 2) / 3; }
FN i32 date_day(i64 days) { return (i32)civil_of_days(days).day; }
FN i32 date_doy(i64 days) { return (i32)(days - days_of_civil(civil_of_days(days).year, 1, 1)) + 1; }
/* 0 (Sunday) to 6. 1970-01-01 was a Thursday. */
FN i32 date_dow(i64 days) {
  i32 day = (i32)((days + 4) % 7);
  return day < 0 ? day + 7 : day;
}
/* 1 (Monday) to 7. */
FN i32 date_isodow(i64 days) {
  i32 day = date_dow(days);
  return day ? day : 7;
}
/* An ISO week belongs to the year of its Thursday. */
FN i64 date_thursday(i64 days) { return days - date_isodow(days) + 4; }
FN i32 date_isoyear(i64 days) { return date_year(date_thursday(days)); }
FN i32 date_week(i64 days) { return (date_doy(date_thursday(days)) + 6) / 7; }
