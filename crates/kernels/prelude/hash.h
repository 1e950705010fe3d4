/* Mixes 64 bits to a hash all of whose bits depend on all of them (the finaliser of MurmurHash3). */
FN u64 hash64(u64 x) {
  x ^= x >> 33;
  x *= (u64)0xff51afd7ed558ccdUL;
  x ^= x >> 33;
  x *= (u64)0xc4ceb9fe1a85ec53UL;
  return x ^ (x >> 33);
}
