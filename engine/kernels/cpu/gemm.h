// y = x W^T with W packed once as [n/32][k/G][32][G]. Each thread owns a slice of the 32-column
// panels, so a weight is read by one thread, once per block of rows. A row's sums are added in the
// order of k whatever the batch, so a request's numbers do not depend on its neighbours.
#pragma once
#include <algorithm>

#include "element.h"

constexpr int PANEL = 32;  // columns
// Sums of a tile in registers, with room for weights and an input: 24 of AVX-512's 32, else 8 of 16.
constexpr int TILE_ROWS = NATIVE == LANES ? 12 : 4;
constexpr int TILE_VECTORS = 2;

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

// y[m] = x[m] W^T for M rows and TILE_VECTORS vectors of columns.
template <int M>
inline void tile_columns(const T* x, int64_t ldx, const T* w, int64_t groups_k, float* y) {
  f32xN acc[M][TILE_VECTORS];
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) acc[m][0] = acc[m][1] = f32xN{};
  for (int64_t k = 0; k < groups_k; ++k) {
    const groups w0 = load<groups>(w + k * PANEL * G);
    const groups w1 = load<groups>(w + (k * PANEL + NATIVE) * G);
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const groups a = broadcast(x + m * ldx + k * G);
      acc[m][0] = dot(acc[m][0], a, w0);
      acc[m][1] = dot(acc[m][1], a, w1);
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) {
    store(y + m * PANEL, acc[m][0]);
    store(y + m * PANEL + NATIVE, acc[m][1]);
  }
}

// Calls out(row, panel, columns 0..15, columns 16..31) for each of M rows.
template <int M, class Out>
inline void tile(const T* x, int64_t ldx, const T* w, int64_t groups_k, int64_t row, int64_t panel,
                 Out& out) {
  alignas(64) float y[M * PANEL];
  for (int c = 0; c < PANEL; c += TILE_VECTORS * NATIVE)
    tile_columns<M>(x, ldx, w + c * G, groups_k, y + c);
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
    out(row + m, panel, load<f32x16>(y + m * PANEL), load<f32x16>(y + m * PANEL + LANES));
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
  // Blocks of rows are read anew for each panel: they stay in half a megabyte of L2.
  const int64_t most = std::max<int64_t>(TILE_ROWS, (512 << 10) / (w.k * sizeof(T)));
  const int64_t parts = (m + most - 1) / most;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t top = m * part / parts, count = m * (part + 1) / parts - top;
    const int64_t blocks = (count + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t p = first; p < last; ++p)
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t r0 = top + count * b / blocks, r1 = top + count * (b + 1) / blocks;
        tile_rows<TILE_ROWS>(r1 - r0, x + r0 * ldx, ldx, w.data + p * PANEL * w.k, w.k / G, r0, p,
                             out);
      }
  }
}
