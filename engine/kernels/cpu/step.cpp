// A Llama step as one call, with one team of threads, and the same stages as single calls. Plain C
// functions over raw pointers: no header of torch or Python is needed, so it builds in seconds and
// outlives their versions. `library.py` declares the same structs and owns all memory but scratch.
#include <new>

#include "sample.h"
#include "stages.h"

namespace {

struct Scratch {  // grows to the largest step seen
  void* data = nullptr;
  size_t bytes = 0;
  ~Scratch() { free(); }
  void free() { ::operator delete(data, std::align_val_t(64)); }
  template <class E>
  E* get(int64_t n) {
    const size_t want = n * sizeof(E);
    if (want > bytes) {
      free();
      data = nullptr;
      bytes = 0;
      data = ::operator new(want, std::align_val_t(64));
      bytes = want;
    }
    return static_cast<E*>(data);
  }
};

struct Best {  // each thread's best token of each row, then the winner of all threads
  std::vector<float> value;
  std::vector<int64_t> arg;
  std::vector<uint8_t> bad;

  void reset(int64_t n) {
    value.assign(n, -INFINITY);
    arg.assign(n, 0);
    bad.assign(n, 0);
  }
  void join(int64_t rows, int threads, int64_t* chosen, uint8_t* is_finite) const {
    for (int64_t r = 0; r < rows; ++r) {
      int64_t win = r;
      uint8_t any_bad = bad[r];
      for (int64_t c = r + rows; c < threads * rows; c += rows) {
        if (value[c] > value[win]) win = c;
        any_bad |= bad[c];
      }
      if (chosen) chosen[r] = arg[win];
      is_finite[r] = !any_bad;
    }
  }
};

}  // namespace

extern "C" {

struct Shape {
  int64_t hidden, ffn, heads, kv_heads, vocab, layers;
  float eps;
};
struct Tables {
  const T *embed, *norm, *head;  // head is packed
  const float *cos, *sin;
};
struct Layer {
  const T *norm1, *qkv, *o, *norm2, *gate_up, *down;  // all but the norms packed
  const T *qkv_bias, *q_norm, *k_norm;                // null where the model has none
  T *k, *v;
};
struct Step {
  Tokens tokens;
  const int64_t *ids, *rows;  // rows: the tokens whose hidden state or next token is wanted
  int64_t outs;
  int64_t threads;
  T* hidden;           // [outs][hidden] after the last norm, or null to run the head instead
  int64_t* chosen;     // [outs] most likely token
  uint8_t* is_finite;  // [outs]
  int64_t* stalled_ns;  // [1] that threads waited for others, all together
};

struct Model {
  Shape shape;
  Tables tables;
  std::vector<Layer> layers;
  Plan plan;
  Best best;
  Scratch x, x_last, h, qkv, att, mid;
};

Model* quiesce_new(const Shape* shape, const Tables* tables) {
  Model* m = new (std::nothrow) Model{*shape, *tables, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  if (m) m->layers.resize(shape->layers);
  return m;
}
void quiesce_free(Model* m) { delete m; }
void quiesce_set_layer(Model* m, int64_t i, const Layer* layer) { m->layers[i] = *layer; }

// All entry points below return 0, or 1 when memory ran out.

int quiesce_forward(Model* model, const Step* step) try {
  const Shape& s = model->shape;
  const Tables& tables = model->tables;
  const Tokens& b = step->tokens;
  const Heads heads{s.heads, s.kv_heads};
  const int64_t m = b.tokens, outs = step->outs, width = heads.width(), att_width = s.heads * HEAD;
  float* x = model->x.get<float>(m * s.hidden);
  T* h = model->h.get<T>(std::max(m, outs) * s.hidden);
  T *qkv = model->qkv.get<T>(m * width), *att = model->att.get<T>(m * att_width);
  T* mid = model->mid.get<T>(m * s.ffn);
  // What the last layer does behind its attention is only wanted of some tokens.
  const Wanted all{nullptr, m}, last{outs < m ? step->rows : nullptr, outs < m ? outs : m};
  float* x_last = last.rows ? model->x_last.get<float>(outs * s.hidden) : x;
  const Plan& plan = model->plan;
  model->plan.make(b, last, heads);
  if (!step->hidden) model->best.reset(step->threads * outs);
  std::vector<std::atomic<int64_t>> next(s.layers);
  Barrier barrier;
  int size = 1;

  run_team(step->threads, [&](Team t) {
    auto sync = [&] { barrier.wait(t.size); };
    auto mm = [&](const T* in, int64_t k, int64_t rows, const T* w, int64_t n, auto&& out) {
      gemm(in, k, rows, Packed{w, n, k}, t.id, t.size, out);
    };
    if (t.id == 0) size = t.size;
    for (int64_t i = t.lo(m); i < t.hi(m); ++i)
      for (int64_t c = 0; c < s.hidden; c += LANES)
        store(x + i * s.hidden + c, widen(tables.embed + step->ids[i] * s.hidden + c));
    for (int64_t l = 0; l < s.layers; ++l) {
      const Layer& w = model->layers[l];
      const bool is_last = l == s.layers - 1;
      const Wanted& wanted = is_last ? last : all;
      float* y = is_last ? x_last : x;
      norm_stage(t, x, nullptr, m, w.norm1, s.hidden, s.eps, h);
      sync();
      mm(h, s.hidden, m, w.qkv, width, Write{qkv, width, w.qkv_bias});
      sync();
      rope_store_stage(t, b, plan, qkv, heads, {w.q_norm, w.k_norm, s.eps}, tables.cos, tables.sin,
                       w.k, w.v);
      if (y != x)
        for (int64_t i = t.lo(outs); i < t.hi(outs); ++i)
          memcpy(y + i * s.hidden, x + step->rows[i] * s.hidden, s.hidden * sizeof(float));
      sync();
      attention_stage(next[l], b, is_last ? plan.last : plan.all, wanted, qkv, heads, w.k, w.v, att);
      sync();
      mm(att, att_width, wanted.count, w.o, s.hidden, Add{y, s.hidden});
      sync();
      norm_stage(t, y, nullptr, wanted.count, w.norm2, s.hidden, s.eps, h);
      sync();
      mm(h, s.hidden, wanted.count, w.gate_up, 2 * s.ffn, SiluMul{mid, s.ffn});
      sync();
      mm(mid, s.ffn, wanted.count, w.down, s.hidden, Add{y, s.hidden});
      sync();
    }
    norm_stage(t, x_last, last.rows ? nullptr : step->rows, outs, tables.norm, s.hidden, s.eps,
               step->hidden ? step->hidden : h);
    if (step->hidden || !outs) return;
    sync();
    Best& best = model->best;
    const int64_t at = t.id * outs;
    mm(h, s.hidden, outs, tables.head, s.vocab,
       Logits{nullptr, s.vocab, best.value.data() + at, best.arg.data() + at, best.bad.data() + at});
  });
  if (!step->hidden) model->best.join(outs, size, step->chosen, step->is_finite);
  *step->stalled_ns = barrier.stalled_ns;
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

// logits: [rows][vocab] fp32 of hidden states that `quiesce_forward` gave.
int quiesce_logits(Model* model, const T* hidden, int64_t rows, int64_t threads, float* logits,
                   uint8_t* is_finite) try {
  const Shape& s = model->shape;
  Best& best = model->best;
  best.reset(threads * rows);
  int size = 1;
  run_team(threads, [&](Team t) {
    if (t.id == 0) size = t.size;
    const int64_t at = t.id * rows;
    gemm(hidden, s.hidden, rows, Packed{model->tables.head, s.vocab, s.hidden}, t.id, t.size,
         Logits{logits, s.vocab, best.value.data() + at, best.arg.data() + at, best.bad.data() + at});
  });
  best.join(rows, size, nullptr, is_finite);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

// tokens: [count], drawn from the named rows of logits [..][vocab]. Each row's is the same whatever
// is drawn beside it.
int quiesce_draw(const float* logits, int64_t vocab, const int64_t* rows, const Draw* draws,
                 int64_t count, int64_t threads, int64_t* tokens) try {
  static thread_local std::vector<Drawer> drawers;  // one a member of the team, kept for the next step
  const int64_t size = std::min(threads, count);
  if (int64_t(drawers.size()) < size) drawers.resize(size);
  for (Drawer& drawer : drawers) drawer.reserve(vocab);
  Drawer* each = drawers.data();
  std::atomic<int64_t> next{0};
  run_team(size, [&](Team t) {
    for (int64_t i; (i = next.fetch_add(1)) < count;)
      tokens[i] = each[t.id].draw(logits + rows[i] * vocab, vocab, draws[i]);
  });
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

int64_t quiesce_packed_elements(int64_t n, int64_t k) { return Packed{nullptr, n, k}.panels() * PANEL * k; }

void quiesce_pack(const T* w, int64_t n, int64_t k, int halves, int64_t threads, T* out) {
  const int64_t panels = Packed{nullptr, n, k}.panels();
  run_team(threads, [&](Team t) {
    for (int64_t p = t.lo(panels); p < t.hi(panels); ++p) pack_panel(w, n, k, halves, p, out);
  });
}

// Single ops, for tests and for callers that need something between two stages.

void quiesce_linear(const T* x, int64_t m, int64_t k, const T* w, int64_t n, int64_t threads, T* y) {
  run_team(threads, [&](Team t) {
    gemm(x, k, m, Packed{w, n, k}, t.id, t.size, Write{y, n, nullptr});
  });
}

// qkv: [tokens][(heads + 2 kv_heads) * HEAD], rotated in place; out: [tokens][heads * HEAD].
int quiesce_attend(const Tokens* b, T* qkv, int64_t heads, int64_t kv_heads, const float* cos,
                   const float* sin, T* k, T* v, int64_t threads, T* out) try {
  const Heads h{heads, kv_heads};
  Plan plan;
  const Wanted all{nullptr, b->tokens};
  plan.make(*b, all, h);
  std::atomic<int64_t> next{0};
  Barrier barrier;
  run_team(threads, [&](Team t) {
    rope_store_stage(t, *b, plan, qkv, h, {nullptr, nullptr, 0}, cos, sin, k, v);
    barrier.wait(t.size);
    attention_stage(next, *b, plan.all, all, qkv, h, k, v, out);
  });
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

}  // extern "C"
