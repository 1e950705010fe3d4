/* AVG of decimals: *out = sum * scale / count, truncated; the sum has 192 bits in two's complement.
   Nonzero if the product exceeds a signed integer of `bits` bits, or the quotient reaches limit. */
FN i32 decimal_average(u64 w0, u64 w1, u64 w2, u64 scale, u64 count, u32 bits, i128 limit, i128 *out) {
  u32 negative = (u32)(w2 >> 63);
  if (negative) {
    w0 = ~w0 + 1;
    w1 = ~w1 + (w0 == 0);
    w2 = ~w2 + ((w0 == 0) & (w1 == 0));
  }
  u64 p0 = w0 * scale, p1 = w1 * scale, p2 = w2 * scale, p3 = MULHI64(w2, scale), carry = MULHI64(w0, scale);
  p1 += carry;
  carry = MULHI64(w1, scale) + (p1 < carry);
  p2 += carry;
  p3 += p2 < carry;
  const u64 top = (u64)1 << 63;
  if (bits == 64 && ((p1 | p2 | p3) || p0 > top - 1 + negative)) return 1;
  if (bits == 128 && ((p2 | p3) || p1 > top || (p1 == top && !(negative && p0 == 0)))) return 1;
  u64 rest, q3 = u128_div64(0, p3, count, &rest), q2 = u128_div64(rest, p2, count, &rest);
  u64 q1 = u128_div64(rest, p1, count, &rest), q0 = u128_div64(rest, p0, count, &rest);
  if ((q3 | q2) || q1 > limit.hi || (q1 == limit.hi && q0 >= limit.lo)) return 1;
  i128 q = i128_make(q0, q1);
  *out = negative ? i128_neg(q) : q;
  return 0;
}
/* MEDIAN of decimals: the truncated mean of one or two values, from their sum. */
FN i128 i192_median(u64 w0, u64 w1, u64 w2, u64 count) {
  if (count == 2) {
    /* Truncation: a negative odd sum rounds up. */
    u64 up = (w2 >> 63) & w0 & 1;
    w0 += up;
    w1 += up && !w0;
    w0 = w0 >> 1 | w1 << 63;
    w1 = w1 >> 1 | w2 << 63;
  }
  return i128_make(w0, w1);
}
