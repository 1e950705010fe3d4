/* Functions of integers. */
FN u64 u64_abs(i64 a) { return a < 0 ? (u64)0 - (u64)a : (u64)a; }
COLD_FN u64 u64_gcd(u64 a, u64 b) {
  while (b) {
    u64 rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}
/* All bits set if the result exceeds 64 bits. */
COLD_FN u64 u64_lcm(u64 a, u64 b) {
  if (a == 0 || b == 0) return 0;
  a /= u64_gcd(a, b);
  return MULHI64(a, b) ? ~(u64)0 : a * b;
}
COLD_FN i64 i64_factorial(i64 n) {
  i64 product = 1;
  for (i64 k = 2; k <= n && k <= 20; ++k) product *= k;
  return product;
}
