/* The first day of the week, month, quarter or year of a day. */
FN i64 first_of_day(i64 day) { return day; }
FN i64 first_of_week(i64 day) { return day - date_isodow(day) + 1; }
FN i64 first_of_month(i64 day) { return day - (i64)civil_of_days(day).day + 1; }
FN i64 first_of_quarter(i64 day) {
  civil c = civil_of_days(day);
  return days_of_civil(c.year, (c.month - 1) / 3 * 3 + 1, 1);
}
FN i64 first_of_year(i64 day) { return days_of_civil(civil_of_days(day).year, 1, 1); }
