/* Helper functions of the operators' kernels. */
/* Position of the lowest set bit of a word that is not 0. */
#define CTZ32(x) POPC32(~(x) & ((x) - 1u))
/* Position of set bit k, from 0, of a word with more than k set bits. */
FN u32 nth_bit(u32 word, u32 k) {
  u32 at = 0;
  for (u32 width = 16; width; width >>= 1) {
    u32 low = POPC32(word & ((1u << width) - 1u));
    if (k >= low) { k -= low; word >>= width; at += width; }
  }
  return at;
}
/* Sets bit i of a zeroed array of words in shared memory if keep is 1. Work-item l of a work-group
   has bit i = l, or l plus a multiple of the work-group size. All work-items take part. */
#if WARP_WIDTH == 1
#define VOTE(words, i, keep) if (keep) A_OR32(&(words)[(i) >> 5], 1u << ((i) & 31));
#elif WARP_WIDTH == 32
#define VOTE(words, i, keep) { \
  u32 vote = (u32)BALLOT(keep); \
  if ((i) % 32 == 0) (words)[(i) >> 5] = vote; \
}
#else
/* A work-group of half a warp has no word for the other work-items, whose votes are 0. */
#define VOTE(words, i, keep) { \
  u64 vote = BALLOT(keep); \
  if (LID() % 64 == 0) { \
    (words)[(i) >> 5] = (u32)vote; \
    if (vote >> 32) (words)[((i) >> 5) + 1] = (u32)(vote >> 32); \
  } \
}
#endif
/* Adds to a word in memory, atomically. Returns the carry. */
FN u32 add64_g(volatile G u64 *p, u64 v) { return A_ADD64(p, v) + v < v; }
FN u32 add64_l(volatile L u64 *p, u64 v) { return A_CARRY64_L(p, v); }
/* Adds to a float in memory, atomically. Returns the old value. */
#ifdef A_ADD_F64
#define ATOMIC_ADD_F64(name, space) \
FN f64 name(volatile space u64 *p, f64 v) { return A_ADD_F64(p, v); }
#else
#define ATOMIC_ADD_F64(name, space) \
FN f64 name(volatile space u64 *p, f64 v) { \
  u64 old = *p, seen; \
  while ((seen = A_CAS64(p, old, F64_BITS(BITS_F64(old) + v))) != old) old = seen; \
  return BITS_F64(old); \
}
#endif
ATOMIC_ADD_F64(add_f64_g, G)
ATOMIC_ADD_F64(add_f64_l, L)
/* Variance: number, mean and sum of squared distances (Welford, Chan). Macros, since the state may
   be in any address space. */
#define welford_add(n, mean, m2, value) { \
  f64 x_ = (value), m_ = BITS_F64(*(mean)), d_ = x_ - m_; \
  *(n) += 1; \
  m_ = d_ / (f64)*(n) + m_; \
  *(m2) = F64_BITS(BITS_F64(*(m2)) + d_ * (x_ - m_)); \
  *(mean) = F64_BITS(m_); \
}
#define welford_merge(n, mean, m2, n2, mean2, m22) { \
  u64 n_ = (n2), a_ = (mean2), b_ = (m22); \
  if (n_ && !*(n)) { *(n) = n_; *(mean) = a_; *(m2) = b_; } \
  else if (n_) { \
    f64 c1_ = (f64)*(n), c2_ = (f64)n_, c_ = (f64)(*(n) + n_), d_ = BITS_F64(*(mean)) - BITS_F64(a_); \
    *(n) += n_; \
    *(mean) = F64_BITS(BITS_F64(*(mean)) * c1_ / c_ + BITS_F64(a_) * c2_ / c_); \
    *(m2) = F64_BITS(BITS_F64(*(m2)) + BITS_F64(b_) + d_ * d_ * c1_ * c2_ / c_); \
  } \
}
/* Sums as two floats: the low part has the exact errors of additions (Knuth's TwoSum). */
#define TWO_SUM_ERROR(a, b, s, e) f64 t_##e = (s) - (a), e = ((a) - ((s) - t_##e)) + ((b) - t_##e);
#define twofold_add(hi, lo, h, l) { \
  f64 a_ = BITS_F64(*(hi)), b_ = BITS_F64(h), s_ = a_ + b_; \
  TWO_SUM_ERROR(a_, b_, s_, e_) \
  *(hi) = F64_BITS(s_); \
  *(lo) = F64_BITS(BITS_F64(*(lo)) + e_ + BITS_F64(l)); \
}
#define TWOFOLD_ATOMIC(name, space, add) \
FN void name(volatile space u64 *hi, volatile space u64 *lo, f64 h, f64 l) { \
  f64 a = add(hi, h), s = a + h; \
  TWO_SUM_ERROR(a, h, s, e) \
  if (e + l != 0) add(lo, e + l); \
}
TWOFOLD_ATOMIC(twofold_atomic_g, G, add_f64_g)
TWOFOLD_ATOMIC(twofold_atomic_l, L, add_f64_l)
/* Sum of squared distances, from the sums of x and of its square. */
FN f64 twofold_distances(u64 n, f64 h1, f64 l1, f64 h2, f64 l2) {
  f64 s = h1 + l1, low = l1 - (s - h1), c = (f64)n;
  f64 p = s * s, p_low = fma(s, s, -p) + 2.0 * s * low;
  f64 q = p / c, q_low = (fma(-q, c, p) + p_low) / c;
  f64 d = h2 - q;
  TWO_SUM_ERROR(h2, -q, d, e)
  f64 result = d + (e + l2 - q_low);
  return result < 0.0 ? 0.0 : result;
}
/* Sum of products of the distances of x and y, from the sums of y, x, and x times y. */
FN f64 twofold_products(u64 n, f64 hy, f64 ly, f64 hx, f64 lx, f64 hp, f64 lp) {
  f64 y = hy + ly, y_low = ly - (y - hy), x = hx + lx, x_low = lx - (x - hx), c = (f64)n;
  f64 p = x * y, p_low = fma(x, y, -p) + x * y_low + x_low * y;
  f64 q = p / c, q_low = (fma(-q, c, p) + p_low) / c;
  f64 d = hp - q;
  TWO_SUM_ERROR(hp, -q, d, e)
  return d + (e + lp - q_low);
}
/* The percentile at a fraction of n values, interpolated between the two values around it and
   rounded as in DataFusion. */
FN f64 percentile(f64 least, f64 greatest, i64 n, f64 fraction) {
  f64 position = fraction * (f64)(n - 1), part = position - floor(position);
  if (n < 2 || fraction == 0.0 || fraction == 1.0 || part == 0.0) return least;
  f64 weight = (f64)(i64)(part * 1000000.0) / 1000000.0;
  return least + (greatest - least) * weight;
}
/* Mixes the bytes of a string into a hash, eight at a time. */
#define STR_KEYS \
FN u64 last_bytes(str s) { \
  if (s.len >= 8) return LOAD64(s.p + s.len - 8); \
  u64 word = 0; \
  for (u32 i = 0; i < s.len; ++i) word = word << 8 | s.p[i]; \
  return word; \
} \
FN u64 hash_bytes(u64 hash, str s) { \
  hash ^= s.len; \
  for (u32 i = 0; i + 8 < s.len; i += 8) hash = hash64(hash ^ LOAD64(s.p + i)); \
  return hash64(hash ^ last_bytes(s)); \
}
