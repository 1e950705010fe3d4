/* log10, in the operations of glibc. The source is Sun's fdlibm (e_log10.c). Method: log10(2^k * z)
   = k log10 2 + ln z / ln 10. z is at least 1 for k >= 0, below 1 for k < 0. */
FN f64 f64_log10_of(f64 x) {
  /* Numbers below 1 have z in [1/2, 1). */
  f64_parts of = f64_parted(x, (u64)(x < 1 ? 0x3fe0000000000000UL : 0x3ff0000000000000UL));
  f64 y = f64_plus(f64_times(of.exponent, 0x1.9fef311f12b36p-42), f64_times(0x1.bcb7b1526e50ep-2, f64_ln_of(of.part)));
  return f64_plus(y, f64_times(of.exponent, 0x1.34413509f6p-2));
}
/* Negative numbers give a NaN with a clear sign bit. */
FN f64 f64_log10(f64 a) {
  return a < 0 ? BITS_F64((u64)0x7ff8000000000000UL) : a > 0 && a < F64_INF ? f64_log10_of(a) : f64_log_edge(a);
}
FN f32 f32_log10_of(f32 x) {
  f64_parts of = f64_parted((f64)x, (u64)(x < 1 ? 0x3fe0000000000000UL : 0x3ff0000000000000UL));
  f32 k = (f32)of.exponent;
  f32 y = f32_add(f32_mul(k, 0x1.a84fb6p-21f), f32_mul(0x1.bcb7b2p-2f, f32_ln_of((f32)of.part)));
  return f32_add(y, f32_mul(k, 0x1.3441p-2f));
}
FN f32 f32_log10(f32 a) {
  return a < 0 ? BITS_F32(0x7fc00000u) : a > 0 && a < F32_INF ? f32_log10_of(a) : f32_log_edge(a);
}
