/* Remainder of floats with the sign of the dividend, as C's fmod. */
FN f64 f64_rem(f64 a, f64 b) { f64 r = fmod(a, b); return r != r ? BITS_F64(f64_nan_of(a, b)) : r; }
FN f32 f32_rem(f32 a, f32 b) { f32 r = F32_FMOD(a, b); return r != r ? BITS_F32(f32_nan_of(a, b)) : r; }
