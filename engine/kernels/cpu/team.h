// The threads that carry out one step together, and where they wait for each other.
#pragma once
#include <omp.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>

struct Team {
  int id, size;
  int64_t lo(int64_t n) const { return n * id / size; }
  int64_t hi(int64_t n) const { return n * (id + 1) / size; }
};

template <class F>
void run_team(int threads, F&& work) {
#pragma omp parallel num_threads(threads)
  work(Team{omp_get_thread_num(), omp_get_num_threads()});
}

// A step has some 240 barriers, a few microseconds apart. Members spin, and yield the core once
// one of them seems descheduled: plain spinning took up to 3 s a step on a box with load 13. How
// long they waited so is added up, for who chooses the number of threads.
struct Barrier {
  std::atomic<int> arrived{0}, phase{0};
  std::atomic<int64_t> stalled_ns{0};

  void wait(int size) {
    const int seen = phase.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      arrived.store(0, std::memory_order_relaxed);
      phase.store(seen + 1, std::memory_order_release);
      return;
    }
    for (int n = 0; n < 20000; ++n) {
      if (phase.load(std::memory_order_acquire) != seen) return;
      asm volatile("" ::: "memory");
    }
    using clock = std::chrono::steady_clock;
    const auto start = clock::now();
    while (phase.load(std::memory_order_acquire) == seen) sched_yield();
    stalled_ns += std::chrono::nanoseconds(clock::now() - start).count();
  }
};
