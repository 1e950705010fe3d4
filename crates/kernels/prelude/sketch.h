/* HyperLogLog sketches of 2^14 registers. Values are hashed by foldhash with DataFusion's fixed
   seeds, so that sketches equal DataFusion's. */
#define SKETCH_SEED ((u64)0x082efa98ec4e6c89UL)
#define SKETCH_SEED0 ((u64)0xc0ac29b7c97c50ddUL)
#define SKETCH_SEED1 ((u64)0x3f84d5b5b5470917UL)
FN u64 sketch_fold(u64 a, u64 b) { return a * b ^ MULHI64(a, b); }
/* The hash of 16 final bytes; `seed` includes the earlier ones. */
FN u64 sketch_finish(u64 seed, u64 lo, u64 hi) {
  return sketch_fold(sketch_fold(lo ^ seed, hi ^ SKETCH_SEED0), (u64)0x243f6a8885a308d3UL);
}
FN u64 sketch_hash(u64 lo, u64 hi) { return sketch_finish(SKETCH_SEED, lo, hi); }
/* The hash of 32 bytes. */
FN u64 sketch_wide(u64 a, u64 b, u64 c, u64 d) {
  return sketch_finish(sketch_fold(a ^ SKETCH_SEED, b ^ SKETCH_SEED0), c, d);
}
/* Folds two words into each of two lanes. */
#define SKETCH_TAKE(x, y, a, b, c, d) { \
  x = sketch_fold(LOAD64(p + (a)) ^ x, LOAD64(p + (b)) ^ SKETCH_SEED0); \
  y = sketch_fold(LOAD64(p + (c)) ^ y, LOAD64(p + (d)) ^ SKETCH_SEED0); \
}
COLD_FN u64 sketch_long_bytes(const G u8 *p, u32 len, u64 x) {
  u64 y = x + SKETCH_SEED1;
  if (len > 128) {
    u64 z = x + (u64)0x9216d5d98979fb1bUL, w = x + (u64)0xd1310ba698dfb5acUL;
    if (len > 256) {
      u64 u = x + (u64)0x2ffd72dbd01adfb7UL, v = x + (u64)0xb8e1afed6a267e96UL;
      for (; len > 256; p += 96, len -= 96) {
        SKETCH_TAKE(x, y, 0, 48, 8, 56)
        SKETCH_TAKE(z, w, 16, 64, 24, 72)
        SKETCH_TAKE(u, v, 32, 80, 40, 88)
      }
      x ^= u;
      y ^= v;
    }
    for (; len > 128; p += 64, len -= 64) {
      SKETCH_TAKE(x, y, 0, 32, 8, 40)
      SKETCH_TAKE(z, w, 16, 48, 24, 56)
    }
    x ^= z;
    y ^= w;
  }
  SKETCH_TAKE(x, y, 0, len - 16, 8, len - 8)
  if (len >= 32) SKETCH_TAKE(x, y, 16, len - 32, 24, len - 24)
  if (len >= 64) SKETCH_TAKE(x, y, 32, len - 48, 40, len - 40)
  if (len >= 96) SKETCH_TAKE(x, y, 48, len - 64, 56, len - 56)
  return x ^ y;
}
FN u64 sketch_load32(const G u8 *p) { return (u64)p[0] | (u64)p[1] << 8 | (u64)p[2] << 16 | (u64)p[3] << 24; }
/* The seed after the bytes of a string. */
FN u64 sketch_bytes(str s) {
  u32 turn = s.len & 63;
  u64 x = SKETCH_SEED, y = SKETCH_SEED1;
  if (turn) x = x >> turn | x << (64 - turn);
  if (s.len > 16) return sketch_long_bytes(s.p, s.len, x);
  if (s.len >= 8) {
    x ^= LOAD64(s.p);
    y ^= LOAD64(s.p + s.len - 8);
  } else if (s.len >= 4) {
    x ^= sketch_load32(s.p);
    y ^= sketch_load32(s.p + s.len - 4);
  } else if (s.len) {
    x ^= s.p[0];
    y ^= (u64)s.p[s.len - 1] << 8 | s.p[s.len / 2];
  }
  return sketch_fold(x, y);
}
/* As in Rust's Hash: strings end with the byte 0xff, binary values include their length. */
FN u64 sketch_string(str s) { return sketch_finish(sketch_bytes(s), 0xff, 0); }
FN u64 sketch_binary(str s) { return sketch_finish(sketch_bytes(s), s.len, 0); }
/* A short string lies within its 16-byte view, which is hashed. */
FN u64 sketch_view(str s) {
  if (s.len > 12) return sketch_binary(s);
  u64 lo = s.len, hi = 0;
  for (u32 i = 0; i < s.len; ++i) {
    if (i < 4) lo |= (u64)s.p[i] << (32 + 8 * i);
    else hi |= (u64)s.p[i] << (8 * i - 32);
  }
  return sketch_hash(lo, hi);
}
/* The register of a hash, and its rank: 1 to 51. */
#define SKETCH_REGISTER(hash) ((u16)((hash) & 16383))
FN u8 sketch_rank(u64 hash) {
  u64 rest = hash >> 14 | (u64)1 << 50;
  return (u8)(64 - CLZ64(rest & ((u64)0 - rest)));
}
/* The estimated number of distinct values (Ertl, "New cardinality estimation algorithms for
   HyperLogLog sketches"), rounded as in DataFusion. Word i counts the registers of ranks 4 i to 4 i
   + 3, in 16 bits each. */
FN u64 sketch_count(u64 w0, u64 w1, u64 w2, u64 w3, u64 w4, u64 w5, u64 w6, u64 w7, u64 w8, u64 w9, u64 w10, u64 w11, u64 w12) {
  u64 words[13] = {w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12};
  f64 m = 16384.0, z = 0.0, x, y, sum, before;
  u32 empty = 16384;
  for (u32 rank = 1; rank <= 51; ++rank) empty -= (u32)(words[rank >> 2] >> 16 * (rank & 3)) & 0xffff;
  if (empty == 16384) return 0;
  x = (m - (f64)(words[12] >> 48)) / m;
  if (x != 0.0 && x != 1.0) {
    y = 1.0;
    sum = 1.0 - x;
    do {
      x = sqrt(x);
      before = sum;
      y *= 0.5;
      sum -= (1.0 - x) * (1.0 - x) * y;
    } while (before != sum);
    z = m * (sum / 3.0);
  }
  for (u32 rank = 50; rank; --rank) {
    z += (f64)((words[rank >> 2] >> 16 * (rank & 3)) & 0xffff);
    z *= 0.5;
  }
  x = (f64)empty / m;
  y = 1.0;
  sum = x;
  do {
    x *= x;
    before = sum;
    sum += x * y;
    y += y;
  } while (before != sum);
  z += m * sum;
  /* 0.5 / ln 2. Many registers of the highest rank may exceed 2^64. */
  x = round(0.7213475204444817 * m * m / z);
  return x < 18446744073709551616.0 ? (u64)x : ~(u64)0;
}
