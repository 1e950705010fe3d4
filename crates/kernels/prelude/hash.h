/* Hash of 64 bits: the finalizer of MurmurHash3. */
FN u64 hash64(u64 x) {
  x ^= x >> 33;
  x *= (u64)0xff51afd7ed558ccdUL;
  x ^= x >> 33;
  x *= (u64)0xc4ceb9fe1a85ec53UL;
  return x ^ (x >> 33);
}

/* The word of a hash in a Bloom filter of `words` words, fewer than 2^32. */
FN u64 bloom_word(u64 hash, u64 words) { return (hash >> 32) * words >> 32; }

/* Four bits of the word, from other bits of the hash. */
FN u64 bloom_bits(u64 hash) {
  return (u64)1 << (hash & 63) | (u64)1 << (hash >> 6 & 63) | (u64)1 << (hash >> 12 & 63) | (u64)1 << (hash >> 18 & 63);
}
