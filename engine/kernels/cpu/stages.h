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

struct Heads {
  int64_t q, kv;
  int64_t width() const { return (q + 2 * kv) * HEAD; }  // a row of q | k | v
  int64_t page_elements() const { return kv * PAGE * HEAD; }
};

// Attention work: up to MAX_ROWS query rows of one part, longest context first, so that threads
// which take items in turn finish together.
struct Item {
  int64_t part, first, count;
};
struct Plan {
  std::vector<int64_t> part_of;
  std::vector<Item> items;

  void make(const Tokens& b, const Heads& heads) {
    const int64_t block = MAX_ROWS / (heads.q / heads.kv);
    part_of.resize(b.tokens);
    items.clear();
    for (int64_t r = 0; r < b.parts; ++r)
      for (int64_t i = b.start[r]; i < b.start[r + 1]; ++i) {
        part_of[i] = r;
        if ((i - b.start[r]) % block == 0)
          items.push_back({r, i, std::min(block, b.start[r + 1] - i)});
      }
    std::sort(items.begin(), items.end(), [&](const Item& x, const Item& y) {
      return b.pos[x.first] > b.pos[y.first];
    });
  }
};

inline void norm_stage(Team t, const float* x, const int64_t* rows, int64_t m, const T* weight,
                       int64_t n, float eps, T* y) {
  for (int64_t r = t.lo(m); r < t.hi(m); ++r) {
    const float* in = x + (rows ? rows[r] : r) * n;
    f32x16 sum{};
    for (int64_t i = 0; i < n; i += LANES) {
      const f32x16 v = load<f32x16>(in + i);
      sum += v * v;
    }
    const float inverse = 1.f / std::sqrt(hsum(sum) / n + eps);
    for (int64_t i = 0; i < n; i += LANES)
      narrow(y + r * n + i, load<f32x16>(in + i) * inverse * widen(weight + i));
  }
}

// cos, sin: [context][HEAD / 2]. Rotates q and k in place and stores k and v in their page.
inline void rope_store_stage(Team t, const Tokens& b, const Plan& plan, T* qkv, const Heads& heads,
                             const float* cos, const float* sin, T* k_pool, T* v_pool) {
  for (int64_t i = t.lo(b.tokens); i < t.hi(b.tokens); ++i) {
    T *q = qkv + i * heads.width(), *k = q + heads.q * HEAD, *v = k + heads.kv * HEAD;
    const int64_t at = b.pos[i] * (HEAD / 2);
    for (int64_t n = 0; n < heads.q + heads.kv; ++n) rope(q + n * HEAD, cos + at, sin + at);
    const int32_t page = b.pages[b.first_page[plan.part_of[i]] + b.pos[i] / PAGE];
    for (int64_t g = 0; g < heads.kv; ++g) {
      const int64_t to = page * heads.page_elements() + g * PAGE * HEAD;
      store_kv(k_pool + to, v_pool + to, b.pos[i] % PAGE, k + g * HEAD, v + g * HEAD);
    }
  }
}

inline void attention_stage(std::atomic<int64_t>& next, const Tokens& b, const Plan& plan,
                            const T* qkv, const Heads& heads, const T* k_pool, const T* v_pool,
                            T* out) {
  const int64_t ratio = heads.q / heads.kv, jobs = plan.items.size() * heads.kv;
  const float scale = 1.f / std::sqrt(float(HEAD));
  for (int64_t j; (j = next.fetch_add(1)) < jobs;) {
    const Item& item = plan.items[j / heads.kv];
    const int64_t g = j % heads.kv;
    int64_t limit[MAX_ROWS];
    alignas(64) T q[MAX_ROWS * HEAD];
    alignas(64) float o[MAX_ROWS * HEAD];
    int n = 0;
    for (int64_t i = item.first; i < item.first + item.count; ++i)
      for (int64_t e = 0; e < ratio; ++e, ++n) {
        memcpy(q + n * HEAD, qkv + i * heads.width() + (g * ratio + e) * HEAD, HEAD * sizeof(T));
        limit[n] = b.pos[i];
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
  void operator()(int64_t r, int64_t p, f32x16 a, f32x16 b) const {
    narrow(y + r * n + p * PANEL, a);
    if (p * PANEL + LANES < n) narrow(y + r * n + p * PANEL + LANES, b);
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
