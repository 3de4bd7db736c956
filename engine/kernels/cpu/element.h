// The number format of weights, activations and KV, fixed when the library is compiled:
// ELEMENT_BITS is 16 (bfloat16) or 32 (float). Everything is multiplied in groups of G neighbours,
// because the bf16 instruction multiplies pairs; for float a group is one number.
#pragma once
#include "simd.h"

#if ELEMENT_BITS == 16

using T = uint16_t;  // raw bits
constexpr int G = 2;
typedef u32xN groups;  // NATIVE groups of G elements

inline groups broadcast(const T* p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v - groups{};
}
inline groups first_of_group(groups v) { return v & 0xffffu; }  // the others become 0

// acc[i] += x[2i] * w[2i] + x[2i+1] * w[2i+1]
inline f32xN dot(f32xN acc, groups x, groups w) {
#if defined(__AVX512BF16__)
  return (f32xN)_mm512_dpbf16_ps((__m512)acc, (__m512bh)x, (__m512bh)w);
#else
  acc += (f32xN)(x << 16) * (f32xN)(w << 16);
  return acc + (f32xN)(x & 0xffff0000u) * (f32xN)(w & 0xffff0000u);
#endif
}

inline f32x16 widen(const T* p) {
  return (f32x16)(__builtin_convertvector(load<u16x16>(p), u32x16) << 16);
}
inline void narrow(T* p, f32x16 v) {  // round to nearest even; a NaN stays a NaN
#if defined(__AVX512BF16__)
  store(p, _mm512_cvtneps_pbh((__m512)v));
#else
  u32x16 u = (u32x16)v;
  const u32x16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  u = (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded;
  store(p, __builtin_convertvector(u, u16x16));
#endif
}

#elif ELEMENT_BITS == 32

using T = float;
constexpr int G = 1;
typedef f32xN groups;

inline groups broadcast(const T* p) { return *p - groups{}; }
inline groups first_of_group(groups v) { return v; }
inline f32xN dot(f32xN acc, groups x, groups w) { return acc + x * w; }
inline f32x16 widen(const T* p) { return load<f32x16>(p); }
inline void narrow(T* p, f32x16 v) { store(p, v); }

#else
#error "ELEMENT_BITS must be 16 or 32"
#endif
