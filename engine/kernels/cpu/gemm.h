// y = x W^T with W packed once as [n/32][k/G][32][G]. Each thread owns a slice of the 32-column
// panels, so a weight is read by one thread, once per block of rows. A row's sums are added in the
// order of k whatever the batch, so a request's numbers do not depend on its neighbours.
#pragma once
#include <algorithm>

#include "element.h"

constexpr int PANEL = 32;      // columns: two vectors
constexpr int TILE_ROWS = 12;  // 24 accumulators of AVX-512's 32 registers

struct Packed {
  const T* data;
  int64_t n, k;
  int64_t panels() const { return (n + PANEL - 1) / PANEL; }
};

// `halves` puts 16 rows of W's first half and 16 of its second in each panel: gate beside up.
inline void pack_panel(const T* w, int64_t n, int64_t k, bool halves, int64_t panel, T* out) {
  for (int64_t c = 0; c < PANEL; ++c) {
    const bool second = halves && c >= LANES;
    const int64_t row = halves ? panel * LANES + c % LANES + (second ? n / 2 : 0) : panel * PANEL + c;
    for (int64_t i = 0; i < k; i += G) {
      T* to = out + ((panel * (k / G) + i / G) * PANEL + c) * G;
      if (row < n) memcpy(to, w + row * k + i, G * sizeof(T));
      else memset(to, 0, G * sizeof(T));
    }
  }
}

// Calls out(row, panel, columns 0..15, columns 16..31) for each of M rows.
template <int M, class Out>
inline void tile(const T* x, int64_t ldx, const T* w, int64_t groups_k, int64_t row, int64_t panel,
                 Out& out) {
  f32x16 acc[M][2];
  for (int m = 0; m < M; ++m) acc[m][0] = acc[m][1] = f32x16{};
  for (int64_t k = 0; k < groups_k; ++k) {
    const groups w0 = load<groups>(w + k * PANEL * G), w1 = load<groups>(w + (k * PANEL + LANES) * G);
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const groups a = broadcast(x + m * ldx + k * G);
      acc[m][0] = dot(acc[m][0], a, w0);
      acc[m][1] = dot(acc[m][1], a, w1);
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) out(row + m, panel, acc[m][0], acc[m][1]);
}

template <int M, class Out>
inline void tile_rows(int64_t rows, const T* x, int64_t ldx, const T* w, int64_t groups_k,
                      int64_t row, int64_t panel, Out& out) {
  if constexpr (M > 0) {
    if (rows == M) tile<M>(x, ldx, w, groups_k, row, panel, out);
    else tile_rows<M - 1>(rows, x, ldx, w, groups_k, row, panel, out);
  }
}

template <class Out>
void gemm(const T* x, int64_t ldx, int64_t m, const Packed& w, int id, int threads, Out&& out) {
  const int64_t first = w.panels() * id / threads, last = w.panels() * (id + 1) / threads;
  constexpr int64_t rows_in_l2 = 480 * 2 / sizeof(T);
  for (int64_t top = 0; top < m; top += rows_in_l2) {
    const int64_t count = std::min(rows_in_l2, m - top);
    const int64_t blocks = (count + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t p = first; p < last; ++p)
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t r0 = top + count * b / blocks, r1 = top + count * (b + 1) / blocks;
        tile_rows<TILE_ROWS>(r1 - r0, x + r0 * ldx, ldx, w.data + p * PANEL * w.k, w.k / G, r0, p,
                             out);
      }
  }
}
