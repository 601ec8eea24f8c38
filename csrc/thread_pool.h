// Worker threads that stay, and a barrier for work in lockstep.
//
// A parallel region never decides a number: callers split work on borders that depend on the shapes alone and
// combine partial results in one order, whatever the number of threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace gradian {

// Lets `parties` threads go on when all have arrived. Spins briefly, then gives the core away: on a busy
// machine the thread waited for may need it.
class Barrier {
 public:
  explicit Barrier(std::size_t parties) : parties_(parties) {}
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  void wait();

 private:
  const std::size_t parties_;
  std::atomic<std::size_t> arrived_{0};
  std::atomic<std::size_t> generation_{0};
};

// `run(n, body)` calls body(0) .. body(n - 1) at once, body(0) on the calling thread, and returns when all
// are done. An exception from any of them is rethrown; bodies that meet at a Barrier must not throw.
class ThreadPool {
 public:
  ThreadPool() = default;
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // How many bodies can share out `tasks` on `threads` threads, at least one: fewer where the system gives no
  // more threads.
  std::size_t most(std::size_t threads, std::size_t tasks);

  // As many as `most` gave, or fewer. `meanwhile` is called now and then while the calling thread has nothing
  // left to do but wait; it must not throw.
  void run(std::size_t n, const std::function<void(std::size_t)>& body,
           const std::function<void()>& meanwhile = {});

  // Calls body(task) for every task below `tasks`, on at most `threads` threads, in no particular order.
  void for_each(std::size_t tasks, std::size_t threads, const std::function<void(std::size_t)>& body);

 private:
  void start_worker();
  void work(std::size_t worker, std::size_t seen);

  std::mutex region_;  // one parallel region at a time
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  std::vector<std::thread> workers_;
  const std::function<void(std::size_t)>* body_ = nullptr;
  std::size_t active_ = 0;  // workers of this region
  std::size_t generation_ = 0;
  std::size_t pending_ = 0;
  std::exception_ptr error_;
  bool stop_ = false;
};

// The pool of this process. A forked child gets a new one: threads do not survive a fork.
ThreadPool& pool();

}  // namespace gradian
