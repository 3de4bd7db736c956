// Paged attention of a few query rows over one request's KV, for decode and extend alike.
//
// HEAD (head_dim) and PAGE (tokens of a page) are fixed when the library is compiled. A page holds,
// per kv head, K as [PAGE/16][HEAD/G][16][G] and V as [PAGE/G][HEAD][G]: both products are then
// `dot` over whole vectors without a shuffle. A block is 16 tokens of a page. What lies behind a
// request's last token is never used in arithmetic: it may be a freed page's NaN.
#pragma once
#include <algorithm>

#include "element.h"

static_assert(HEAD % 32 == 0 && PAGE % LANES == 0);
constexpr int MAX_ROWS = 12;          // query rows that share one pass over KV
constexpr int SPAN = 256;             // tokens per pass of the online softmax
constexpr int BLOCK = LANES * HEAD;   // elements
constexpr int PAGE_BLOCKS = PAGE / LANES;
constexpr float MASKED = -1e30f;
constexpr float LOG2_E = 1.44269504f;
// Sums in registers at a time, as in gemm.h: rows, and vectors for a row.
constexpr int ROWS_AT_ONCE = NATIVE == LANES ? MAX_ROWS : 4;
constexpr int VECTORS_OF_FEW = NATIVE == LANES ? 4 : 2, VECTORS_OF_MANY = 2, FEW_ROWS = 4;
template <int M>
constexpr int vectors_at_once = M <= FEW_ROWS ? VECTORS_OF_FEW : VECTORS_OF_MANY;

inline void store_kv(T* k_page, T* v_page, int64_t t, const T* k, const T* v) {
  T* k_to = k_page + t / LANES * BLOCK + t % LANES * G;
  for (int d = 0; d < HEAD; d += G) memcpy(k_to + d * LANES, k + d, G * sizeof(T));
  T* v_to = v_page + t / G * G * HEAD + t % G;
  for (int d = 0; d < HEAD; ++d) v_to[d * G] = v[d];
}

inline void rope(T* x, const float* cos, const float* sin) {
  for (int d = 0; d < HEAD / 2; d += LANES) {
    const f32x16 a = widen(x + d), b = widen(x + HEAD / 2 + d);
    const f32x16 c = load<f32x16>(cos + d), s = load<f32x16>(sin + d);
    narrow(x + d, a * c - b * s);
    narrow(x + HEAD / 2 + d, b * c + a * s);
  }
}

struct Context {  // KV of one (request, kv head)
  const T *k, *v;
  const int32_t* pages;
  int64_t stride, offset;  // elements of a page, and of the kv head within it
  int64_t at(int64_t block) const {
    return pages[block / PAGE_BLOCKS] * stride + offset + block % PAGE_BLOCKS * BLOCK;
  }
};

// s[m][...] = q[m] . K for `vectors` vectors of tokens from the one numbered `first` on, NATIVE tokens
// in each. Pages are scattered, so the next K and these V are fetched meanwhile: worth 27-40 % of
// attention in decode.
template <int M>
inline void scores(const T* q, const Context& kv, int64_t first, int64_t last, float* s) {
  constexpr int P = vectors_at_once<M>, IN_BLOCK = LANES / NATIVE;
  f32xN acc[M][P];
  const T *k[P], *k_ahead[P], *v[P];
  for (int p = 0; p < P; ++p) {
    const int64_t at = std::min(first + p, last), ahead = std::min(first + P + p, last);
    const int64_t here = kv.at(at / IN_BLOCK);
    k[p] = kv.k + here + at % IN_BLOCK * NATIVE * G;
    v[p] = kv.v + here + at % IN_BLOCK * NATIVE * HEAD;
    k_ahead[p] = kv.k + kv.at(ahead / IN_BLOCK) + ahead % IN_BLOCK * NATIVE * G;
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
    for (int p = 0; p < P; ++p) acc[m][p] = f32xN{};
  for (int d = 0; d < HEAD / G; ++d) {
    groups kk[P];
    for (int p = 0; p < P; ++p) {
      kk[p] = load<groups>(k[p] + d * LANES * G);
      __builtin_prefetch(k_ahead[p] + d * LANES * G);
      __builtin_prefetch(v[p] + d * NATIVE * G);
    }
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const groups x = broadcast(q + m * HEAD + d * G);
      for (int p = 0; p < P; ++p) acc[m][p] = dot(acc[m][p], x, kk[p]);
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
    for (int p = 0; p < P; ++p) store(s + m * SPAN + p * NATIVE, acc[m][p]);
}

// The scores of a span's blocks.
template <int M>
inline void span_scores(const T* q, const Context& kv, int64_t block, int64_t blocks,
                        int64_t last_block, float* s) {
  if constexpr (M > ROWS_AT_ONCE) {
    span_scores<ROWS_AT_ONCE>(q, kv, block, blocks, last_block, s);
    span_scores<M - ROWS_AT_ONCE>(q + ROWS_AT_ONCE * HEAD, kv, block, blocks, last_block,
                                  s + ROWS_AT_ONCE * SPAN);
  } else {
    constexpr int IN_BLOCK = LANES / NATIVE, P = vectors_at_once<M>;
    const int64_t first = block * IN_BLOCK, last = (last_block + 1) * IN_BLOCK - 1;
    for (int64_t n = 0; n < blocks * IN_BLOCK; n += P)
      scores<M>(q, kv, first + n, last, s + n * NATIVE);
  }
}

// o[m] += prob[m] . V for J vectors of columns, over `tokens` tokens from `block` on.
template <int M, int J>
inline void values(const T* prob, const Context& kv, int64_t block, int64_t tokens, int column,
                   float* o) {
  f32xN acc[M][J];
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < J; ++j) acc[m][j] = load<f32xN>(o + m * HEAD + column + j * NATIVE);
  auto add_group = [&](const T* v, const T* p, int64_t g, bool is_partial) {
    groups vv[J];
    for (int j = 0; j < J; ++j) {
      vv[j] = load<groups>(v + (g * HEAD + column + j * NATIVE) * G);
      if (is_partial) vv[j] = first_of_group(vv[j]);
    }
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const groups x = broadcast(p + m * SPAN + g * G);
      for (int j = 0; j < J; ++j) acc[m][j] = dot(acc[m][j], x, vv[j]);
    }
  };
  for (int64_t done = 0; done < tokens; done += LANES) {
    const T* v = kv.v + kv.at(block + done / LANES);
    const int64_t left = tokens - done;
    if (left >= LANES) {
      for (int g = 0; g < LANES / G; ++g) add_group(v, prob + done, g, false);
    } else {
      for (int64_t g = 0; g < left / G; ++g) add_group(v, prob + done, g, false);
      if (left % G) add_group(v, prob + done, left / G, true);
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < J; ++j) store(o + m * HEAD + column + j * NATIVE, acc[m][j]);
}

// All columns of a span's values.
template <int M>
inline void span_values(const T* prob, const Context& kv, int64_t block, int64_t tokens, float* o) {
  if constexpr (M > ROWS_AT_ONCE) {
    span_values<ROWS_AT_ONCE>(prob, kv, block, tokens, o);
    span_values<M - ROWS_AT_ONCE>(prob + ROWS_AT_ONCE * SPAN, kv, block, tokens,
                                  o + ROWS_AT_ONCE * HEAD);
  } else {
    constexpr int J = HEAD % (vectors_at_once<M> * NATIVE) ? VECTORS_OF_MANY : vectors_at_once<M>;
    for (int column = 0; column < HEAD; column += J * NATIVE)
      values<M, J>(prob, kv, block, tokens, column, o);
  }
}

// One pass of the softmax over `blocks` blocks of a row's scores, which become probabilities: the
// row sees the first `room` + 1 tokens of them. Returns the factor by which earlier passes' sums
// must shrink. `scale` holds log2 e, so that powers of 2 are computed.
inline float softmax_pass(float* s, T* prob, int64_t blocks, int64_t room, float scale, float& top,
                          float& total) {
  const i32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int64_t whole = std::clamp<int64_t>((room + 1) / LANES, 0, blocks);
  const bool has_part = whole < blocks && room + 1 > whole * LANES;
  const i32x16 last = int32_t(room - whole * LANES) - i32x16{};
  f32x16 best = fill(MASKED), sum{};
  for (int64_t p = 0; p < whole; ++p) best = vmax(best, load<f32x16>(s + p * LANES));
  if (has_part) {
    const f32x16 x = load<f32x16>(s + whole * LANES);
    best = vmax(best, lane <= last ? x : fill(MASKED));
  }
  const float now = std::max(top, hmax(best) * scale);
  for (int64_t p = 0; p < whole; ++p) {
    const f32x16 e = vexp2(load<f32x16>(s + p * LANES) * scale - now);
    narrow(prob + p * LANES, e);
    sum += e;
  }
  if (has_part) {
    const f32x16 x = load<f32x16>(s + whole * LANES) * scale - now;
    const f32x16 e = lane <= last ? vexp2(x) : f32x16{};
    narrow(prob + whole * LANES, e);
    sum += e;
  }
  for (int64_t p = whole + has_part; p < blocks; ++p) narrow(prob + p * LANES, f32x16{});
  const float keep = vexp2(fill(top - now))[0];
  total = total * keep + hsum(sum);
  top = now;
  return keep;
}

// q: M rows of HEAD, rotated; row m sees tokens 0..limit[m]. Writes M rows of fp32 to o.
template <int M>
void attend(const T* q, const Context& kv, const int64_t* limit, float scale, float* o) {
  alignas(64) float s[M * SPAN];
  alignas(64) T prob[M * SPAN];
  float top[M], total[M];
  int64_t last_token = 0;
  for (int m = 0; m < M; ++m) {
    last_token = std::max(last_token, limit[m]);
    top[m] = MASKED;
    total[m] = 0;
  }
  const int64_t last_block = last_token / LANES;
  memset(o, 0, M * HEAD * sizeof(float));
  for (int64_t block = 0; block <= last_block; block += SPAN / LANES) {
    const int64_t blocks = std::min<int64_t>(SPAN / LANES, last_block + 1 - block);
    const int64_t tokens = std::min<int64_t>(SPAN, last_token + 1 - block * LANES);
    span_scores<M>(q, kv, block, blocks, last_block, s);
    for (int m = 0; m < M; ++m) {
      const float keep = softmax_pass(s + m * SPAN, prob + m * SPAN, blocks,
                                      limit[m] - block * LANES, scale * LOG2_E, top[m], total[m]);
      if (block)
        for (int d = 0; d < HEAD; d += LANES)
          store(o + m * HEAD + d, load<f32x16>(o + m * HEAD + d) * keep);
    }
    span_values<M>(prob, kv, block, tokens, o);
  }
  for (int m = 0; m < M; ++m)
    for (int d = 0; d < HEAD; d += LANES)
      store(o + m * HEAD + d, load<f32x16>(o + m * HEAD + d) / total[m]);
}

template <int M>
void attend_rows(int rows, const T* q, const Context& kv, const int64_t* limit, float scale,
                 float* o) {
  if constexpr (M > 0) {
    if (rows == M) attend<M>(q, kv, limit, scale, o);
    else attend_rows<M - 1>(rows, q, kv, limit, scale, o);
  }
}
