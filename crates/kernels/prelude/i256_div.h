/* Truncating 256-bit division: algorithm D (Knuth, "The Art of Computer Programming", 4.3.1) in
   words of 64 bits. */
COLD_FN i256 u256_divmod(i256 n, i256 d, i256 *rem) {
  i256 q = i256_of(0);
  u32 words = 4;
  ROLLED while (words > 1 && d.w[words - 1] == 0) --words;
  if (words == 1) {
    u64 rest = 0;
    ROLLED for (u32 i = 4; i-- > 0;) q.w[i] = u128_div64(rest, n.w[i], d.w[0], &rest);
    *rem = i256_of_u64(rest);
    return q;
  }
  /* Both are shifted so that the divisor's highest bit is at the top of its word. */
  u64 u[5], v[4];
  u32 s = CLZ64(d.w[words - 1]);
  u[4] = s ? n.w[3] >> (64 - s) : 0;
  ROLLED for (u32 i = 0; i < 4; ++i) {
    u[i] = (n.w[i] << s) | (s && i ? n.w[i - 1] >> (64 - s) : 0);
    v[i] = (d.w[i] << s) | (s && i ? d.w[i - 1] >> (64 - s) : 0);
  }
  ROLLED for (u32 j = 5 - words; j-- > 0;) {
    /* The estimate from the divisor's top word is at most two too large. */
    u64 g = ~(u64)0, rest, carry = 0, borrow = 0;
    if (u[j + words] < v[words - 1]) g = u128_div64(u[j + words], u[j + words - 1], v[words - 1], &rest);
    ROLLED for (u32 i = 0; i < words; ++i) {
      u64 low = g * v[i] + carry;
      carry = MULHI64(g, v[i]) + (low < carry);
      u64 left = u[i + j] - low, all = left - borrow;
      borrow = (u[i + j] < low) | (left < borrow);
      u[i + j] = all;
    }
    i32 below = u[j + words] < carry + borrow;
    u[j + words] -= carry + borrow;
    ROLLED while (below) {
      --g;
      carry = 0;
      ROLLED for (u32 i = 0; i < words; ++i) {
        u64 sum = u[i + j] + v[i], all = sum + carry;
        carry = (sum < v[i]) | (all < sum);
        u[i + j] = all;
      }
      u[j + words] += carry;
      below = u[j + words] >= carry;
    }
    q.w[j] = g;
  }
  ROLLED for (u32 i = 0; i < 4; ++i) rem->w[i] = i < words ? (u[i] >> s) | (s ? u[i + 1] << (64 - s) : 0) : 0;
  return q;
}
/* Quotient and remainder; the divisor is not 0. The least value / -1 wraps. */
FN i256 i256_divmod(i256 a, i256 b, i256 *rem) {
  i256 r, q = u256_divmod(i256_abs(a), i256_abs(b), &r);
  *rem = i256_sel(i256_is_neg(a), i256_neg(r), r);
  return i256_sel(i256_is_neg(a) != i256_is_neg(b), i256_neg(q), q);
}
FN i256 i256_div(i256 a, i256 b) { i256 r; return i256_divmod(a, b, &r); }
FN i256 i256_rem(i256 a, i256 b) { i256 r; i256_divmod(a, b, &r); return r; }
/* Quotient by a positive even divisor, rounded half away from zero. */
FN i256 i256_div_half_up(i256 a, i256 b) {
  i256 r, q = u256_divmod(i256_abs(a), b, &r);
  i32 up = 1;
  /* Twice the remainder is below 2^256. */
  i256 twice = i256_add(r, r);
  for (u32 i = 0; i < 4; ++i) up = (twice.w[i] > b.w[i]) | ((twice.w[i] == b.w[i]) & up);
  q = i256_add(q, i256_of_u64((u64)up));
  return i256_sel(i256_is_neg(a), i256_neg(q), q);
}
