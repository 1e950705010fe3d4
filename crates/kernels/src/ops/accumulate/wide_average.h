/* AVG of decimals of 256 bits, as decimal_average. */
FN i32 wide_average(i256 sum, u64 scale, u64 count, i256 limit, i256 *out) {
  i256 factor = i256_of_u64(scale);
  if (i256_mul_over(sum, factor)) return 1;
  *out = i256_div(i256_mul(sum, factor), i256_of_u64(count));
  return !(i256_lt(*out, limit) & i256_lt(i256_neg(limit), *out));
}
