/* Helpers of the sinks. */
/* Number of the lowest set bit; the word is not 0. */
#define CTZ32(x) POPC32(~(x) & ((x) - 1u))
/* Place of set bit k, counted from 0, of a word that has more than k. */
FN u32 nth_bit(u32 word, u32 k) {
  u32 at = 0;
  for (u32 width = 16; width; width >>= 1) {
    u32 low = POPC32(word & ((1u << width) - 1u));
    if (k >= low) { k -= low; word >>= width; at += width; }
  }
  return at;
}
/* Sets bit i of an array of words in shared memory, zeroed before, where keep is 1. Item i of a group, or i plus a multiple
   of the group's size; every item takes part. */
#ifdef __OPENCL_VERSION__
#define VOTE(words, i, keep) if (keep) A_OR32(&(words)[(i) >> 5], 1u << ((i) & 31));
#else
#define VOTE(words, i, keep) { u32 vote = __ballot_sync(0xffffffffu, (keep)); if (((i) & 31) == 0) (words)[(i) >> 5] = vote; }
#endif
/* Adds to a float in memory that others add to as well; what was there. */
#ifdef __OPENCL_VERSION__
#define ATOMIC_F64(name, space, op) \
FN f64 name(volatile space u64 *p, f64 v) { \
  u64 old = *p, seen; \
  while ((seen = A_CAS64(p, old, F64_BITS(BITS_F64(old) op v))) != old) old = seen; \
  return BITS_F64(old); \
}
ATOMIC_F64(add_f64_g, G, +)
ATOMIC_F64(add_f64_l, L, +)
#else
FN f64 add_f64_g(volatile u64 *p, f64 v) { return atomicAdd((f64 *)p, v); }
FN f64 add_f64_l(volatile u64 *p, f64 v) { return atomicAdd((f64 *)p, v); }
#endif
/* Variance: number, mean and sum of squared distances (Welford, Chan). The words may lie anywhere: macros. */
#define welford_add(n, mean, m2, value) { \
  f64 v = (value), m = BITS_F64(*(mean)), d = v - m; \
  *(n) += 1; \
  m = d / (f64)*(n) + m; \
  *(m2) = F64_BITS(BITS_F64(*(m2)) + d * (v - m)); \
  *(mean) = F64_BITS(m); \
}
#define welford_merge(n, mean, m2, n2, mean2, m22) { \
  u64 other = (n2); \
  if (other && !*(n)) { *(n) = other; *(mean) = (mean2); *(m2) = (m22); } \
  else if (other) { \
    f64 c1 = (f64)*(n), c2 = (f64)other, c = (f64)(*(n) + other), a = BITS_F64(*(mean)), b = BITS_F64(mean2), d = a - b; \
    *(n) += other; \
    *(mean) = F64_BITS(a * c1 / c + b * c2 / c); \
    *(m2) = F64_BITS(BITS_F64(*(m2)) + BITS_F64(m22) + d * d * c1 * c2 / c); \
  } \
}
/* Sums as two floats: the exact error of each addition (Knuth's TwoSum) goes to the low part. */
#define TWO_SUM_ERROR(a, b, s, e) f64 t_##e = (s) - (a), e = ((a) - ((s) - t_##e)) + ((b) - t_##e);
#define twofold_add(hi, lo, h, l) { \
  f64 a = BITS_F64(*(hi)), b = BITS_F64(h), s = a + b; \
  TWO_SUM_ERROR(a, b, s, e) \
  *(hi) = F64_BITS(s); \
  *(lo) = F64_BITS(BITS_F64(*(lo)) + e + BITS_F64(l)); \
}
#define TWOFOLD_ATOMIC(name, space, add) \
FN void name(volatile space u64 *hi, volatile space u64 *lo, f64 h, f64 l) { \
  f64 a = add(hi, h), s = a + h; \
  TWO_SUM_ERROR(a, h, s, e) \
  if (e + l != 0) add(lo, e + l); \
}
TWOFOLD_ATOMIC(twofold_atomic_g, G, add_f64_g)
TWOFOLD_ATOMIC(twofold_atomic_l, L, add_f64_l)
/* Sum of squared distances from the sums of x and of its square. */
FN f64 twofold_distances(u64 n, f64 h1, f64 l1, f64 h2, f64 l2) {
  f64 s = h1 + l1, low = l1 - (s - h1), c = (f64)n;
  f64 p = s * s, p_low = fma(s, s, -p) + 2.0 * s * low;
  f64 q = p / c, q_low = (fma(-q, c, p) + p_low) / c;
  f64 d = h2 - q;
  TWO_SUM_ERROR(h2, -q, d, e)
  f64 result = d + (e + l2 - q_low);
  return result < 0.0 ? 0.0 : result;
}
