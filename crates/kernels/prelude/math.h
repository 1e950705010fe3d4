/* Exact functions of floats. NaN gives the same NaN, made quiet. f32 results are exact in f64. */
#define F64_EXACT(name, c) \
  FN f64 f64_##name(f64 a) { return a != a ? BITS_F64(f64_nan_of(a, a)) : c(a); } \
  FN f32 f32_##name(f32 a) { return a != a ? BITS_F32(f32_nan_of(a, a)) : (f32)c((f64)a); }
F64_EXACT(floor, floor)
F64_EXACT(ceil, ceil)
F64_EXACT(trunc, trunc)
F64_EXACT(round, round)
F64_EXACT(sqrt, sqrt)
FN f64 f64_abs(f64 a) { return BITS_F64(F64_BITS(a) & (u64)0x7fffffffffffffffUL); }
FN f32 f32_abs(f32 a) { return BITS_F32(F32_BITS(a) & 0x7fffffffu); }
/* 0.0 for both zeros, the default NaN for every NaN. */
FN f64 f64_signum(f64 a) { return a != a ? BITS_F64((u64)0x7ff8000000000000UL) : a == 0 ? 0.0 : a < 0 ? -1.0 : 1.0; }
FN f32 f32_signum(f32 a) { return a != a ? BITS_F32(0x7fc00000u) : (f32)(a == 0 ? 0.0 : a < 0 ? -1.0 : 1.0); }
/* Truncation; both zeros give 0.0. */
FN f64 f64_whole(f64 a) { return a == 0 ? 0.0 : f64_trunc(a); }
FN f32 f32_whole(f32 a) { return a == 0 ? (f32)0.0 : f32_trunc(a); }
