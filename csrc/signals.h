// Lets Ctrl-C through while compiled code runs for long without the interpreter.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <optional>

namespace gradian {

// One for each call from Python, made and finished on the thread that called. Python runs the handlers of
// signals on its main thread alone: elsewhere nothing ever stops.
class SignalWatch {
 public:
  // On the calling thread, as often as one likes: every now and then runs the handlers of signals that came.
  void poll() {
    const auto now = Clock::now();
    if (now < next_ || stopped()) return;
    next_ = now + kInterval;
    const pybind11::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() == 0) return;
    error_.emplace();
    stopped_.store(true, std::memory_order_relaxed);
  }

  // On any thread: whether a handler raised, so that what is computed is no longer wanted.
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

  // On the calling thread, when all others are done: throws what the handler raised.
  void finish() {
    if (error_) throw pybind11::error_already_set(*error_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kInterval{50};

  Clock::time_point next_ = Clock::now() + kInterval;
  std::optional<pybind11::error_already_set> error_;
  std::atomic<bool> stopped_{false};
};

}  // namespace gradian
