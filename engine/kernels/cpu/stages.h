// The stages of a Llama layer. Every thread of a team calls a stage with its own id; the caller
// puts a barrier between stages. Shared by the whole-step op and the single ops.
#pragma once
#include <vector>

#include "attention.h"
#include "gemm.h"
#include "team.h"

// Tokens of all parts, flattened. Part r owns tokens start[r] .. start[r + 1] and the pages from
// pages[first_page[r]] on.
struct Tokens {
  const int64_t *pos, *start, *first_page;
  const int32_t* pages;
  int64_t tokens, parts;
};

// The tokens whose attention is wanted: all, or those named, in any order.
struct Wanted {
  const int64_t* rows;  // null: all
  int64_t count;
  int64_t operator[](int64_t i) const { return rows ? rows[i] : i; }
};

struct Heads {
  int64_t q, kv;
  int64_t width() const { return (q + 2 * kv) * HEAD; }  // a row of q | k | v
  int64_t page_elements() const { return kv * PAGE * HEAD; }
};

// Attention work: up to MAX_ROWS query rows of one part, longest context first, so that threads
// which take items in turn finish together. `first` counts wanted tokens.
struct Item {
  int64_t part, first, count;
};
struct Plan {
  std::vector<int64_t> part_of;  // of each token
  std::vector<Item> all, last;   // for every token; for those whose output is wanted

  void make(const Tokens& b, const Wanted& wanted, const Heads& heads) {
    part_of.resize(b.tokens);
    for (int64_t r = 0; r < b.parts; ++r)
      std::fill(part_of.begin() + b.start[r], part_of.begin() + b.start[r + 1], r);
    fill_items(b, {nullptr, b.tokens}, heads, all);
    fill_items(b, wanted, heads, last);
  }

 private:
  void fill_items(const Tokens& b, const Wanted& wanted, const Heads& heads,
                  std::vector<Item>& items) const {
    const int64_t most = MAX_ROWS / (heads.q / heads.kv);
    items.clear();
    for (int64_t i = 0; i < wanted.count; ++i) {
      const int64_t part = part_of[wanted[i]];
      if (items.empty() || items.back().part != part || items.back().count == most)
        items.push_back({part, i, 0});
      ++items.back().count;
    }
    std::sort(items.begin(), items.end(), [&](const Item& x, const Item& y) {
      return b.pos[wanted[x.first]] > b.pos[wanted[y.first]];
    });
  }
};

inline float inverse_rms(const float* x, int64_t n, float eps) {
  f32x16 sum{};
  for (int64_t i = 0; i < n; i += LANES) {
    const f32x16 v = load<f32x16>(x + i);
    sum += v * v;
  }
  return 1.f / std::sqrt(hsum(sum) / n + eps);
}

inline void norm_stage(Team t, const float* x, const int64_t* rows, int64_t m, const T* weight,
                       int64_t n, float eps, T* y) {
  for (int64_t r = t.lo(m); r < t.hi(m); ++r) {
    const float* in = x + (rows ? rows[r] : r) * n;
    const float inverse = inverse_rms(in, n, eps);
    for (int64_t i = 0; i < n; i += LANES)
      narrow(y + r * n + i, load<f32x16>(in + i) * inverse * widen(weight + i));
  }
}

// The norms of each head's q and k that some models have.
struct HeadNorms {
  const T *q, *k;  // [HEAD], or null
  float eps;
  static void apply(T* x, const T* weight, float eps) {
    float wide[HEAD];
    for (int d = 0; d < HEAD; d += LANES) store(wide + d, widen(x + d));
    const float inverse = inverse_rms(wide, HEAD, eps);
    for (int d = 0; d < HEAD; d += LANES)
      narrow(x + d, load<f32x16>(wide + d) * inverse * widen(weight + d));
  }
};

// cos, sin: [context][HEAD / 2]. Norms and rotates q and k in place, stores k and v in their page.
inline void rope_store_stage(Team t, const Tokens& b, const Plan& plan, T* qkv, const Heads& heads,
                             const HeadNorms& norms, const float* cos, const float* sin, T* k_pool,
                             T* v_pool) {
  for (int64_t i = t.lo(b.tokens); i < t.hi(b.tokens); ++i) {
    T *q = qkv + i * heads.width(), *k = q + heads.q * HEAD, *v = k + heads.kv * HEAD;
    const int64_t at = b.pos[i] * (HEAD / 2);
    for (int64_t n = 0; n < heads.q + heads.kv; ++n) {
      const T* weight = n < heads.q ? norms.q : norms.k;
      if (weight) HeadNorms::apply(q + n * HEAD, weight, norms.eps);
      rope(q + n * HEAD, cos + at, sin + at);
    }
    const int32_t page = b.pages[b.first_page[plan.part_of[i]] + b.pos[i] / PAGE];
    for (int64_t g = 0; g < heads.kv; ++g) {
      const int64_t to = page * heads.page_elements() + g * PAGE * HEAD;
      store_kv(k_pool + to, v_pool + to, b.pos[i] % PAGE, k + g * HEAD, v + g * HEAD);
    }
  }
}

// out: a row for each wanted token. Threads take items in turn: `next` begins at 0.
inline void attention_stage(std::atomic<int64_t>& next, const Tokens& b,
                            const std::vector<Item>& items, const Wanted& wanted, const T* qkv,
                            const Heads& heads, const T* k_pool, const T* v_pool, T* out) {
  const int64_t ratio = heads.q / heads.kv, jobs = items.size() * heads.kv;
  const float scale = 1.f / std::sqrt(float(HEAD));
  for (int64_t j; (j = next.fetch_add(1)) < jobs;) {
    const Item& item = items[j / heads.kv];
    const int64_t g = j % heads.kv;
    int64_t limit[MAX_ROWS];
    alignas(64) T q[MAX_ROWS * HEAD];
    alignas(64) float o[MAX_ROWS * HEAD];
    int n = 0;
    for (int64_t i = item.first; i < item.first + item.count; ++i)
      for (int64_t e = 0; e < ratio; ++e, ++n) {
        memcpy(q + n * HEAD, qkv + wanted[i] * heads.width() + (g * ratio + e) * HEAD,
               HEAD * sizeof(T));
        limit[n] = b.pos[wanted[i]];
      }
    const Context kv{k_pool, v_pool, b.pages + b.first_page[item.part], heads.page_elements(),
                     g * PAGE * HEAD};
    attend_rows<MAX_ROWS>(n, q, kv, limit, scale, o);
    for (int r = 0; r < n; ++r) {
      T* to = out + ((item.first + r / ratio) * heads.q + g * ratio + r % ratio) * HEAD;
      for (int d = 0; d < HEAD; d += LANES) narrow(to + d, load<f32x16>(o + r * HEAD + d));
    }
  }
}

// What a linear does with its tiles. n is a multiple of 16, so a panel may end half-way.
struct Write {
  T* y;
  int64_t n;
  const T* bias;  // [n], or null
  void operator()(int64_t r, int64_t p, f32x16 a, f32x16 b) const {
    put(r, p * PANEL, a);
    if (p * PANEL + LANES < n) put(r, p * PANEL + LANES, b);
  }
  void put(int64_t r, int64_t column, f32x16 v) const {
    narrow(y + r * n + column, bias ? v + widen(bias + column) : v);
  }
};
struct Add {
  float* x;
  int64_t n;
  void operator()(int64_t r, int64_t p, f32x16 a, f32x16 b) const {
    float* d = x + r * n + p * PANEL;
    store(d, load<f32x16>(d) + a);
    if (p * PANEL + LANES < n) store(d + LANES, load<f32x16>(d + LANES) + b);
  }
};
struct SiluMul {  // the weight is packed with `halves`: a is gate, b is up
  T* y;
  int64_t n;
  void operator()(int64_t r, int64_t p, f32x16 a, f32x16 b) const {
    narrow(y + r * n + p * LANES, a / (1.f + vexp(-a)) * b);
  }
};

// The vocabulary, of any size: fp32 logits if wanted, and this thread's best token of each row.
// The lowest id wins a tie. A row with an infinity or a NaN is marked.
struct Logits {
  float* logits;
  int64_t vocab;
  float* best;
  int64_t* arg;
  uint8_t* bad;
  void operator()(int64_t r, int64_t p, f32x16 a, f32x16 b) const {
    const int64_t first = p * PANEL, count = std::min<int64_t>(PANEL, vocab - first);
    float v[PANEL];
    store(v, a);
    store(v + LANES, b);
    if (logits) memcpy(logits + r * vocab + first, v, count * sizeof(float));
    if (any_nonfinite(a) || any_nonfinite(b)) bad[r] = 1;
    if (count == PANEL && hmax(vmax(a, b)) <= best[r]) return;
    for (int64_t c = 0; c < count; ++c)
      if (v[c] > best[r]) {
        best[r] = v[c];
        arg[r] = first + c;
      }
  }
};
