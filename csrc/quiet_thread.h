// A thread that takes no signals: they are for Python's own.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace gradian {

// Throws what std::thread throws where there is none to be had.
template <typename Body>
std::thread quiet_thread(Body&& body) {
  // A thread begins with the mask of the one that starts it.
  class Blocked {
   public:
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;

   private:
    sigset_t before_;
  };
  const Blocked blocked;
  return std::thread(std::forward<Body>(body));
}

}  // namespace gradian
