// Whether what is computed is still wanted, asked while it is computed.
#pragma once

#include <atomic>

namespace gradian {

class Watch {
 public:
  Watch() = default;
  virtual ~Watch() = default;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // On the thread that called the pass, as often as one likes. Must not throw.
  virtual void poll() = 0;

  // On any thread: whether the pass is to end as soon as it can, with anything as its result.
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

 protected:
  void stop() { stopped_.store(true, std::memory_order_relaxed); }

 private:
  std::atomic<bool> stopped_{false};
};

}  // namespace gradian
