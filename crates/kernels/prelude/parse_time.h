/* Dates, times and timestamps, as arrow-cast parses them. */
FN u32 two(const u8 *d, u32 at) { return (u32)d[at] * 10 + d[at + 1]; }
/* [+-]XX:XX, [+-]XXXX or [+-]XX in seconds. */
COLD_FN i32 parse_offset(str s, i64 *offset) {
  if (s.len != 6 && s.len != 5 && s.len != 3) return 0;
  if (s.len == 6 && s.p[3] != 58) return 0;
  if (s.p[0] != 43 && s.p[0] != 45) return 0;
  u32 m = s.len == 6 ? 4 : 3;
  if (!is_digit(s.p[1]) || !is_digit(s.p[2])) return 0;
  if (s.len > 3 && (!is_digit(s.p[m]) || !is_digit(s.p[m + 1]))) return 0;
  u32 seconds = ((u32)(s.p[1] - 48) * 10 + (u32)(s.p[2] - 48)) * 3600;
  if (s.len > 3) seconds += ((u32)(s.p[m] - 48) * 10 + (u32)(s.p[m + 1] - 48)) * 60;
  *offset = s.p[0] == 45 ? -(i64)seconds : (i64)seconds;
  return seconds < 86400;
}
/* Converts local time of a named zone to UTC: 0 for an unknown zone, or a skipped or repeated local
   time. */
COLD_FN i32 leave_zone(str name, const G u32 *zones, i64 *seconds) {
  const G u8 *bytes = (const G u8 *)zones;
  u32 from = 0, to = zones[0];
  while (from < to) {
    u32 mid = (from + to) >> 1;
    const G u32 *zone = zones + 4 + mid * 4;
    i32 c = str_cmp(str_make(bytes + zone[0], zone[1]), name);
    if (c == 0) {
      i64 offset = zone_offset((const G i64 *)(bytes + zone[2]), zone[3], *seconds);
      *seconds -= offset;
      return offset != NO_OFFSET;
    }
    if (c < 0) from = mid + 1; else to = mid;
  }
  return 0;
}
/* A timestamp as seconds and nanoseconds; those of a leap second reach 2 * 10^9. Returns
   IS_INSTANT, IS_LOCAL_TIME without an offset or zone, or 0. */
#define IS_INSTANT 1
#define IS_LOCAL_TIME 3
COLD_FN i32 parse_datetime(str s, const G u32 *zones, i64 *seconds, u32 *nanos) {
  u8 d[32];
  u32 mask = 0, used = s.len < 32 ? s.len : 32, end, hour, minute, second;
  *seconds = 0;
  *nanos = 0;
  if (s.len < 10) return 0;
  ROLLED for (u32 i = 0; i < 32; ++i) {
    d[i] = i < used ? (u8)(s.p[i] - 48) : (u8)0;
    mask |= (u32)(i < used && d[i] < 10) << i;
  }
  if ((mask & 0x3ff) != 0x36f || d[4] != (u8)(45 - 48) || d[7] != (u8)(45 - 48)) return 0;
  i64 year = (i64)(two(d, 0) * 100 + two(d, 2));
  if (!is_civil(year, two(d, 5), two(d, 8))) return 0;
  i64 days = days_of_civil(year, two(d, 5), two(d, 8)) * 86400;
  if (s.len == 10) { *seconds = days; return IS_LOCAL_TIME; }
  if (d[10] != (u8)(84 - 48) && d[10] != (u8)(116 - 48) && d[10] != (u8)(32 - 48)) return 0;
  u32 shape = (mask >> 11) & 0xff, fraction = 0;
  if (shape == 0xdb && d[13] == 58 - 48 && d[16] == 58 - 48) {
    hour = two(d, 11);
    minute = two(d, 14);
    second = two(d, 17);
    end = 19;
    if (d[19] == (u8)(46 - 48)) {
      u32 digits = 0;
      while (digits < 12 && ((mask >> (20 + digits)) & 1)) ++digits;
      if (digits == 0) return 0;
      ROLLED for (u32 i = 0; i < 9; ++i) fraction = fraction * 10 + (i < digits ? d[20 + i] : 0);
      end = 20 + digits;
    }
  } else if (shape == 0x3f) {
    hour = two(d, 11);
    minute = two(d, 13);
    second = two(d, 15);
    end = 17;
  } else {
    return 0;
  }
  if (hour > 23 || minute > 59 || second > 60) return 0;
  if (second == 60) { second = 59; fraction += 1000000000; }
  *nanos = fraction;
  *seconds = days + (i64)(hour * 3600 + minute * 60 + second);
  if (end == 32)
    while (end < s.len && is_digit(s.p[end])) ++end;
  if (s.len <= end) return IS_LOCAL_TIME;
  if ((s.p[end] == 122 || s.p[end] == 90) && end == s.len - 1) return IS_INSTANT;
  str zone = str_trim_start(str_from(s, end));
  i64 offset = 0;
  if (parse_offset(zone, &offset)) { *seconds -= offset; return IS_INSTANT; }
  return leave_zone(zone, zones, seconds) ? IS_INSTANT : 0;
}
/* A u32 as Rust parses it: an optional plus and any number of digits. */
COLD_FN i32 parse_part(str s, u32 from, u32 to, u32 *value) {
  u64 v = 0;
  if (from < to && s.p[from] == 43) ++from;
  if (from >= to) return 0;
  ROLLED for (; from < to; ++from) {
    if (!is_digit(s.p[from])) return 0;
    v = v * 10 + (u64)(s.p[from] - 48);
    if (v > 0xffffffffu) return 0;
  }
  *value = (u32)v;
  return 1;
}
/* A date as days since 1970-01-01. `whole`: years beyond chrono's calendar are valid. */
COLD_FN i32 parse_date(str s, const G u32 *zones, i32 whole, i64 *days) {
  *days = 0;
  if (s.len && (s.p[0] == 43 || s.p[0] == 45)) {
    u32 dash = 1, second, year, month, day;
    while (dash < s.len && s.p[dash] != 45) ++dash;
    if (dash < 5 || dash + 1 >= s.len || s.p[1] == 43 || !parse_part(s, 1, dash, &year)) return 0;
    i64 signed_year = s.p[0] == 45 ? -(i64)year : (i64)year;
    if (signed_year > 2147483647 || signed_year < -(i64)2147483647 - 1) return 0;
    second = dash + 1;
    while (second < s.len && s.p[second] != 45) ++second;
    if (second >= s.len || !parse_part(s, dash + 1, second, &month) || !parse_part(s, second + 1, s.len, &day)) return 0;
    if (!is_civil(signed_year, month, day)) return 0;
    if (!whole && (signed_year < -262143 || signed_year > 262142)) return 0;
    *days = days_of_civil(signed_year, month, day);
    return (*days == (i32)*days) | !whole;
  }
  if (s.len > 10) {
    i64 seconds;
    u32 nanos;
    i32 ok = parse_datetime(s, zones, &seconds, &nanos);
    *days = seconds / 86400 - (seconds % 86400 < 0);
    return ok;
  }
  u8 d[12];
  u32 mask = 0, month, day;
  ROLLED for (u32 i = 0; i < 12; ++i) {
    d[i] = i < s.len && i < 10 ? (u8)(s.p[i] - 48) : (u8)0;
    mask |= (u32)(i < s.len && i < 10 && d[i] < 10) << i;
  }
  const u8 dash = (u8)(45 - 48);
  if (d[4] != dash) {
    if (mask != 0xff || s.len != 8) return 0;
    month = two(d, 4);
    day = two(d, 6);
  } else if (mask == 0x36f && d[7] == dash) {
    month = two(d, 5);
    day = two(d, 8);
  } else if (mask == 0x16f && d[7] == dash) {
    month = two(d, 5);
    day = d[8];
  } else if (mask == 0x1af && d[6] == dash) {
    month = d[5];
    day = two(d, 7);
  } else if (mask == 0xaf && d[6] == dash) {
    month = d[5];
    day = d[7];
  } else {
    return 0;
  }
  i64 year = (i64)(two(d, 0) * 100 + two(d, 2));
  if (!is_civil(year, month, day)) return 0;
  *days = days_of_civil(year, month, day);
  return 1;
}
/* H:MM[:SS[.fraction]][ AM|PM] as nanoseconds since midnight. */
COLD_FN i32 parse_time(str s, i64 *nanos) {
  *nanos = 0;
  if (s.len < 4) return 0;
  i32 half_day = 0;
  u8 m = s.p[s.len - 1] | 32, a = s.p[s.len - 2] | 32;
  if (s.p[s.len - 3] == 32 && m == 109 && (a == 97 || a == 112)) {
    half_day = a == 97 ? 1 : 2;
    s.len -= 3;
  }
  if (s.len < 4) return 0;
  u8 d[6];
  u32 at, fraction = 0;
  ROLLED for (u32 i = 0; i < 6; ++i) d[i] = 48;
  if (s.p[1] == 58) { d[1] = s.p[0]; at = 2; }
  else if (s.p[2] == 58) { d[0] = s.p[0]; d[1] = s.p[1]; at = 3; }
  else return 0;
  if (s.len - at < 2) return 0;
  d[2] = s.p[at];
  d[3] = s.p[at + 1];
  if (s.len - at > 2) {
    if (s.p[at + 2] != 58 || s.len - at < 5) return 0;
    d[4] = s.p[at + 3];
    d[5] = s.p[at + 4];
    if (s.len - at > 5) {
      if (s.p[at + 5] != 46 || s.len - at == 6) return 0;
      u32 digits = s.len - at - 6;
      ROLLED for (u32 i = 0; i < digits; ++i)
        if (!is_digit(s.p[at + 6 + i])) return 0;
      ROLLED for (u32 i = 0; i < 9; ++i) fraction = fraction * 10 + (i < digits ? (u32)(s.p[at + 6 + i] - 48) : 0);
    }
  }
  ROLLED for (u32 i = 0; i < 6; ++i) {
    if (!is_digit(d[i])) return 0;
    d[i] -= 48;
  }
  u32 hour = two(d, 0), minute = two(d, 2), second = two(d, 4);
  if (half_day) {
    if (hour < 1 || hour > 12) return 0;
    hour = hour % 12 + (half_day == 2 ? 12 : 0);
  }
  if (hour > 23 || minute > 59 || second > 60) return 0;
  if (second == 60) { second = 59; fraction += 1000000000; }
  *nanos = (i64)(hour * 3600 + minute * 60 + second) * 1000000000 + fraction;
  return 1;
}
