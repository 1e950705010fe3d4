/* Formats floats: the fewest digits that round to the float, in ryu's layout. The algorithm is
   Schubfach (Raffaello Giulietti, "The Schubfach way to render doubles"). */
/* floor(g * c / 2^128), with the lowest bit set if inexact. Every inexact product of a c and g
   below differs from an integer by more than 2^-65.5; the error of g adds less than 2^-66.9. */
FN u64 scaled_odd(pow10 g, u64 c) {
  u64 rest = g.lo * c, cross = g.hi * c, lo = MULHI64(g.lo, c) + cross;
  return (MULHI64(g.hi, c) + (lo < cross)) | (lo != 0) | (rest >> 62 != 0);
}
/* Appends digits * 10^exponent, in scientific notation unless 10^(least - 1) <= value < 10^most. */
COLD_FN u32 put_scientific(G u8 *p, u32 n, u64 digits, i32 exponent, i32 least, i32 most) {
  u8 d[20];
  i32 count = 0;
  ROLLED for (u64 q; (q = digits / 10) * 10 == digits; ++exponent) digits = q;
  ROLLED for (; digits; digits /= 10) d[count++] = (u8)(48 + (u32)(digits % 10));
  i32 point = count + exponent;
  if (point >= least && point <= most) {
    i32 first = point < 1 ? point - 1 : 0, last = point < count ? count : point + 1;
    ROLLED for (i32 i = first; i < last; ++i) {
      if (i == point) p[n++] = 46;
      p[n++] = i >= 0 && i < count ? d[count - 1 - i] : (u8)48;
    }
    return n;
  }
  ROLLED for (i32 i = 0; i < count; ++i) {
    if (i == 1) p[n++] = 46;
    p[n++] = d[count - 1 - i];
  }
  p[n++] = 101;
  if (point < 1) p[n++] = 45;
  return put_u64(p, n, (u64)(point < 1 ? 1 - point : point - 1), 1);
}
/* Formats the bits of a float with `width` bits of mantissa and greatest biased exponent `top`;
   `least` and `most` are those of put_scientific. */
COLD_FN u32 format_float(G u8 *p, u64 bits, i32 width, i32 top, i32 least, i32 most) {
  u64 fraction = bits & (((u64)1 << width) - 1);
  i32 biased = (i32)(bits >> width) & top;
  if (biased == top && fraction) {
    p[0] = 78; p[1] = 97; p[2] = 78;
    return 3;
  }
  u32 n = 0;
  if (bits >> width > (u64)top) n = put_char(p, n, 45);
  if (biased == top) {
    p[n] = 105; p[n + 1] = 110; p[n + 2] = 102;
    return n + 3;
  }
  if (biased == 0 && fraction == 0) {
    p[n] = 48; p[n + 1] = 46; p[n + 2] = 48;
    return n + 3;
  }
  /* The float is c * 2^q; the floats below a power of two are closer. */
  u64 c = biased ? fraction | (u64)1 << width : fraction;
  i32 q = (biased ? biased : 1) - (top >> 1) - width, closer = fraction == 0 && biased > 1;
  /* 10^k is at most the width of the interval that rounds to the float. */
  i32 k = (q * 1262611 - (closer ? 524031 : 0)) >> 22;
  pow10 g = pow10_of(-k);
  i32 shift = q + g.e + 128;
  /* Four times the interval's ends and the float, in units of 10^k; an odd float excludes the ends.
     */
  u64 odd = c & 1;
  u64 low = scaled_odd(g, (c * 4 - (closer ? 1 : 2)) << shift) + odd, high = scaled_odd(g, (c * 4 + 2) << shift) - odd;
  u64 four = scaled_odd(g, c * 4 << shift), s = four >> 2, tens = s / 10;
  /* The interval has at most one number with a digit less. */
  i32 down = low <= tens * 40, up = tens * 40 + 40 <= high;
  if (down != up) return put_scientific(p, n, tens + (u64)up, k + 1, least, most);
  down = low <= s * 4;
  up = s * 4 + 4 <= high;
  if (down == up) up = four > s * 4 + 2 || (four == s * 4 + 2 && (s & 1));
  return put_scientific(p, n, s + (u64)up, k, least, most);
}
FN u32 format_f64(G u8 *p, f64 v) { return format_float(p, F64_BITS(v), 52, 2047, -4, 16); }
FN u32 format_f32(G u8 *p, f32 v) { return format_float(p, (u64)F32_BITS(v), 23, 255, -5, 13); }
