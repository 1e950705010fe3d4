/* Numbers with as many decimal places as a row says. */
/* Powers of ten, as Rust's powi multiplies them. */
#define TEN_TO(T) \
  COLD_FN T T##_ten_to(i32 places) { \
    T power = 1, square = 10; \
    for (u32 left = places < 0 ? 0u - (u32)places : (u32)places; left;) { \
      if (left & 1u) power = T##_mul(power, square); \
      left >>= 1; \
      if (left) square = T##_mul(square, square); \
    } \
    return places < 0 ? T##_div(1, power) : power; \
  }
TEN_TO(f64)
TEN_TO(f32)
/* Halves away from zero; 0 where the power of ten is not of the type. `ok` is cleared where the result is not. */
COLD_FN i64 i64_to_places(i64 value, i64 places, i64 least, i64 most, i32 *ok) {
  i64 factor = 1;
  if (places >= 0) return value;
  ROLLED for (; places < 0; ++places) {
    if (factor > most / 10) return 0;
    factor *= 10;
  }
  i64 rest = value % factor, quotient = value / factor + (rest >= factor / 2) - (rest <= -(factor / 2));
  *ok &= (quotient <= most / factor) & (quotient >= least / factor);
  return (i64)((u64)quotient * (u64)factor);
}
COLD_FN u64 u64_to_places(u64 value, i64 places, u64 most, i32 *ok) {
  u64 factor = 1;
  if (places >= 0) return value;
  ROLLED for (; places < 0; ++places) {
    if (factor > most / 10) return 0;
    factor *= 10;
  }
  u64 quotient = value / factor + (value % factor >= factor / 2);
  *ok &= quotient <= most / factor;
  return quotient * factor;
}
/* How many of a decimal's last digits become zeros. */
FN i32 dropped_digits(i32 scale, i64 places) { return places < -1000 ? 2000 : places > 1000 ? 0 : scale - (i32)places; }
