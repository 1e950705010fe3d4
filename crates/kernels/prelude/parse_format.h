/* Dates and timestamps by chrono's formats. A step consumes a prefix of the string, records it as
   parts of a timestamp, and returns whether it matched. A repeated part must have the same value.
   */
enum {
  PART_YEAR, PART_CENTURY, PART_YEAR2, PART_ISO_YEAR, PART_ISO_YEAR2, PART_QUARTER, PART_MONTH, PART_DAY, PART_ORDINAL,
  PART_WEEK_SUNDAY, PART_WEEK_MONDAY, PART_ISO_WEEK, PART_WEEKDAY, PART_HALF_DAY, PART_HOUR, PART_MINUTE, PART_SECOND,
  PART_NANOS, PART_OFFSET, PART_INSTANT, PARTS
};
typedef struct { str rest; u32 set; i64 of[PARTS]; } parts;
#define HAS_PART(m, part) (((m)->set >> (part)) & 1)
FN i32 take_from(parts *m, str s) { m->rest = s; m->set = 0; return 1; }
COLD_FN i32 note_part(parts *m, u32 part, i64 value) {
  if (HAS_PART(m, part)) return m->of[part] == value;
  m->set |= (u32)1 << part;
  m->of[part] = value;
  return 1;
}
FN i32 take_space(parts *m) { m->rest = str_trim_start(m->rest); return 1; }
COLD_FN i32 take_byte(parts *m, u8 c) {
  if (m->rest.len == 0 || m->rest.p[0] != c) return 0;
  m->rest = str_from(m->rest, 1);
  return 1;
}
COLD_FN i32 take_string(parts *m, str s) {
  if (m->rest.len < s.len || !str_eq(str_make(m->rest.p, s.len), s)) return 0;
  m->rest = str_from(m->rest, s.len);
  return 1;
}
/* 1 to `most` digits. */
COLD_FN i32 take_digits(parts *m, u32 most, i64 *value) {
  u64 v = 0;
  u32 n = 0;
  while (n < most && n < m->rest.len && is_digit(m->rest.p[n])) {
    u32 digit = (u32)(m->rest.p[n] - 48);
    if (v > ((u64)0x7fffffffffffffffUL - digit) / 10) return 0;
    v = v * 10 + digit;
    ++n;
  }
  m->rest = str_from(m->rest, n);
  *value = (i64)v;
  return n > 0;
}
COLD_FN i32 take_number(parts *m, u32 part, u32 digits, i64 least, i64 greatest) {
  i64 v;
  take_space(m);
  return take_digits(m, digits, &v) && v >= least && v <= greatest && note_part(m, part, v);
}
COLD_FN i32 take_instant(parts *m) {
  i64 v;
  take_space(m);
  return take_digits(m, 0xffffffffu, &v) && note_part(m, PART_INSTANT, v);
}
/* Four digits, or a sign and any number of digits. */
COLD_FN i32 take_year(parts *m, u32 part) {
  i64 v;
  take_space(m);
  u8 sign = m->rest.len ? m->rest.p[0] : (u8)0;
  i32 is_signed = sign == 43 || sign == 45;
  if (is_signed) m->rest = str_from(m->rest, 1);
  if (!take_digits(m, is_signed ? 0xffffffffu : 4, &v)) return 0;
  if (sign == 45) v = -v;
  return v == (i32)v && note_part(m, part, v);
}
COLD_FN i32 take_hour(parts *m) {
  i64 v;
  take_space(m);
  return take_digits(m, 2, &v) && v < 24 && note_part(m, PART_HALF_DAY, v / 12) && note_part(m, PART_HOUR, v % 12);
}
COLD_FN i32 take_hour12(parts *m) {
  i64 v;
  take_space(m);
  return take_digits(m, 2, &v) && v >= 1 && v <= 12 && note_part(m, PART_HOUR, v % 12);
}
COLD_FN i32 take_half_day(parts *m) {
  if (m->rest.len < 2 || (m->rest.p[1] | 32) != 109) return 0;
  u8 c = m->rest.p[0] | 32;
  m->rest = str_from(m->rest, 2);
  return (c == 97 || c == 112) && note_part(m, PART_HALF_DAY, c == 112);
}
/* A weekday from 0 or 1. */
COLD_FN i32 take_weekday(parts *m, i64 first) {
  i64 v;
  take_space(m);
  return take_digits(m, 1, &v) && v >= first && v < first + 7 && note_part(m, PART_WEEKDAY, v % 7);
}
/* Names of months, then of weekdays: the first three letters, and the rest. */
TABLE(u32, NAME_HEADS, 19) = {
  0x6e616a, 0x626566, 0x72616d, 0x727061, 0x79616d, 0x6e756a, 0x6c756a, 0x677561, 0x706573, 0x74636f, 0x766f6e, 0x636564,
  0x6e7573, 0x6e6f6d, 0x657574, 0x646577, 0x756874, 0x697266, 0x746173
};
TABLE(u64, NAME_TAILS, 19) = {
  0x79726175UL, 0x7972617572UL, 0x6863UL, 0x6c69UL, 0, 0x65UL, 0x79UL, 0x747375UL, 0x7265626d6574UL, 0x7265626fUL,
  0x7265626d65UL, 0x7265626d65UL,
  0x796164UL, 0x796164UL, 0x79616473UL, 0x79616473656eUL, 0x7961647372UL, 0x796164UL, 0x7961647275UL
};
COLD_FN i32 take_name(parts *m, u32 first, u32 count, i32 whole, u32 part, i64 number) {
  str s = m->rest;
  if (s.len < 3) return 0;
  u32 head = (u32)(s.p[0] | 32) | (u32)(s.p[1] | 32) << 8 | (u32)(s.p[2] | 32) << 16, n = 0;
  while (n < count && NAME_HEADS[first + n] != head) ++n;
  if (n == count) return 0;
  m->rest = s = str_from(s, 3);
  u64 tail = NAME_TAILS[first + n];
  u32 len = 0;
  while (whole && tail && len < s.len && (u64)(s.p[len] | 32) == (tail & 0xff)) { tail >>= 8; ++len; }
  if (tail == 0) m->rest = str_from(s, len);
  return note_part(m, part, number + n);
}
/* Exactly `digits` fractional digits. */
COLD_FN i32 take_fraction(parts *m, u32 digits) {
  u32 before = m->rest.len;
  i64 v;
  if (!take_digits(m, digits, &v) || before - m->rest.len != digits) return 0;
  for (; digits < 9; ++digits) v *= 10;
  return note_part(m, PART_NANOS, v);
}
/* An optional point and fractional digits: exactly `digits`, or any number for 0. */
COLD_FN i32 take_point(parts *m, u32 digits) {
  if (!take_byte(m, 46)) return 1;
  if (digits) return take_fraction(m, digits);
  u32 there = 0;
  while (there < 9 && there < m->rest.len && is_digit(m->rest.p[there])) ++there;
  if (!there || !take_fraction(m, there)) return 0;
  while (m->rest.len && is_digit(m->rest.p[0])) m->rest = str_from(m->rest, 1);
  return 1;
}
/* Hours and minutes east of UTC. `zulu`: or a Z. `permissive`: or hours only. */
COLD_FN i32 take_offset(parts *m, i32 zulu, i32 permissive) {
  take_space(m);
  str s = m->rest;
  if (zulu && s.len && (s.p[0] | 32) == 122) {
    m->rest = str_from(s, 1);
    return note_part(m, PART_OFFSET, 0);
  }
  i32 west = s.len && s.p[0] != 43, sign = 1;
  if (west && s.p[0] != 45) {
    /* U+2212 is a minus sign as well. */
    if (s.len < 3 || s.p[0] != 0xe2 || s.p[1] != 0x88 || s.p[2] != 0x92) return 0;
    sign = 3;
  }
  if (s.len < (u32)sign + 2 || !is_digit(s.p[sign]) || !is_digit(s.p[sign + 1])) return 0;
  i64 seconds = ((i64)(s.p[sign] - 48) * 10 + (s.p[sign + 1] - 48)) * 3600;
  m->rest = str_from(s, (u32)sign + 2);
  do take_space(m); while (take_byte(m, 58));
  s = m->rest;
  if (s.len < 2) {
    if (!permissive || s.len) return 0;
  } else {
    if (s.p[0] > 53 || !is_digit(s.p[0]) || !is_digit(s.p[1])) return 0;
    seconds += ((i64)(s.p[0] - 48) * 10 + (s.p[1] - 48)) * 60;
    m->rest = str_from(s, 2);
  }
  return note_part(m, PART_OFFSET, west ? -seconds : seconds);
}
COLD_FN i32 take_utc_or_offset(parts *m) {
  take_space(m);
  str s = m->rest;
  if (s.len < 3 || (s.p[0] | 32) != 117 || (s.p[1] | 32) != 116 || (s.p[2] | 32) != 99) return take_offset(m, 1, 0);
  m->rest = str_from(s, 3);
  return note_part(m, PART_OFFSET, 0);
}
/* The separator between a date and a time. */
COLD_FN i32 take_between(parts *m) { return take_byte(m, 84) || take_byte(m, 116) || take_byte(m, 32); }
/* A year by its number, or by its last two digits with an optional century; whether there is one.
   */
COLD_FN i32 parts_year(const parts *m, u32 whole, i32 has_century, u32 short_year, i64 *year) {
  *year = m->of[whole];
  if (HAS_PART(m, whole)) return 1;
  if (!HAS_PART(m, short_year)) return 0;
  i64 last = m->of[short_year];
  *year = has_century ? m->of[PART_CENTURY] * 100 + last : last + (last < 70 ? 2000 : 1900);
  return 1;
}
/* Days from the first day of the week (0: Sunday) to this weekday. */
FN i64 days_since(i64 weekday, i64 first) { return (weekday + 7 - first) % 7; }
FN i32 is_part(const parts *m, u32 part, i64 value) { return !HAS_PART(m, part) || m->of[part] == value; }
COLD_FN i32 parts_day(const parts *m, i64 *day) {
  const i64 *of = m->of;
  i32 weekday = HAS_PART(m, PART_WEEKDAY), has_century = HAS_PART(m, PART_CENTURY);
  i64 year, iso_year, d;
  i32 has_year = parts_year(m, PART_YEAR, has_century, PART_YEAR2, &year);
  i32 has_iso_year = parts_year(m, PART_ISO_YEAR, 0, PART_ISO_YEAR2, &iso_year);
  /* A century is not a year. */
  if (has_century && !has_year) return 0;
  if (has_year && HAS_PART(m, PART_MONTH) && HAS_PART(m, PART_DAY)) {
    if (!is_civil(year, (u32)of[PART_MONTH], (u32)of[PART_DAY])) return 0;
    d = days_of_civil(year, (u32)of[PART_MONTH], (u32)of[PART_DAY]);
  } else if (has_year && HAS_PART(m, PART_ORDINAL)) {
    d = days_of_civil(year, 1, 1) + of[PART_ORDINAL] - 1;
  } else if (has_year && weekday && (HAS_PART(m, PART_WEEK_SUNDAY) || HAS_PART(m, PART_WEEK_MONDAY))) {
    i32 monday = !HAS_PART(m, PART_WEEK_SUNDAY);
    d = days_of_civil(year, 1, 1);
    d += days_since(monday, date_dow(d)) + (of[monday ? PART_WEEK_MONDAY : PART_WEEK_SUNDAY] - 1) * 7;
    d += days_since(of[PART_WEEKDAY], monday);
  } else if (has_iso_year && HAS_PART(m, PART_ISO_WEEK) && weekday) {
    d = days_of_civil(iso_year, 1, 4);
    d += (of[PART_ISO_WEEK] - 1) * 7 + days_since(of[PART_WEEKDAY], 1) - days_since(date_dow(d), 1);
    if (date_isoyear(d) != iso_year) return 0;
    has_year = 0;
  } else {
    return 0;
  }
  *day = d;
  civil c = civil_of_days(d);
  if (c.year < -262143 || c.year > 262142 || (has_year && c.year != year)) return 0;
  i64 ordinal = date_doy(d), of_week = date_dow(d), iso = date_isoyear(d);
  return is_part(m, PART_YEAR, c.year) && is_part(m, PART_CENTURY, c.year < 0 ? -1 : c.year / 100) &&
         is_part(m, PART_YEAR2, c.year < 0 ? -1 : c.year % 100) && is_part(m, PART_ISO_YEAR, iso) &&
         is_part(m, PART_ISO_YEAR2, iso < 0 ? -1 : iso % 100) && is_part(m, PART_QUARTER, (c.month + 2) / 3) &&
         is_part(m, PART_MONTH, c.month) && is_part(m, PART_DAY, c.day) && is_part(m, PART_ORDINAL, ordinal) &&
         is_part(m, PART_WEEK_SUNDAY, (ordinal - of_week + 6) / 7) &&
         is_part(m, PART_WEEK_MONDAY, (ordinal - days_since(of_week, 1) + 6) / 7) &&
         is_part(m, PART_ISO_WEEK, date_week(d)) && is_part(m, PART_WEEKDAY, of_week);
}
/* Whether the calendar has a second. */
FN i32 in_parts_calendar(i64 seconds) { return seconds >= -(i64)8334601228800L && seconds <= (i64)8210266876799L; }
/* Seconds and nanoseconds of the parts, if the whole string is consumed. The nanoseconds of a leap
   second reach 2 * 10^9. */
COLD_FN i32 parts_instant(const parts *m, i64 *seconds, u32 *nanos) {
  const i64 *of = m->of;
  i64 day, instant;
  if (m->rest.len) return 0;
  *nanos = HAS_PART(m, PART_NANOS) ? (u32)of[PART_NANOS] : 0;
  if (HAS_PART(m, PART_INSTANT)) {
    *seconds = of[PART_INSTANT];
    return in_parts_calendar(*seconds);
  }
  if (!parts_day(m, &day)) return 0;
  *seconds = day * 86400;
  /* A date with an incomplete time is midnight. */
  if (!HAS_PART(m, PART_HALF_DAY) || !HAS_PART(m, PART_HOUR) || !HAS_PART(m, PART_MINUTE) ||
      (HAS_PART(m, PART_NANOS) && !HAS_PART(m, PART_SECOND))) {
    *nanos = 0;
    return 1;
  }
  i64 second = HAS_PART(m, PART_SECOND) ? of[PART_SECOND] : 0;
  if (second == 60) { second = 59; *nanos += 1000000000; }
  *seconds += (of[PART_HALF_DAY] * 12 + of[PART_HOUR]) * 3600 + of[PART_MINUTE] * 60 + second;
  if (!HAS_PART(m, PART_OFFSET) || of[PART_OFFSET] <= -86400 || of[PART_OFFSET] >= 86400) return 1;
  instant = *seconds - of[PART_OFFSET];
  if (in_parts_calendar(instant)) *seconds = instant;
  return 1;
}
COLD_FN i32 parts_date(const parts *m, i64 *days) {
  i64 seconds;
  u32 nanos;
  if (!parts_instant(m, &seconds, &nanos)) return 0;
  seconds += nanos >= 1000000000;
  *days = seconds / 86400 - (seconds % 86400 < 0);
  return 1;
}
/* Nanoseconds, if 64 bits hold them. */
COLD_FN i32 parts_nanos(const parts *m, i64 *ticks) {
  i64 seconds;
  u32 nanos;
  if (!parts_instant(m, &seconds, &nanos)) return 0;
  *ticks = (i64)((u64)seconds * 1000000000 + nanos);
  return seconds < 0 ? seconds >= -(i64)9223372037L && *ticks < 2000000000 : seconds <= (i64)9223372036L && *ticks >= 0;
}
