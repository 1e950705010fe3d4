/* Declarations of the OpenCL functions that kernels call, for PoCL. They replace PoCL's own header,
   whose parsing takes longer than the compilation of the rest. */
#ifdef BUILTINS_UNDECLARED
#define BUILTIN __attribute__((overloadable))
#define VALUE __attribute__((overloadable, const))
#define LOADED __attribute__((overloadable, pure))
size_t VALUE get_global_id(uint);
size_t VALUE get_global_size(uint);
size_t VALUE get_local_id(uint);
size_t VALUE get_local_size(uint);
size_t VALUE get_group_id(uint);
size_t VALUE get_num_groups(uint);
void BUILTIN __attribute__((convergent)) barrier(cl_mem_fence_flags);
#define ATOMIC(name, T, space) T BUILTIN name(volatile space T *, T);
#define ATOMICS(name32, name64, space) \
  ATOMIC(name32, int, space) ATOMIC(name32, uint, space) ATOMIC(name64, long, space) ATOMIC(name64, ulong, space)
#define ATOMIC_CAS(name, T, space) T BUILTIN name(volatile space T *, T, T);
#define ATOMICS_OF(space) \
  ATOMICS(atomic_add, atom_add, space) \
  ATOMICS(atomic_xchg, atom_xchg, space) \
  ATOMICS(atomic_min, atom_min, space) \
  ATOMICS(atomic_max, atom_max, space) \
  ATOMICS(atomic_or, atom_or, space) \
  ATOMICS(atomic_and, atom_and, space) \
  ATOMICS(atomic_xor, atom_xor, space) \
  ATOMIC_CAS(atomic_cmpxchg, int, space) ATOMIC_CAS(atomic_cmpxchg, uint, space) \
  ATOMIC_CAS(atom_cmpxchg, long, space) ATOMIC_CAS(atom_cmpxchg, ulong, space)
ATOMICS_OF(__global)
ATOMICS_OF(__local)
ulong VALUE mul_hi(ulong, ulong);
uint VALUE mul_hi(uint, uint);
ulong VALUE clz(ulong);
uint VALUE clz(uint);
ulong VALUE popcount(ulong);
uint VALUE popcount(uint);
int VALUE any(char16);
int VALUE any(long16);
/* Both overloads are needed: with one of them, arguments of the other type would be converted. */
#define OF_FLOATS(name) double VALUE name(double); float VALUE name(float);
OF_FLOATS(acos)
OF_FLOATS(acosh)
OF_FLOATS(asin)
OF_FLOATS(asinh)
OF_FLOATS(atan)
OF_FLOATS(atanh)
OF_FLOATS(cbrt)
OF_FLOATS(ceil)
OF_FLOATS(cos)
OF_FLOATS(cosh)
OF_FLOATS(floor)
OF_FLOATS(round)
OF_FLOATS(sin)
OF_FLOATS(sinh)
OF_FLOATS(sqrt)
OF_FLOATS(tan)
OF_FLOATS(tanh)
OF_FLOATS(trunc)
double VALUE atan2(double, double);
float VALUE atan2(float, float);
double VALUE fmod(double, double);
float VALUE fmod(float, float);
double VALUE fma(double, double, double);
float VALUE fma(float, float, float);
uchar8 LOADED vload8(size_t, const __global uchar *);
uchar16 LOADED vload16(size_t, const __global uchar *);
ulong16 LOADED vload16(size_t, const __global ulong *);
#undef BUILTIN
#undef VALUE
#undef LOADED
#undef ATOMIC
#undef ATOMICS
#undef ATOMIC_CAS
#undef ATOMICS_OF
#undef OF_FLOATS
#endif
