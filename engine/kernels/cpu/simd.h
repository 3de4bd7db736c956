// Sixteen float lanes on GCC/Clang vector extensions, so that any CPU compiles them; intrinsics
// appear only where the extensions generate poor code. Every reduction has a fixed order: results
// must not depend on how the compiler felt about a loop, or batches would change tokens.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

constexpr int LANES = 16;

// What one register holds. The innermost loops keep their sums in registers of this width: GCC
// spills arrays of wider vectors. All else is written for 16 lanes, however many registers it takes.
#if defined(__AVX512F__)
constexpr int NATIVE = 16;
#elif defined(__AVX__)
constexpr int NATIVE = 8;
#else
constexpr int NATIVE = 4;
#endif
typedef float f32xN __attribute__((vector_size(4 * NATIVE)));
typedef uint32_t u32xN __attribute__((vector_size(4 * NATIVE)));

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

template <class V>
inline V load(const void* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
inline void store(void* p, V v) {
  memcpy(p, &v, sizeof v);
}

inline f32x16 fill(float v) { return v - f32x16{}; }
inline f32x16 vmax(f32x16 a, f32x16 b) { return a > b ? a : b; }

inline float hsum(f32x16 v) {
  float s[LANES];
  store(s, v);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) s[i] += s[i + half];
  return s[0];
}

inline float hmax(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float s[LANES];
  store(s, v);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) s[i] = s[i] > s[i + half] ? s[i] : s[i + half];
  return s[0];
#endif
}

inline bool any_nonfinite(f32x16 v) {
  const u32x16 exponent = (u32x16)v & 0x7f800000u;
#if defined(__AVX512F__)
  return _mm512_cmpeq_epi32_mask((__m512i)exponent, _mm512_set1_epi32(0x7f800000)) != 0;
#else
  uint32_t found = 0;
  for (int i = 0; i < LANES; ++i) found |= exponent[i] == 0x7f800000u;
  return found != 0;
#endif
}

// exp to about 1e-7 relative, after Cephes' expf: range reduction by ln 2 in two parts, then a
// polynomial. Arguments are clamped to +-87, so that the result is always a normal number; the
// comparisons are written so that a NaN stays a NaN.
inline f32x16 vexp(f32x16 x) {
  x = x < -87.f ? fill(-87.f) : x;
  x = x > 87.f ? fill(87.f) : x;
  const f32x16 z = x * 1.44269504f;
  const i32x16 n = __builtin_convertvector(z + (z < 0.f ? fill(-0.5f) : fill(0.5f)), i32x16);
  const f32x16 nf = __builtin_convertvector(n, f32x16);
  const f32x16 r = x - nf * 0.693359375f + nf * 2.12194440e-4f;
  f32x16 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  return p * (f32x16)((n + 127) << 23);
}

// 2^x to about 2e-7 relative for x <= 0, by a polynomial over [-1/2, 1/2]; below -125 it is 2^-125.
// Adding 1.5 * 2^23 rounds to a whole number, which then lies in the low bits. A NaN stays a NaN.
inline f32x16 vexp2(f32x16 x) {
  constexpr float magic = 12582912.f;
  x = x < -125.f ? fill(-125.f) : x;
  const f32x16 rounded = x + magic;
  const f32x16 r = x - (rounded - magic);
  f32x16 p = r * 1.5403530e-4f + 1.3333558e-3f;
  p = p * r + 9.6181291e-3f;
  p = p * r + 5.5504109e-2f;
  p = p * r + 2.4022651e-1f;
  p = p * r + 6.9314718e-1f;
  p = p * r + 1.f;
  return p * (f32x16)(((i32x16)rounded - 0x4b400000 + 127) << 23);
}
