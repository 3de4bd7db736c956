// Draws a token from a row of logits. The same as `engine/runner/sampler.py` does with torch, which
// sorts; here nothing is sorted but a few tokens where a filter ends, or the point lies.
#pragma once
#include <algorithm>
#include <vector>

#include "simd.h"

// How: softmax at a temperature, of the `top_k` most likely tokens, of the first that together
// exceed `top_p`, of those at least `min_p` times as likely as the first; where `point` lies in it.
struct Draw {
  float temperature;
  int64_t top_k;          // at least the vocabulary's size: no limit
  double top_p, min_p;    // 1 and 0: no limit
  double point;           // in [0, 1)
  bool is_filtered(int64_t vocab) const { return top_k < vocab || top_p < 1 || min_p > 0; }
};

constexpr int64_t TOKENS = 256;  // whose weights are summed, and passed over, together
constexpr int64_t SORTED = 64;   // as many at most, for one filter or point

// One thread's, reused from row to row.
class Drawer {
 public:
  // All memory that `draw` needs. Throws std::bad_alloc.
  void reserve(int64_t vocab) {
    const int64_t blocks = (vocab + TOKENS - 1) / TOKENS;
    weights_.resize(blocks * TOKENS);
    sums_.resize(blocks);
    most_.resize(blocks);
    top_.reserve(vocab);
  }

  int64_t draw(const float* logits, int64_t vocab, const Draw& asked) {
    const double sum = weigh(logits, vocab, asked.temperature);
    return asked.is_filtered(vocab) ? from_top(sum, asked) : from_all(sum * asked.point);
  }

 private:
  struct Token {
    float weight;
    int32_t id;
    bool operator<(const Token& other) const {
      return weight != other.weight ? weight > other.weight : id < other.id;
    }
  };

  std::vector<float> weights_;  // [vocab, and zeros up to whole blocks]; the largest is 1
  std::vector<double> sums_;    // of each block
  std::vector<float> most_;     // of each block
  std::vector<Token> top_;

  static f32x16 sixteen(const float* logits, int64_t i, int64_t vocab) {
    if (i + LANES <= vocab) return load<f32x16>(logits + i);
    float some[LANES];
    for (int64_t lane = 0; lane < LANES; ++lane)
      some[lane] = i + lane < vocab ? logits[i + lane] : -INFINITY;
    return load<f32x16>(some);
  }

  // exp((logit - largest) / temperature); what is below e^-87 of the largest is 0. Returns the sum.
  double weigh(const float* logits, int64_t vocab, float temperature) {
    f32x16 most = fill(-INFINITY);
    for (int64_t i = 0; i < vocab; i += LANES) most = vmax(most, sixteen(logits, i, vocab));
    const float largest = hmax(most);
    double total = 0;
    for (int64_t b = 0; b < int64_t(sums_.size()); ++b) {
      f32x16 sum{}, highest{};
      for (int64_t i = b * TOKENS; i < (b + 1) * TOKENS; i += LANES) {
        const f32x16 x = (sixteen(logits, i, vocab) - largest) / temperature;
        const f32x16 weight = x < -87.f ? f32x16{} : vexp(x);
        store(weights_.data() + i, weight);
        sum += weight;
        highest = vmax(highest, weight);
      }
      sums_[b] = hsum(sum);
      most_[b] = hmax(highest);
      total += sums_[b];
    }
    return total;
  }

  // The first token at which the sum of weights exceeds `target`, in the vocabulary's order.
  int64_t from_all(double target) const {
    double before = 0;
    int64_t block = 0;
    for (int64_t b = 0; b < int64_t(sums_.size()); ++b) {
      if (sums_[b] == 0) continue;
      block = b;
      if (target < before + sums_[b]) break;
      before += sums_[b];
    }
    int64_t found = block * TOKENS;
    double sum = before;
    for (int64_t i = block * TOKENS; i < (block + 1) * TOKENS; ++i) {
      if (weights_[i] == 0) continue;  // never drawn, wherever rounding puts the point
      found = i;
      sum += weights_[i];
      if (sum > target) break;
    }
    return found;
  }

  // The same in the order of weights, of those that the filters keep. Only those are looked at that
  // may be kept: a lower bound on their weight is tried, and lower ones where a filter reaches on.
  int64_t from_top(double sum, const Draw& asked) {
    const double limit = asked.top_p < 1 ? asked.top_p * sum : INFINITY;
    for (float rung : {0x1p-4f, 0x1p-8f, 0x1p-14f, 0x1p-24f, 0.f}) {
      const float least = std::max(rung, float(asked.min_p));
      const double mass = collect(least);
      if (least <= float(asked.min_p) || int64_t(top_.size()) >= asked.top_k || mass > limit) break;
    }
    const Front kept = front(std::min(int64_t(top_.size()), asked.top_k), limit);
    return top_[front(kept.count, kept.mass * asked.point).count - 1].id;
  }

  struct Front {
    int64_t count;
    double mass;
  };

  // Brings the likeliest tokens to the front, in order where it ends: as few as together exceed
  // `limit`, and `most` if all of those do not. Halves what is in question instead of sorting it.
  Front front(int64_t most, double limit) {
    int64_t lo = 0, hi = top_.size();
    double mass = 0;
    while (hi - lo > SORTED) {
      const int64_t middle = (lo + hi) / 2;
      std::nth_element(top_.begin() + lo, top_.begin() + middle, top_.begin() + hi);
      double upper = 0;
      for (int64_t n = lo; n < middle; ++n) upper += top_[n].weight;
      if (middle >= most || mass + upper > limit) {
        hi = middle;
      } else {
        lo = middle;
        mass += upper;
      }
    }
    std::sort(top_.begin() + lo, top_.begin() + hi);
    while (lo < most && lo < hi && mass <= limit) mass += top_[lo++].weight;
    return {lo, mass};
  }

  // All tokens of at least such a weight, and of more than 0; returns their sum.
  double collect(float least) {
    top_.clear();
    double mass = 0;
    for (int64_t b = 0; b < int64_t(most_.size()); ++b) {
      if (most_[b] < least || most_[b] == 0) continue;
      for (int64_t i = b * TOKENS; i < (b + 1) * TOKENS; ++i)
        if (weights_[i] >= least && weights_[i] > 0) {
          top_.push_back({weights_[i], int32_t(i)});
          mass += weights_[i];
        }
    }
    return mass;
  }
};
