/* Integers of several words with zeros for their last digits; 0 where these are more than `digits`. `ok` is cleared where the
   result has no place in the words. */
#define TO_PLACES(T) \
  COLD_FN T T##_to_places(T value, i32 dropped, i32 digits, i32 rounds, i32 *ok) { \
    T factor = T##_of(1), ten = T##_of(10); \
    if (dropped <= 0) return value; \
    if (dropped > digits) return T##_of(0); \
    ROLLED for (; dropped > 0; --dropped) factor = T##_mul(factor, ten); \
    T quotient = rounds ? T##_div_half_up(value, factor) : T##_div(value, factor); \
    *ok &= !T##_mul_over(quotient, factor); \
    return T##_mul(quotient, factor); \
  }
