/* The exponent of an integer power: n for exact_log(base^n, base). The result is -1 for
   - a number that is no power of the base,
   - a base that is no integer from 2 to 2^32 - 1. */
COLD_FN i32 exact_log(i128 number, f64 base) {
  if (!(base >= 2 && base <= 4294967295.0)) return -1;
  i128 step = i128_of((i64)base), power = i128_of(1);
  if ((f64)step.lo != base) return -1;
  i32 exponent = 0;
  ROLLED while (i128_lt(power, number)) {
    if (i128_mul_over(power, step)) return -1;
    power = i128_mul(power, step);
    ++exponent;
  }
  return i128_eq(power, number) ? exponent : -1;
}
