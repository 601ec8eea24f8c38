// Ends the process when nothing was heard of for too long.
//
// Nothing in Python can: code that holds the interpreter's lock in one long call keeps every other thread of
// it out.
#pragma once

#include <memory>
#include <string>

namespace gradian {

class Heartbeat {
 public:
  // `message` goes to standard error before the process ends with `code`. Without a thread nothing is
  // watched.
  Heartbeat(double seconds, std::string message, int code);

  // The next one must come within `seconds`.
  void beat();

  // None has to come.
  void rest();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace gradian
