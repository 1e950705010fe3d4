/* The dialect: one section for each driver's compiler. Everything driver-dependent is defined here.
   docs/drivers.md describes a new section. Each section defines:
   - i8 to u64, f32, f64: the types.
   - KERNEL, FN: a kernel, and an inlined helper.
   - COLD_FN, ROLLED: a long helper with several callers, and its loops. Neither is expanded, since
     compile time counts.
   - G, L: qualifiers of pointers to global and to shared (OpenCL: local) memory.
   - RESTRICT: of a pointer whose memory has no other name.
   - SHARED, TABLE: an array in shared memory, and a constant array outside of functions.
   - SYNC, SYNC_ALL: a barrier of the work-group, for shared memory and for all memory.
   - GID to NGRP: indices and sizes of the grid.
   - LEAVE_DRY_LAUNCH: returns from a kernel whose grid has a second dimension, in a launch
     for drivers to make machine code.
   - PREFETCH, MULHI64, CLZ64, POPC32, F64_BITS to BITS_F32: small operations.
   - FORGET: makes a u64 unknown to the compiler, so that what was loaded by it is loaded again.
   - A_*: atomics. A_ADD_F64 is defined only where the device has it. A_NEXT64 adds 1. A_LOAD64 and
     A_STORE64 are for what other work-groups write and read in the same launch. A_CARRY64_L adds in
     shared memory and gives the carry: CUDA has no native sums of 64 bits there.
   - UNROLL: before a loop of a constant number of turns that is written out.
   - WARP_WIDTH: work-items of a warp; 1 without warp operations. BALLOT: the warp's vote.
   - *_RN: float operations that round once and are never contracted. F32_FMOD is C's fmodf.
   - LOAD64: eight bytes from any address.
   - BYTE_WORDS: 1 to compare bytes by aligned words of 64 bits, 0 by vectors. Vectors have
     MATCHES_16: `bits` tell of 16 offsets whether `p` has byte `a`, `q` has `b` and `r` has `c`
     there. ANY_MATCH_64: whether they have at one of 64 offsets. Bits of `a >> 8`, `b >> 8` and
     `c >> 8` are ignored, and set in the byte.
   - words16, LOAD_WORDS16: 1024 bits; bit `i` is bit `i / 16` of word `i % 16`. ADVANCE16 keeps
     those that `row` has, moves them up by one, and adds those of `start` and `carry` as the
     lowest. Then `carry` is the bit that moved out. DIFFERS16: whether bits differ from `start`.
   GROUP_ITEMS is the work-group size, if it is fixed: CUDA divides the registers by it. */
#if defined(__OPENCL_VERSION__) || defined(__OPENCL_C_VERSION__)
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable
#pragma OPENCL FP_CONTRACT OFF
typedef char i8; typedef uchar u8; typedef short i16; typedef ushort u16;
typedef int i32; typedef uint u32; typedef long i64; typedef ulong u64; typedef float f32; typedef double f64;
#define KERNEL __kernel
#define FN static inline
#define COLD_FN static __attribute__((noinline))
#define ROLLED
#define G __global
#define L __local
#define RESTRICT restrict
#define SHARED(T, name, n) __local T name[n]
#define TABLE(T, name, n) __constant T name[n]
#define SYNC() barrier(CLK_LOCAL_MEM_FENCE)
#define SYNC_ALL() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define GID() ((u64)get_global_id(0))
#define GSZ() ((u64)get_global_size(0))
#define LID() ((u32)get_local_id(0))
#define LSZ() ((u32)get_local_size(0))
#define GRP() ((u32)get_group_id(0))
#define NGRP() ((u32)get_num_groups(0))
#define LEAVE_DRY_LAUNCH() if (get_num_groups(1) != 1) return
#define A_ADD32(p, v) atomic_add((p), (v))
#define A_XCHG32(p, v) atomic_xchg((p), (v))
#define A_CAS32(p, c, v) atomic_cmpxchg((p), (c), (v))
#define A_MIN32(p, v) atomic_min((p), (v))
#define A_MAX32(p, v) atomic_max((p), (v))
#define A_OR32(p, v) atomic_or((p), (v))
#define A_AND32(p, v) atomic_and((p), (v))
#define A_ADD64(p, v) atom_add((p), (v))
#define A_NEXT64(p) atom_add((p), (u64)1)
#define A_XCHG64(p, v) atom_xchg((p), (v))
#define A_CAS64(p, c, v) atom_cmpxchg((p), (c), (v))
#define A_MIN64(p, v) atom_min((p), (v))
#define A_MAX64(p, v) atom_max((p), (v))
#define A_OR64(p, v) atom_or((p), (v))
#define A_AND64(p, v) atom_and((p), (v))
#define A_XOR64(p, v) atom_xor((p), (v))
#define A_LOAD64(p) atom_or((p), (u64)0)
#define A_STORE64(p, v) atom_xchg((p), (v))
#define A_CARRY64_L(p, v) (atom_add((p), (v)) + (v) < (v))
#define UNROLL
#define WARP_WIDTH 1
#ifdef POCL_DEVICE_ADDRESS_BITS
/* PoCL's own prefetch has no effect. */
#define PREFETCH(p) __builtin_prefetch((const void *)(size_t)(p))
#else
#define PREFETCH(p) prefetch((const __global ulong *)(p), (size_t)1)
#endif
#define FORGET(x) ((void)0)
#define MULHI64(a, b) mul_hi((u64)(a), (u64)(b))
#define CLZ64(a) ((u32)clz((u64)(a)))
#define POPC32(a) popcount((u32)(a))
#define F64_BITS(x) as_ulong(x)
#define F32_BITS(x) as_uint(x)
#define BITS_F64(x) as_double((u64)(x))
#define BITS_F32(x) as_float((u32)(x))
#define F64_ADD_RN(a, b) ((a) + (b))
#define F64_SUB_RN(a, b) ((a) - (b))
#define F64_MUL_RN(a, b) ((a) * (b))
#define F64_DIV_RN(a, b) ((a) / (b))
#define F64_FMA_RN(a, b, c) fma((a), (b), (c))
#define F32_ADD_RN(a, b) ((a) + (b))
#define F32_SUB_RN(a, b) ((a) - (b))
#define F32_MUL_RN(a, b) ((a) * (b))
#define F32_FMOD(a, b) fmod((a), (b))
#ifdef __x86_64__
/* SSE computes NaNs as the host does. */
#define SSE_NANS
#define F32_DIV_RN(a, b) ((a) / (b))
#else
/* OpenCL allows 2.5 ulp for f32 division; the quotient in f64 rounds to the right f32. */
#define F32_DIV_RN(a, b) ((f32)((f64)(a) / (f64)(b)))
#endif
#define LOAD64(p) as_ulong(vload8(0, (p)))
#define BYTE_WORDS 0
#define BYTES_ARE(p, a) ((vload16(0, (p)) | (uchar16)(u8)((a) >> 8)) == (uchar16)(u8)(a))
#define ARE_MATCHES(p, a, q, b, r, c) (BYTES_ARE(p, a) & BYTES_ARE(q, b) & BYTES_ARE(r, c))
#define MATCHES_32(p, a, q, b, r, c) (ARE_MATCHES(p, a, q, b, r, c) | ARE_MATCHES((p) + 16, a, (q) + 16, b, (r) + 16, c))
#define ANY_MATCH_64(p, a, q, b, r, c) any(MATCHES_32(p, a, q, b, r, c) | MATCHES_32((p) + 32, a, (q) + 32, b, (r) + 32, c))
#define MATCHES_16(bits, p, a, q, b, r, c) { \
  ulong2 matches = as_ulong2(ARE_MATCHES(p, a, q, b, r, c)); \
  bits = 0; \
  if (matches.s0 | matches.s1) bits = HIGH_BITS(matches.s0) | HIGH_BITS(matches.s1) << 8; \
}
typedef ulong16 words16;
#define LOAD_WORDS16(p) vload16(0, (p))
#define ADVANCE16(state, row, start, carry) { \
  words16 kept = state & vload16(0, (row)), moved = kept.sf0123456789abcde << LOWEST(1); \
  state = moved | vload16(0, (start)) | LOWEST(carry); \
  carry = kept.sf >> 63; \
}
#define DIFFERS16(state, start) any(state != vload16(0, (start)))
#define LOWEST(word) (words16)(word, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__)
typedef signed char i8; typedef unsigned char u8; typedef short i16; typedef unsigned short u16;
typedef int i32; typedef unsigned int u32; typedef long long i64; typedef unsigned long long u64; typedef float f32; typedef double f64;
#ifdef GROUP_ITEMS
#define KERNEL extern "C" __global__ __launch_bounds__(GROUP_ITEMS, 1)
#else
#define KERNEL extern "C" __global__
#endif
#define FN static __device__ __forceinline__
#define COLD_FN static __device__ __noinline__
#define ROLLED _Pragma("unroll 1")
#define G
#define L
#define RESTRICT __restrict__
#define SHARED(T, name, n) __shared__ T name[n]
#define TABLE(T, name, n) static __device__ const T name[n]
#define SYNC() __syncthreads()
#define SYNC_ALL() __syncthreads()
#define GID() ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define GSZ() ((u64)gridDim.x * blockDim.x)
#define LID() ((u32)threadIdx.x)
#define LSZ() ((u32)blockDim.x)
#define GRP() ((u32)blockIdx.x)
#define NGRP() ((u32)gridDim.x)
#define PREFETCH(p) ((void)(p))
#define LEAVE_DRY_LAUNCH() ((void)0)
#define A_ADD32(p, v) atomicAdd((u32 *)(p), (u32)(v))
#define A_XCHG32(p, v) atomicExch((u32 *)(p), (u32)(v))
#define A_CAS32(p, c, v) atomicCAS((u32 *)(p), (u32)(c), (u32)(v))
#define A_MIN32(p, v) atomicMin((u32 *)(p), (u32)(v))
#define A_MAX32(p, v) atomicMax((u32 *)(p), (u32)(v))
#define A_OR32(p, v) atomicOr((u32 *)(p), (u32)(v))
#define A_AND32(p, v) atomicAnd((u32 *)(p), (u32)(v))
#define A_ADD64(p, v) atomicAdd((u64 *)(p), (u64)(v))
#define A_XCHG64(p, v) atomicExch((u64 *)(p), (u64)(v))
#define A_CAS64(p, c, v) atomicCAS((u64 *)(p), (u64)(c), (u64)(v))
#define A_MIN64(p, v) atomicMin((u64 *)(p), (u64)(v))
#define A_MAX64(p, v) atomicMax((u64 *)(p), (u64)(v))
#define A_OR64(p, v) atomicOr((u64 *)(p), (u64)(v))
#define A_AND64(p, v) atomicAnd((u64 *)(p), (u64)(v))
#define A_XOR64(p, v) atomicXor((u64 *)(p), (u64)(v))
#define A_LOAD64(p) (*(volatile u64 *)(p))
#define A_STORE64(p, v) (*(volatile u64 *)(p) = (v))
#define A_CARRY64_L(p, v) add_carry64((volatile u32 *)(p), (v))
#define A_ADD_F64(p, v) atomicAdd((f64 *)(p), (v))
#define UNROLL _Pragma("unroll")
#define WARP_WIDTH 32
#define BALLOT(keep) __ballot_sync(0xffffffffu, (keep))
#define FORGET(x) asm volatile("" : "+l"(x))
#define MULHI64(a, b) __umul64hi((a), (b))
#define CLZ64(a) ((u32)__clzll((i64)(a)))
#define POPC32(a) ((u32)__popc(a))
#define F64_BITS(x) ((u64)__double_as_longlong(x))
#define F32_BITS(x) ((u32)__float_as_int(x))
#define BITS_F64(x) __longlong_as_double((i64)(x))
#define BITS_F32(x) __int_as_float((i32)(x))
#define F64_ADD_RN(a, b) __dadd_rn((a), (b))
#define F64_SUB_RN(a, b) __dsub_rn((a), (b))
#define F64_MUL_RN(a, b) __dmul_rn((a), (b))
#define F64_DIV_RN(a, b) __ddiv_rn((a), (b))
#define F64_FMA_RN(a, b, c) __fma_rn((a), (b), (c))
#define F32_ADD_RN(a, b) __fadd_rn((a), (b))
#define F32_SUB_RN(a, b) __fsub_rn((a), (b))
#define F32_MUL_RN(a, b) __fmul_rn((a), (b))
#define F32_DIV_RN(a, b) __fdiv_rn((a), (b))
#define F32_FMOD(a, b) fmodf((a), (b))
/* CUDA loads only aligned words. A word of memory is accessible as a whole. */
FN u64 LOAD64(const u8 *p) {
  const u64 *words = (const u64 *)(p - ((u64)p & 7));
  u32 shift = 8 * (u32)((u64)p & 7);
  return shift == 0 ? words[0] : words[0] >> shift | words[1] << (64 - shift);
}
/* Each half carries on its own, so the sum is whole once all work-items have added. */
FN u32 add_carry64(volatile u32 *halves, u64 v) {
  u32 low = (u32)v;
  u64 high = (v >> 32) + (A_ADD32(halves, low) + low < low);
  return high ? (u32)((A_ADD32(halves + 1, high) + high) >> 32) : 0;
}
/* Atomics on one address wait for each other: one lane adds for those that are here. */
FN u64 A_NEXT64(volatile u64 *p) {
  u32 here = __activemask(), lane = threadIdx.x & 31, leader = (u32)__ffs((i32)here) - 1;
  u64 first = 0;
  if (lane == leader) first = atomicAdd((u64 *)p, (u64)__popc(here));
  return __shfl_sync(here, first, (i32)leader) + __popc(here & (((u32)1 << lane) - 1));
}
#define BYTE_WORDS 1
typedef struct { u64 word[16]; } words16;
#define ADVANCE16(state, row, start, carry) { \
  u64 last = state.word[15] & (row)[15]; \
  for (u32 word = 15; word > 0; --word) state.word[word] = (state.word[word - 1] & (row)[word - 1]) | (start)[word]; \
  state.word[0] = last << 1 | (start)[0] | carry; \
  carry = last >> 63; \
}
FN i32 DIFFERS16(words16 state, const u64 *start) {
  u64 differ = 0;
  for (u32 word = 0; word < 16; ++word) differ |= state.word[word] ^ start[word];
  return differ != 0;
}
FN words16 LOAD_WORDS16(const u64 *p) {
  words16 words;
  for (u32 word = 0; word < 16; ++word) words.word[word] = p[word];
  return words;
}
#else
#error "no section for this compiler: see docs/drivers.md"
#endif
#define NO_ROW (~(u64)0)
/* The highest bit of each byte of a u64. */
#define HIGH_BITS(word) ((u32)(((word) & 0x8080808080808080UL) * 0x0002040810204081UL >> 56))
#define BIT(bits, i) ((((bits)[(i) >> 3]) >> ((i) & 7)) & 1)
