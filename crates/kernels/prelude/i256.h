/* 256-bit signed integers in Arrow's layout, lowest word first. `_over` functions tell whether a
   result overflows. */
typedef struct { u64 w[4]; } i256;
FN i256 i256_make(u64 w0, u64 w1, u64 w2, u64 w3) { i256 r; r.w[0] = w0; r.w[1] = w1; r.w[2] = w2; r.w[3] = w3; return r; }
FN i256 i256_of(i64 v) { u64 s = (u64)(v >> 63); return i256_make((u64)v, s, s, s); }
FN i256 i256_of_u64(u64 v) { return i256_make(v, 0, 0, 0); }
FN i256 i256_of_i128(i128 v) { u64 s = (u64)((i64)v.hi >> 63); return i256_make(v.lo, v.hi, s, s); }
FN i128 i256_low(i256 a) { return i128_make(a.w[0], a.w[1]); }
FN i256 i256_add(i256 a, i256 b) {
  u64 carry = 0;
  for (u32 i = 0; i < 4; ++i) {
    u64 sum = a.w[i] + b.w[i], all = sum + carry;
    carry = (sum < b.w[i]) | (all < sum);
    a.w[i] = all;
  }
  return a;
}
FN i256 i256_sub(i256 a, i256 b) {
  u64 borrow = 0;
  for (u32 i = 0; i < 4; ++i) {
    u64 left = a.w[i] - b.w[i], all = left - borrow;
    borrow = (a.w[i] < b.w[i]) | (left < borrow);
    a.w[i] = all;
  }
  return a;
}
FN i256 i256_neg(i256 a) { return i256_sub(i256_of(0), a); }
FN i32 i256_is_neg(i256 a) { return (i32)(a.w[3] >> 63); }
FN i32 i256_eq(i256 a, i256 b) { return (a.w[0] == b.w[0]) & (a.w[1] == b.w[1]) & (a.w[2] == b.w[2]) & (a.w[3] == b.w[3]); }
FN i32 i256_lt(i256 a, i256 b) {
  i32 r = a.w[0] < b.w[0];
  r = (a.w[1] < b.w[1]) | ((a.w[1] == b.w[1]) & r);
  r = (a.w[2] < b.w[2]) | ((a.w[2] == b.w[2]) & r);
  return ((i64)a.w[3] < (i64)b.w[3]) | ((a.w[3] == b.w[3]) & r);
}
FN i256 i256_sel(i32 c, i256 a, i256 b) {
  return i256_make(c ? a.w[0] : b.w[0], c ? a.w[1] : b.w[1], c ? a.w[2] : b.w[2], c ? a.w[3] : b.w[3]);
}
FN i256 i256_abs(i256 a) { return i256_sel(i256_is_neg(a), i256_neg(a), a); }
/* Whether the value fits an i128. */
FN i32 i256_fits(i256 a) { u64 s = (u64)((i64)a.w[1] >> 63); return (a.w[2] == s) & (a.w[3] == s); }
FN i32 i256_add_over(i256 a, i256 b) { u64 r = i256_add(a, b).w[3]; return (i32)(((a.w[3] ^ r) & (b.w[3] ^ r)) >> 63); }
FN i32 i256_sub_over(i256 a, i256 b) { u64 r = i256_sub(a, b).w[3]; return (i32)(((a.w[3] ^ b.w[3]) & (a.w[3] ^ r)) >> 63); }
/* The low 256 bits of an unsigned product; *over: whether it has more. */
COLD_FN i256 u256_mul(i256 a, i256 b, i32 *over) {
  i256 r = i256_of(0);
  u64 lost = 0;
  ROLLED for (u32 i = 0; i < 4; ++i) {
    u64 carry = 0;
    ROLLED for (u32 j = 0; j < 4; ++j) {
      if (i + j > 3) {
        lost |= carry | (a.w[i] && b.w[j]);
        carry = 0;
        continue;
      }
      u64 low = a.w[i] * b.w[j], high = MULHI64(a.w[i], b.w[j]);
      low += carry;
      high += low < carry;
      u64 sum = r.w[i + j] + low;
      carry = high + (sum < low);
      r.w[i + j] = sum;
    }
    lost |= carry;
  }
  *over = lost != 0;
  return r;
}
FN i256 i256_mul(i256 a, i256 b) { i32 over; return u256_mul(a, b, &over); }
FN i32 i256_mul_over(i256 a, i256 b) {
  if (i256_fits(a) & i256_fits(b)) return 0;
  i32 over;
  i256 m = u256_mul(i256_abs(a), i256_abs(b), &over);
  if (over | !i256_is_neg(m)) return over;
  /* The magnitude 2^255 fits a negative product only. */
  return !((m.w[3] == (u64)1 << 63) & ((m.w[0] | m.w[1] | m.w[2]) == 0) & (i256_is_neg(a) != i256_is_neg(b)));
}
