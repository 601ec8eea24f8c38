#include "thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

namespace gradian {

namespace {

constexpr int kSpins = 2000;
constexpr std::chrono::milliseconds kMeanwhile{50};

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

ThreadPool* instance = nullptr;

}  // namespace

void Barrier::wait() {
  const std::size_t generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == parties_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    return;
  }
  for (int spin = 0; generation_.load(std::memory_order_acquire) == generation; ++spin) {
    if (spin < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::work(std::size_t worker, std::size_t seen) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    start_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    if (worker >= active_) continue;
    const std::function<void(std::size_t)>* body = body_;
    lock.unlock();
    std::exception_ptr error;
    try {
      (*body)(worker + 1);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
    if (--pending_ == 0) done_.notify_one();
  }
}

void ThreadPool::start_worker() {
  const std::size_t worker = workers_.size();
  workers_.emplace_back([this, worker, seen = generation_] { work(worker, seen); });
}

std::size_t ThreadPool::most(std::size_t threads, std::size_t tasks) {
  const std::size_t wanted = std::max<std::size_t>(1, std::min(threads, tasks));
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    while (workers_.size() + 1 < wanted) start_worker();
  } catch (const std::exception&) {
    // Of an address space or a number of threads that is limited, nothing is left: what is there has to do.
  }
  return std::min(wanted, workers_.size() + 1);
}

void ThreadPool::run(std::size_t n, const std::function<void(std::size_t)>& body,
                     const std::function<void()>& meanwhile) {
  if (n == 0) return;
  if (n == 1) {
    body(0);
    return;
  }
  std::lock_guard<std::mutex> region(region_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // Started before the region opens: a system that refuses a thread must leave no region half open.
    while (workers_.size() + 1 < n) start_worker();
    body_ = &body;
    active_ = n - 1;
    pending_ = n - 1;
    error_ = nullptr;
    ++generation_;
  }
  start_.notify_all();
  std::exception_ptr error;
  try {
    body(0);
  } catch (...) {
    error = std::current_exception();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const auto done = [&] { return pending_ == 0; };
  while (meanwhile && !done_.wait_for(lock, kMeanwhile, done)) {
    lock.unlock();
    meanwhile();
    lock.lock();
  }
  done_.wait(lock, done);
  body_ = nullptr;
  if (!error) error = error_;
  error_ = nullptr;
  if (error) std::rethrow_exception(error);
}

void ThreadPool::for_each(std::size_t tasks, std::size_t threads,
                          const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next{0};
  run(most(threads, tasks), [&](std::size_t) {
    for (std::size_t task = next++; task < tasks; task = next++) body(task);
  });
}

ThreadPool& pool() {
  static const bool registered = [] {
    instance = new ThreadPool();
    // The parent's workers do not exist in the child: their pool is left behind, not destroyed.
    pthread_atfork(nullptr, nullptr, [] { instance = new ThreadPool(); });
    return true;
  }();
  (void)registered;
  return *instance;
}

}  // namespace gradian
