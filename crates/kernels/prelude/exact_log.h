/* Which power of a base a number is, where the base is an integer of 32 bits from 2 on; -1 where it is none. */
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
