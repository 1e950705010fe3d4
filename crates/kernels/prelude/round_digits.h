/* round and trunc to a number of decimal digits that each row has; a negative number rounds to
   tens, hundreds and so on. */
/* Powers of ten with the multiplications of Rust's powi. */
#define TEN_TO(T) \
  COLD_FN T T##_ten_to(i32 digits) { \
    T power = 1, square = 10; \
    for (u32 left = digits < 0 ? 0u - (u32)digits : (u32)digits; left;) { \
      if (left & 1u) power = T##_mul(power, square); \
      left >>= 1; \
      if (left) square = T##_mul(square, square); \
    } \
    return digits < 0 ? T##_div(1, power) : power; \
  }
TEN_TO(f64)
TEN_TO(f32)
/* Rounds half away from zero; 0 if the power of ten exceeds the type. A result beyond the type
   clears `ok`. */
COLD_FN i64 i64_round_digits(i64 value, i64 digits, i64 least, i64 most, i32 *ok) {
  i64 factor = 1;
  if (digits >= 0) return value;
  ROLLED for (; digits < 0; ++digits) {
    if (factor > most / 10) return 0;
    factor *= 10;
  }
  i64 rest = value % factor, quotient = value / factor + (rest >= factor / 2) - (rest <= -(factor / 2));
  *ok &= (quotient <= most / factor) & (quotient >= least / factor);
  return (i64)((u64)quotient * (u64)factor);
}
COLD_FN u64 u64_round_digits(u64 value, i64 digits, u64 most, i32 *ok) {
  u64 factor = 1;
  if (digits >= 0) return value;
  ROLLED for (; digits < 0; ++digits) {
    if (factor > most / 10) return 0;
    factor *= 10;
  }
  u64 quotient = value / factor + (value % factor >= factor / 2);
  *ok &= quotient <= most / factor;
  return quotient * factor;
}
/* The number of a decimal's last digits that become zeros. */
FN i32 dropped_digits(i32 scale, i64 digits) { return digits < -1000 ? 2000 : digits > 1000 ? 0 : scale - (i32)digits; }
