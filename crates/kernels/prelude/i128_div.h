/* Truncating 128-bit division: algorithm D (Knuth, "The Art of Computer Programming", 4.3.1) in
   words of 32 bits, with shortcuts for small operands. */
/* (hi:lo) / d for hi < d: the quotient, and the remainder in *rem. */
FN u64 u128_div64(u64 hi, u64 lo, u64 d, u64 *rem) {
  u32 s = CLZ64(d);
  d <<= s;
  u64 n = s ? (hi << s) | (lo >> (64 - s)) : hi;
  lo <<= s;
  u64 d1 = d >> 32, d0 = d & 0xffffffffu, q = 0;
  for (u32 step = 0; step < 2; ++step) {
    u64 next = step ? lo & 0xffffffffu : lo >> 32;
    u64 g = n / d1, r = n - g * d1;
    while ((g >> 32) || g * d0 > ((r << 32) | next)) {
      --g;
      r += d1;
      if (r >> 32) break;
    }
    n = ((n << 32) | next) - g * d;
    q = (q << 32) | g;
  }
  *rem = n >> s;
  return q;
}
FN i128 u128_divmod(i128 n, i128 d, i128 *rem) {
  u64 r;
  if (d.hi == 0) {
    if (n.hi == 0) {
      u64 q = n.lo / d.lo;
      *rem = i128_of_u64(n.lo - q * d.lo);
      return i128_of_u64(q);
    }
    u64 high = n.hi / d.lo;
    u64 low = u128_div64(n.hi - high * d.lo, n.lo, d.lo, &r);
    *rem = i128_of_u64(r);
    return i128_make(low, high);
  }
  /* The divisor exceeds 64 bits, so that the quotient fits 64. The estimate from the divisor's top
     64 bits and half the dividend is at most one too large. */
  u32 s = CLZ64(d.hi);
  u64 top = s ? (d.hi << s) | (d.lo >> (64 - s)) : d.hi;
  u64 q = u128_div64(n.hi >> 1, (n.hi << 63) | (n.lo >> 1), top, &r);
  q >>= 63 - s;
  if (q) --q;
  i128 left = i128_sub(n, i128_mul(d, i128_of_u64(q)));
  i32 more = (left.hi > d.hi) | ((left.hi == d.hi) & (left.lo >= d.lo));
  q += (u64)more;
  *rem = more ? i128_sub(left, d) : left;
  return i128_of_u64(q);
}
/* Quotient and remainder; the divisor is not 0. i128::MIN / -1 wraps. */
FN i128 i128_divmod(i128 a, i128 b, i128 *rem) {
  i128 r, q = u128_divmod(i128_abs(a), i128_abs(b), &r);
  *rem = i128_is_neg(a) ? i128_neg(r) : r;
  return i128_is_neg(a) != i128_is_neg(b) ? i128_neg(q) : q;
}
FN i128 i128_div(i128 a, i128 b) { i128 r; return i128_divmod(a, b, &r); }
FN i128 i128_rem(i128 a, i128 b) { i128 r; i128_divmod(a, b, &r); return r; }
/* Quotient by a positive even divisor, rounded half away from zero. */
FN i128 i128_div_half_up(i128 a, i128 b) {
  i128 r, q = u128_divmod(i128_abs(a), b, &r);
  i128 limit = i128_make((b.lo >> 1) | (b.hi << 63), b.hi >> 1);
  i32 up = (r.hi > limit.hi) | ((r.hi == limit.hi) & (r.lo >= limit.lo));
  q = i128_add(q, i128_of_u64((u64)up));
  return i128_is_neg(a) ? i128_neg(q) : q;
}
