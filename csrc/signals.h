// Lets Ctrl-C through while compiled code runs for long without the interpreter.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <optional>

#include "watch.h"

namespace gradian {

// One for each call from Python, made and finished on the thread that called. Python runs the handlers of
// signals on its main thread alone: elsewhere nothing ever stops.
class SignalWatch final : public Watch {
 public:
  // Every now and then runs the handlers of signals that came.
  void poll() override {
    const auto now = Clock::now();
    if (now < next_ || stopped()) return;
    next_ = now + kInterval;
    const pybind11::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() == 0) return;
    error_.emplace();
    stop();
  }

  // When the pass is done, with the interpreter: throws what the handler raised.
  void finish() const {
    if (error_) throw pybind11::error_already_set(*error_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kInterval{50};

  Clock::time_point next_ = Clock::now() + kInterval;
  std::optional<pybind11::error_already_set> error_;
};

}  // namespace gradian
