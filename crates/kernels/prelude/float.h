/* Floats: IEEE 754 operations without contraction, NaNs as on x86, and sort keys. */
FN u64 f64_nan_of(f64 a, f64 b) {
  const u64 quiet = (u64)0x0008000000000000UL;
  return a != a ? F64_BITS(a) | quiet : b != b ? F64_BITS(b) | quiet : (u64)0xfff8000000000000UL;
}
FN u32 f32_nan_of(f32 a, f32 b) {
  return a != a ? F32_BITS(a) | 0x00400000u : b != b ? F32_BITS(b) | 0x00400000u : 0xffc00000u;
}
/* The bits of a computed NaN are those of SSE: the first NaN operand, made quiet, else the negative
   default NaN. Other processors get the bits from f64_nan_of and f32_nan_of. */
#ifdef SSE_NANS
#define F64_NAN(r, a, b) (r)
#define F32_NAN(r, a, b) (r)
#else
#define F64_NAN(r, a, b) ((r) != (r) ? BITS_F64(f64_nan_of((a), (b))) : (r))
#define F32_NAN(r, a, b) ((r) != (r) ? BITS_F32(f32_nan_of((a), (b))) : (r))
#endif
FN f64 f64_add(f64 a, f64 b) { f64 r = F64_ADD_RN(a, b); return F64_NAN(r, a, b); }
FN f64 f64_sub(f64 a, f64 b) { f64 r = F64_SUB_RN(a, b); return F64_NAN(r, a, b); }
FN f64 f64_mul(f64 a, f64 b) { f64 r = F64_MUL_RN(a, b); return F64_NAN(r, a, b); }
FN f64 f64_div(f64 a, f64 b) { f64 r = F64_DIV_RN(a, b); return F64_NAN(r, a, b); }
FN f32 f32_add(f32 a, f32 b) { f32 r = F32_ADD_RN(a, b); return F32_NAN(r, a, b); }
FN f32 f32_sub(f32 a, f32 b) { f32 r = F32_SUB_RN(a, b); return F32_NAN(r, a, b); }
FN f32 f32_mul(f32 a, f32 b) { f32 r = F32_MUL_RN(a, b); return F32_NAN(r, a, b); }
FN f32 f32_div(f32 a, f32 b) { f32 r = F32_DIV_RN(a, b); return F32_NAN(r, a, b); }
FN f64 f64_neg(f64 a) { return BITS_F64(F64_BITS(a) ^ (u64)0x8000000000000000UL); }
FN f32 f32_neg(f32 a) { return BITS_F32(F32_BITS(a) ^ 0x80000000u); }
/* Folds -0.0 to 0.0; other bits stay the same. */
FN f64 f64_fold(f64 a) { return BITS_F64(F64_BITS(a) == (u64)0x8000000000000000UL ? (u64)0 : F64_BITS(a)); }
FN f32 f32_fold(f32 a) { return BITS_F32(F32_BITS(a) == 0x80000000u ? 0u : F32_BITS(a)); }
/* Sort keys: integers in IEEE 754's totalOrder, and their inverses. */
FN i64 f64_key(f64 a) { i64 b = (i64)F64_BITS(a); return b ^ (i64)((u64)(b >> 63) >> 1); }
FN i32 f32_key(f32 a) { i32 b = (i32)F32_BITS(a); return b ^ (i32)((u32)(b >> 31) >> 1); }
FN f64 f64_unkey(i64 k) { return BITS_F64(k ^ (i64)((u64)(k >> 63) >> 1)); }
FN f32 f32_unkey(i32 k) { return BITS_F32(k ^ (i32)((u32)(k >> 31) >> 1)); }
