/* 128-bit signed integers in Arrow's layout. `_over` functions tell whether a result overflows. */
typedef struct { u64 lo, hi; } i128;
FN i128 i128_make(u64 lo, u64 hi) { i128 r; r.lo = lo; r.hi = hi; return r; }
FN i128 i128_of(i64 v) { return i128_make((u64)v, (u64)(v >> 63)); }
FN i128 i128_of_u64(u64 v) { return i128_make(v, 0); }
FN i128 i128_add(i128 a, i128 b) { u64 lo = a.lo + b.lo; return i128_make(lo, a.hi + b.hi + (lo < a.lo)); }
FN i128 i128_sub(i128 a, i128 b) { return i128_make(a.lo - b.lo, a.hi - b.hi - (a.lo < b.lo)); }
FN i128 i128_neg(i128 a) { return i128_make((u64)0 - a.lo, (u64)0 - a.hi - (a.lo != 0)); }
FN i128 i128_mul(i128 a, i128 b) { return i128_make(a.lo * b.lo, MULHI64(a.lo, b.lo) + a.hi * b.lo + a.lo * b.hi); }
FN i32 i128_is_neg(i128 a) { return (i32)(a.hi >> 63); }
FN i32 i128_eq(i128 a, i128 b) { return (a.lo == b.lo) & (a.hi == b.hi); }
FN i32 i128_lt(i128 a, i128 b) { return ((i64)a.hi < (i64)b.hi) | ((a.hi == b.hi) & (a.lo < b.lo)); }
FN i128 i128_sel(i32 c, i128 a, i128 b) { return i128_make(c ? a.lo : b.lo, c ? a.hi : b.hi); }
FN i128 i128_abs(i128 a) { return i128_sel(i128_is_neg(a), i128_neg(a), a); }
/* Whether the value fits an i64. */
FN i32 i128_fits(i128 a) { return a.hi == (u64)((i64)a.lo >> 63); }
/* The exact product of two i64. */
FN i128 i128_mul64(i64 a, i64 b) {
  u64 hi = MULHI64((u64)a, (u64)b) - (a < 0 ? (u64)b : (u64)0) - (b < 0 ? (u64)a : (u64)0);
  return i128_make((u64)a * (u64)b, hi);
}
FN i32 i128_add_over(i128 a, i128 b) { u64 r = i128_add(a, b).hi; return (i32)(((a.hi ^ r) & (b.hi ^ r)) >> 63); }
FN i32 i128_sub_over(i128 a, i128 b) { u64 r = i128_sub(a, b).hi; return (i32)(((a.hi ^ b.hi) & (a.hi ^ r)) >> 63); }
FN i32 i128_mul_over(i128 a, i128 b) {
  if (i128_fits(a) & i128_fits(b)) return 0;
  i128 x = i128_abs(a), y = i128_abs(b);
  if ((x.hi != 0) & (y.hi != 0)) return 1;
  u64 one = x.hi ? x.hi : y.hi, other = x.hi ? y.lo : x.lo;
  u64 hi = MULHI64(x.lo, y.lo), cross = one * other, top = hi + cross;
  if ((MULHI64(one, other) != 0) | (top < hi)) return 1;
  if (!(top >> 63)) return 0;
  /* The magnitude 2^127 fits a negative product only. */
  return !((top == (u64)1 << 63) & (x.lo * y.lo == 0) & (i128_is_neg(a) != i128_is_neg(b)));
}
