/* Functions of floats whose last digits depend on the math library. NaN gives the same NaN, made
   quiet. f32 functions compute in f64. */
#define INEXACT1(name, c) \
  FN f64 f64_##name(f64 a) { f64 r = c; return r != r ? BITS_F64(f64_nan_of(a, a)) : r; } \
  FN f32 f32_##name(f32 b) { f64 a = (f64)b; f64 r = c; return r != r ? BITS_F32(f32_nan_of(b, b)) : (f32)r; }
#define INEXACT2(name, c) \
  FN f64 f64_##name(f64 a, f64 b) { f64 r = c; return r != r ? BITS_F64(f64_nan_of(a, b)) : r; } \
  FN f32 f32_##name(f32 d, f32 e) { f64 a = (f64)d, b = (f64)e; f64 r = c; return r != r ? BITS_F32(f32_nan_of(d, e)) : (f32)r; }
INEXACT1(acos, acos(a))
INEXACT1(acosh, acosh(a))
INEXACT1(asin, asin(a))
INEXACT1(asinh, asinh(a))
INEXACT1(atan, atan(a))
INEXACT1(atanh, atanh(a))
INEXACT1(cbrt, cbrt(a))
INEXACT1(cos, cos(a))
INEXACT1(cosh, cosh(a))
INEXACT1(cot, 1.0 / tan(a))
INEXACT1(sin, sin(a))
INEXACT1(sinh, sinh(a))
INEXACT1(tan, tan(a))
INEXACT1(tanh, tanh(a))
INEXACT2(atan2, atan2(a, b))
