/* Replaces the last `dropped` digits of a wide integer by zeros, rounding or truncating; 0 if more
   than `digits` are dropped. An overflow clears `ok`. */
#define ROUND_DIGITS(T) \
  COLD_FN T T##_round_digits(T value, i32 dropped, i32 digits, i32 rounds, i32 *ok) { \
    T factor = T##_of(1), ten = T##_of(10); \
    if (dropped <= 0) return value; \
    if (dropped > digits) return T##_of(0); \
    ROLLED for (; dropped > 0; --dropped) factor = T##_mul(factor, ten); \
    T quotient = rounds ? T##_div_half_up(value, factor) : T##_div(value, factor); \
    *ok &= !T##_mul_over(quotient, factor); \
    return T##_mul(quotient, factor); \
  }
