/* Operations of the functions exp, ln, log2, log10 and power: each is rounded once, without
   contraction. Unlike f64_add, they do not define the bits of NaNs, which the functions exclude. */
FN f64 f64_fma(f64 a, f64 b, f64 c) { return F64_FMA_RN(a, b, c); }
FN f64 f64_plus(f64 a, f64 b) { return F64_ADD_RN(a, b); }
FN f64 f64_minus(f64 a, f64 b) { return F64_SUB_RN(a, b); }
FN f64 f64_times(f64 a, f64 b) { return F64_MUL_RN(a, b); }
#define F64_INF BITS_F64((u64)0x7ff0000000000000UL)
#define F32_INF BITS_F32(0x7f800000u)
/* Logarithms of zeros, infinities, negative numbers and NaNs: -inf of 0, inf of inf, else NaN. */
FN f64 f64_log_edge(f64 a) { return a == 0 ? -F64_INF : a > 0 ? a : BITS_F64(f64_nan_of(a, a)); }
FN f32 f32_log_edge(f32 a) { return a == 0 ? -F32_INF : a > 0 ? a : BITS_F32(f32_nan_of(a, a)); }
/* A positive number as 2^exponent * part, with part in [low, 2 low). `index`: the bits of the part
   above those of low, to index a table. */
typedef struct { f64 exponent, part; u64 index; } f64_parts;
FN f64_parts f64_parted(f64 a, u64 low) {
  u64 bits = F64_BITS(a), below;
  f64_parts r;
  if (bits >> 52 == 0) bits = F64_BITS(f64_times(a, 0x1p52)) - ((u64)52 << 52);
  below = bits - low;
  r.exponent = (f64)((i64)below >> 52);
  r.part = BITS_F64(bits - (below & (u64)0xfff0000000000000UL));
  r.index = below & (u64)0x000fffffffffffffUL;
  return r;
}
