// SPDX-License-Identifier: Apache-2.0
// CUDA C++ for the host's compiler: stands before the text of each emulated kernel.
//
// - A block's threads are fibers on one thread of the host. They switch at barriers and at warp
//   operations, which `grid.c` decides.
// - Shared memory is a section of the library. The emulator fills it before each block.
// - No header of the system is included: kernel texts declare names such as `select`.
typedef __SIZE_TYPE__ size_t;

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("emulated_shared")))

#include "emulated.h"

extern "C" {
__attribute__((visibility("default"))) Emulated emulated;
extern char __start_emulated_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_emulated_shared[] __attribute__((weak, visibility("hidden")));
__attribute__((visibility("default"))) char *emulated_bounds[2] = {__start_emulated_shared, __stop_emulated_shared};
double fma(double, double, double);
double floor(double);
double ceil(double);
double trunc(double);
double round(double);
double rint(double);
double sqrt(double);
double fabs(double);
double fmod(double, double);
double acos(double);
double acosh(double);
double asin(double);
double asinh(double);
double atan(double);
double atan2(double, double);
double atanh(double);
double cbrt(double);
double cos(double);
double cosh(double);
double sin(double);
double sinh(double);
double tan(double);
double tanh(double);
float fmodf(float, float);
float sqrtf(float);
float fabsf(float);
}
// clang calls these before each load and store.
#ifdef EMULATED_COUNT
#define EMULATED_ACCESS(name, bytes, is_store) \
  extern "C" __attribute__((visibility("hidden"), noinline, no_sanitize("coverage"))) void __sanitizer_cov_##name##bytes(void *at) { \
    emulated.access(at, bytes, is_store, __builtin_return_address(0)); \
  }
EMULATED_ACCESS(load, 1, 0)
EMULATED_ACCESS(load, 2, 0)
EMULATED_ACCESS(load, 4, 0)
EMULATED_ACCESS(load, 8, 0)
EMULATED_ACCESS(load, 16, 0)
EMULATED_ACCESS(store, 1, 1)
EMULATED_ACCESS(store, 2, 1)
EMULATED_ACCESS(store, 4, 1)
EMULATED_ACCESS(store, 8, 1)
EMULATED_ACCESS(store, 16, 1)
#define EMULATED_ATOMIC(at) emulated.atomic((const void *)(at), sizeof *(at));
#else
#define EMULATED_ATOMIC(at)
#endif
#define threadIdx emulated.thread
#define blockIdx emulated.block
#define blockDim emulated.threads
#define gridDim emulated.blocks

#define EMULATED_FN static inline __attribute__((always_inline, unused))
// The place of a call decides which lanes of a warp are together, so no compiler may copy it into
// branches.
#ifdef __clang__
#define EMULATED_CALL static __attribute__((noinline, unused, convergent))
#else
#define EMULATED_CALL static __attribute__((noinline, noclone, unused))
#endif
EMULATED_CALL void __syncthreads(void) { emulated.sync(); }
EMULATED_CALL unsigned __ballot_sync(unsigned mask, int vote) {
  return emulated.ballot(mask, vote != 0, __builtin_return_address(0));
}
EMULATED_CALL unsigned __activemask(void) { return emulated.active(__builtin_return_address(0)); }
EMULATED_CALL unsigned long long emulated_shuffle(unsigned mask, unsigned long long value, unsigned from) {
  return emulated.shuffle(mask, value, from, __builtin_return_address(0));
}
EMULATED_FN void __threadfence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
template <class T> EMULATED_FN T __shfl_sync(unsigned mask, T value, int from) {
  static_assert(sizeof(T) <= 8, "a lane's value has at most eight bytes");
  unsigned long long word = 0;
  __builtin_memcpy(&word, &value, sizeof value);
  word = emulated_shuffle(mask, word, (unsigned)from);
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
}

template <class T> EMULATED_FN T atomicAdd(T *p, T v) { EMULATED_ATOMIC(p) return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
template <class T> EMULATED_FN T atomicOr(T *p, T v) { EMULATED_ATOMIC(p) return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }
template <class T> EMULATED_FN T atomicAnd(T *p, T v) { EMULATED_ATOMIC(p) return __atomic_fetch_and(p, v, __ATOMIC_RELAXED); }
template <class T> EMULATED_FN T atomicXor(T *p, T v) { EMULATED_ATOMIC(p) return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED); }
// A lane that spins lets others run.
template <class T> EMULATED_FN T atomicExch(T *p, T v) {
  EMULATED_ATOMIC(p)
  emulated.contend();
  return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL);
}
template <class T> EMULATED_FN T atomicCAS(T *p, T expected, T v) {
  EMULATED_ATOMIC(p)
  emulated.contend();
  __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  return expected;
}
template <class T> EMULATED_FN T atomicMin(T *p, T v) {
  EMULATED_ATOMIC(p)
  T seen = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (v < seen && !__atomic_compare_exchange_n(p, &seen, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return seen;
}
template <class T> EMULATED_FN T atomicMax(T *p, T v) {
  EMULATED_ATOMIC(p)
  T seen = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (v > seen && !__atomic_compare_exchange_n(p, &seen, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return seen;
}
EMULATED_FN double atomicAdd(double *p, double v) {
  EMULATED_ATOMIC(p)
  unsigned long long *word = (unsigned long long *)p, seen = __atomic_load_n(word, __ATOMIC_RELAXED), sum;
  double old, added;
  do {
    __builtin_memcpy(&old, &seen, 8);
    added = old + v;
    __builtin_memcpy(&sum, &added, 8);
  } while (!__atomic_compare_exchange_n(word, &seen, sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}

EMULATED_FN int __ffs(int x) { return __builtin_ffs(x); }
EMULATED_FN int __popc(unsigned x) { return __builtin_popcount(x); }
// 64 for 0, as on the device.
EMULATED_FN int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
EMULATED_FN unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
template <class To, class From> EMULATED_FN To emulated_bits(From from) {
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
EMULATED_FN long long __double_as_longlong(double x) { return emulated_bits<long long>(x); }
EMULATED_FN double __longlong_as_double(long long x) { return emulated_bits<double>(x); }
EMULATED_FN int __float_as_int(float x) { return emulated_bits<int>(x); }
EMULATED_FN float __int_as_float(int x) { return emulated_bits<float>(x); }
EMULATED_FN double __dadd_rn(double a, double b) { return a + b; }
EMULATED_FN double __dsub_rn(double a, double b) { return a - b; }
EMULATED_FN double __dmul_rn(double a, double b) { return a * b; }
EMULATED_FN double __ddiv_rn(double a, double b) { return a / b; }
EMULATED_FN double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
EMULATED_FN float __fadd_rn(float a, float b) { return a + b; }
EMULATED_FN float __fsub_rn(float a, float b) { return a - b; }
EMULATED_FN float __fmul_rn(float a, float b) { return a * b; }
EMULATED_FN float __fdiv_rn(float a, float b) { return a / b; }

// How `grid.c` calls a kernel: by the addresses of its arguments, whose sizes it asks for.
template <unsigned... I> struct EmulatedIndexes {};
template <unsigned N, unsigned... I> struct EmulatedCount : EmulatedCount<N - 1, N - 1, I...> {};
template <unsigned... I> struct EmulatedCount<0, I...> { typedef EmulatedIndexes<I...> Indexes; };
template <class... A> struct EmulatedCall {
  template <unsigned... I> static void run(void (*kernel)(A...), void **args, EmulatedIndexes<I...>) {
    kernel(*(A *)args[I]...);
  }
  static void run(void (*kernel)(A...), void **args) { run(kernel, args, typename EmulatedCount<sizeof...(A)>::Indexes()); }
  __attribute__((no_sanitize("coverage"))) static unsigned size(unsigned index) {
    const unsigned sizes[] = {(unsigned)sizeof(A)..., 0};
    return index < sizeof...(A) ? sizes[index] : 0;
  }
};
template <class... A> EmulatedCall<A...> emulated_call(void (*)(A...));
#define EMULATED_KERNEL(name, bound) \
  extern "C" __attribute__((visibility("default"))) unsigned emulated_bound_##name = bound; \
  extern "C" __attribute__((visibility("default"))) void emulated_run_##name(void **args) { decltype(emulated_call(&name))::run(&name, args); } \
  extern "C" __attribute__((visibility("default"))) __attribute__((no_sanitize("coverage"))) unsigned emulated_size_##name(unsigned index) { return decltype(emulated_call(&name))::size(index); }
// Macros that NVRTC defines.
#define __CUDACC_RTC__ 1
#define __CUDA_ARCH__ 900
