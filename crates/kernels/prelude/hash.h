/* Mixes 64 bits to a hash all of whose bits depend on all of them (the finaliser of MurmurHash3). */
FN u64 hash64(u64 x) {
  x ^= x >> 33;
  x *= (u64)0xff51afd7ed558ccdUL;
  x ^= x >> 33;
  x *= (u64)0xc4ceb9fe1a85ec53UL;
  return x ^ (x >> 33);
}

/* Where a Bloom filter of so many words, less than 2^32, keeps the bits of a hash. */
FN u64 bloom_word(u64 hash, u64 words) { return (hash >> 32) * words >> 32; }

/* Four bits, by other bits of the hash than those that tell the word. */
FN u64 bloom_bits(u64 hash) {
  return (u64)1 << (hash & 63) | (u64)1 << (hash >> 6 & 63) | (u64)1 << (hash >> 12 & 63) | (u64)1 << (hash >> 18 & 63);
}
