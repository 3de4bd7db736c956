// What this machine can do at most: how fast threads read memory, and multiply in registers.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "element.h"
#include "team.h"

namespace {
double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
volatile float sink;
}  // namespace

extern "C" {

// Bytes a second that `threads` threads read together, of a buffer that fits no cache.
double floors_read(int threads, int64_t bytes) {
  const int64_t vectors = bytes / sizeof(u32x16);
  auto* data = static_cast<u32x16*>(std::aligned_alloc(2 << 20, vectors * sizeof(u32x16)));
  madvise(data, vectors * sizeof(u32x16), MADV_HUGEPAGE);  // as weights and KV lie
  double best = 0;
  for (int turn = 0; turn < 6; ++turn) {
    const double start = now();
    run_team(threads, [&](Team t) {
      if (turn == 0) {  // touched by who reads it
        for (int64_t i = t.lo(vectors); i < t.hi(vectors); ++i) data[i] = uint32_t(i) - u32x16{};
        return;
      }
      u32x16 sum[4] = {};
      for (int64_t i = t.lo(vectors); i + 4 <= t.hi(vectors); i += 4)
        for (int j = 0; j < 4; ++j) sum[j] ^= data[i + j];
      sink = float((sum[0] ^ sum[1] ^ sum[2] ^ sum[3])[0]);
    });
    if (turn) best = std::max(best, vectors * sizeof(u32x16) / (now() - start));
  }
  std::free(data);
  return best;
}

// Floating-point operations a second of `dot` with all operands in registers.
double floors_multiply(int threads, int64_t times) {
  constexpr int SUMS = NATIVE == LANES ? 24 : 12;
  double best = 0;
  for (int turn = 0; turn < 6; ++turn) {
    const double start = now();
    run_team(threads, [&](Team t) {
      f32xN sums[SUMS];
      for (int j = 0; j < SUMS; ++j) {
        float start = float(j);  // all different, or the compiler computes one for all
        asm volatile("" : "+x"(start));
        sums[j] = start - f32xN{};
      }
      T one[2 * G] = {};
      groups x = broadcast(one), w = broadcast(one + G);
      for (int64_t i = 0; i < times; ++i) {
#pragma GCC unroll 24
        for (int j = 0; j < SUMS; ++j) sums[j] = dot(sums[j], x, w);
        asm volatile("" : "+x"(x), "+x"(w));
      }
      float total = 0;
      for (auto& sum : sums) total += sum[0];
      sink = total;
    });
    best = std::max(best, double(times) * SUMS * NATIVE * G * 2 * threads / (now() - start));
  }
  return best;
}

}  // extern "C"
