/* Floats, rounded to nearest, ties to even. Most strings need 19 digits and a 128-bit power of ten;
   close ones are compared exactly with the midpoint of two floats. */
/* Word i of m * 2^shift: bits 32 i to 32 i + 31. i may be negative; m < 2^63. */
FN u32 word_of(u64 m, i32 shift, i32 i) {
  i32 down = 32 * i - shift;
  return down >= 0 ? (down < 64 ? (u32)(m >> down) : 0u) : down > -32 ? (u32)(m << -down) : 0u;
}
/* Compares a decimal number with m * 2^e: -1, 0, 1. -1075 <= e, and m * 2^e < 2^1024. The digits
   are all of s, a point among them is skipped. The number is 0.digits * 10^point, below 2^1030. */
COLD_FN i32 decimal_cmp(str s, i32 point, u64 m, i32 e) {
  u32 b[34];
  u32 at = 0;
  /* The integer part of the decimal number, as a binary number. */
  i32 used = 0;
  ROLLED for (i32 j = 0; j < point; ++j) {
    if (at < s.len && s.p[at] == 46) ++at;
    u64 carry = at < s.len ? (u64)(s.p[at] - 48) : 0;
    ++at;
    ROLLED for (i32 i = 0; i < used; ++i) {
      carry += (u64)b[i] * 10;
      b[i] = (u32)carry;
      carry >>= 32;
    }
    if (carry) b[used++] = (u32)carry;
  }
  ROLLED for (i32 i = 33; i >= 0; --i) {
    u32 x = i < used ? b[i] : 0u, y = word_of(m, e, i);
    if (x != y) return x < y ? -1 : 1;
  }
  /* The fraction of the binary number, one decimal digit after the other. */
  i32 words = e < 0 ? (31 - e) / 32 : 0, zeros = point < 0 ? -point : 0;
  ROLLED for (i32 i = 0; i < words; ++i) b[i] = word_of(m, e, i - words);
  ROLLED for (i32 j = 0; at < s.len || j < zeros; ++j) {
    u32 digit = 0;
    if (j >= zeros) {
      u8 c = s.p[at++];
      if (c == 46) continue;
      digit = (u32)(c - 48);
    }
    u64 carry = 0;
    ROLLED for (i32 i = 0; i < words; ++i) {
      carry += (u64)b[i] * 10;
      b[i] = (u32)carry;
      carry >>= 32;
    }
    if (digit != (u32)carry) return digit < (u32)carry ? -1 : 1;
  }
  ROLLED for (i32 i = 0; i < words; ++i)
    if (b[i]) return -1;
  return 0;
}
/* The bits of digits * 10^exponent as a float with `width` bits of mantissa and greatest biased
   exponent `top`; digits is not 0. `more`: s and point have further digits, see decimal_cmp. */
COLD_FN u64 nearest_float(u64 digits, i32 exponent, i32 width, i32 top, i32 more, str s, i32 point) {
  u64 infinite = (u64)top << width;
  if (exponent < -342) return 0;
  if (exponent > 308) return infinite;
  pow10 g = pow10_of(exponent);
  u32 zeros = CLZ64(digits);
  u64 x = digits << zeros, cross = g.hi * x, lo = MULHI64(g.lo, x) + cross, hi = MULHI64(g.hi, x) + (lo < cross);
  /* The number is (hi:lo) * 2^e, at most 3 units of lo less, or fewer than `above` units of hi
     more. */
  i32 e = g.e + 64 - (i32)zeros;
  u64 above = more ? ((u64)1 << zeros) + 1 : 1;
  i32 last = 127 - (i32)CLZ64(hi), biased = last + e + (top >> 1);
  if (biased >= top) return infinite;
  /* The dropped bits of hi. */
  i32 cut = last - 64 - width + (biased < 1 ? 1 - biased : 0);
  if (biased < 1) biased = 1;
  if (cut > 65) return 0;
  if (cut > 64) { hi >>= 1; ++e; cut = 64; }
  u64 kept = cut < 64 ? hi >> cut : 0, rest = cut < 64 ? hi - (kept << cut) : hi, middle = (u64)1 << (cut - 1);
  i32 up = rest >= middle, close = up ? rest == middle && lo < 3 : rest + above > middle;
  if (close) {
    i32 c = decimal_cmp(s, point, kept * 2 + 1, cut + 63 + e);
    up = c > 0 || (c == 0 && (kept & 1));
  }
  u64 bits = ((u64)(biased - 1) << width) + kept + (u64)up;
  return bits < infinite ? bits : infinite;
}
/* [+-]digits[.digits][e[+-]digits] with a digit before or after the point, inf, infinity or nan in
   any case; ASCII blanks around. */
COLD_FN i32 parse_float(str s, i32 width, i32 top, u64 *bits) {
  *bits = 0;
  while (s.len && is_blank(s.p[s.len - 1])) --s.len;
  while (s.len && is_blank(s.p[0])) s = str_from(s, 1);
  if (s.len == 0) return 0;
  u64 sign = s.p[0] == 45 ? ((u64)top + 1) << width : 0;
  if (s.p[0] == 45 || s.p[0] == 43) s = str_from(s, 1);
  /* The first 19 digits; later ones change the exponent. */
  u64 digits = 0;
  u32 at = 0, first = 0, count = 0, read = 0, points = 0, more = 0;
  i32 exponent = 0;
  ROLLED for (; at < s.len; ++at) {
    u8 c = s.p[at];
    if (c == 46 && points == 0) { points = 1; continue; }
    if (!is_digit(c)) break;
    read = 1;
    if (digits == 0) first = at;
    if (count < 19) {
      digits = digits * 10 + (u64)(c - 48);
      count += digits != 0;
      exponent -= (i32)points;
    } else {
      more |= c != 48;
      exponent += 1 - (i32)points;
    }
  }
  if (!read) {
    u64 word = 0;
    if (s.len > 8) return 0;
    for (u32 i = 0; i < s.len; ++i) word |= (u64)(s.p[i] | 32) << (8 * i);
    *bits = sign | (u64)top << width;
    if (word == (u64)0x6e616eUL) *bits |= (u64)1 << (width - 1);
    else if (word != (u64)0x666e69UL && word != (u64)0x7974696e69666e69UL) return 0;
    return 1;
  }
  u32 end = at;
  if (at < s.len) {
    if ((s.p[at] | 32) != 101) return 0;
    ++at;
    i32 negative = at < s.len && s.p[at] == 45, power = 0;
    if (at < s.len && (s.p[at] == 45 || s.p[at] == 43)) ++at;
    if (at == s.len) return 0;
    ROLLED for (; at < s.len; ++at) {
      if (!is_digit(s.p[at])) return 0;
      if (power < 100000000) power = power * 10 + (i32)(s.p[at] - 48);
    }
    exponent += negative ? -power : power;
  }
  str decimals = str_make(s.p + first, end - first);
  *bits = sign;
  if (digits) *bits |= nearest_float(digits, exponent, width, top, more, decimals, (i32)count + exponent);
  return 1;
}
