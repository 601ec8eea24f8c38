// Maps stretches of chunk files, and brings them in on a second thread before they are read.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

namespace gradian {

// Touching one page maps its neighbours that are in memory; this is how far, unless the system is set
// otherwise. A shorter map is not worth a second thread.
inline constexpr std::size_t kFaultAround = std::size_t{64} << 10;

// A private map of a stretch of a file, writable without reaching the file. Unmapped when its last owner
// goes.
class Mapping {
 public:
  // Throws std::invalid_argument if the stretch is empty or not inside the file, std::system_error if the
  // system refuses.
  Mapping(int fd, std::size_t offset, std::size_t size);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void* data() const { return base_ + lead_; }

  // From the beginning of the page that the stretch begins in.
  char* base() const { return base_; }
  std::size_t length() const { return length_; }

 private:
  char* base_ = nullptr;
  std::size_t lead_;
  std::size_t length_;
};

// Brings maps in, in order, on a thread that begins with the first and ends with this object.
//
// Nothing here fails for the reader: what was not brought in comes when it is read. Pages are asked for by
// calls that report a file cut short, so this thread takes no bus error.
class ReadAhead {
 public:
  // At most `limit` bytes are asked of the disk and not there yet.
  explicit ReadAhead(std::size_t limit) : limit_(limit) {}
  ~ReadAhead() { stop(); }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Queues a map that a reader holds, for as long as the reader holds it.
  void add(const std::shared_ptr<const Mapping>& mapping) { push({mapping, nullptr, mapping->length()}); }

  // Queues a map that no reader holds: its pages go into the page cache, for a later map of them. More than
  // `limit` bytes of such maps are not kept.
  void warm(const std::shared_ptr<const Mapping>& mapping) { push({mapping, mapping, mapping->length()}); }

  // Ends the thread, after one piece at most, and forgets the queue.
  void stop();

 private:
  struct Job {
    std::weak_ptr<const Mapping> mapping;
    std::shared_ptr<const Mapping> kept;  // of a warm job alone
    std::size_t length;
    std::size_t asked = 0;  // bytes asked of the disk
    std::size_t there = 0;  // bytes whose pages are in place
  };

  void push(Job job);
  void work();
  void step(std::unique_lock<std::mutex>& lock);

  const std::size_t limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queue_;       // only the thread takes jobs out
  std::size_t kept_bytes_ = 0;  // of the warm jobs in it
  std::thread thread_;
  bool stop_ = false;
};

}  // namespace gradian
