#include "heartbeat.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "bindings.h"
#include "quiet_thread.h"

namespace py = pybind11;

namespace gradian {

namespace {

constexpr std::chrono::milliseconds kTick{250};

}  // namespace

struct Heartbeat::State {
  State(double seconds, std::string text, int exit_code)
      : most(seconds / std::chrono::duration<double>(kTick).count()),
        message(std::move(text)),
        code(exit_code) {}

  // Counted, and not read off a clock: a process that was stopped for a while has missed none.
  void tick() {
    if (!expected) return;
    if (++missed <= most) return;
    const char* rest = message.data();
    std::size_t left = message.size();
    for (ssize_t done = 0; left > 0 && (done = ::write(STDERR_FILENO, rest, left)) > 0; rest += done) {
      left -= static_cast<std::size_t>(done);
    }
    ::_exit(code);
  }

  const double most;
  const std::string message;
  const int code;
  std::atomic<bool> expected{false};
  std::atomic<unsigned> missed{0};
};

Heartbeat::Heartbeat(double seconds, std::string message, int code)
    : state_(std::make_shared<State>(seconds, std::move(message), code)) {
  try {
    quiet_thread([state = std::weak_ptr<State>(state_)] {
      for (;;) {
        std::this_thread::sleep_for(kTick);
        const auto here = state.lock();
        if (!here) return;
        here->tick();
      }
    }).detach();
  } catch (const std::exception&) {
    // No thread is to be had.
  }
}

void Heartbeat::beat() {
  state_->missed = 0;
  state_->expected = true;
}

void Heartbeat::rest() { state_->expected = false; }

void bind_heartbeat(py::module_& module) {
  py::class_<Heartbeat>(module, "Heartbeat",
                        "Ends the process when nothing was heard of for too long; see "
                        "gradian.data.timelimit.")
      .def(py::init<double, std::string, int>(), py::arg("seconds"), py::arg("message"), py::arg("code"))
      .def("beat", &Heartbeat::beat)
      .def("rest", &Heartbeat::rest);
}

}  // namespace gradian
