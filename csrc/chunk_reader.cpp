#include "chunk_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "checked.h"
#include "quiet_thread.h"

#if defined(__linux__) && !defined(MADV_POPULATE_READ)
#define MADV_POPULATE_READ 22  // since Linux 5.14
#endif

namespace gradian {

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  // between two looks at the queue
// A system may cut one request for pages to its largest transfer.
constexpr std::size_t kRequest = std::size_t{128} << 10;
std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

// Whether the piece has to be fetched, as far as its first page tells.
bool is_missing(char* piece) {
#if defined(__linux__)
  unsigned char resident = 0;
  return ::mincore(piece, page_size(), &resident) == 0 && (resident & 1) == 0;
#else
  (void)piece;
  return true;
#endif
}

void request(char* piece, std::size_t size) {
  for (std::size_t at = 0; at < size; at += kRequest) {
    ::madvise(piece + at, std::min(kRequest, size - at), MADV_WILLNEED);
  }
}

// Waits for the pages of a piece and maps them, without copying any.
void populate(char* piece, std::size_t size) {
#if defined(__linux__)
  for (std::size_t at = 0; at < size; at += kFaultAround) {
    // An old kernel knows no such request; then the reader maps them.
    if (::madvise(piece + at, page_size(), MADV_POPULATE_READ) != 0) return;
  }
#else
  (void)piece;
  (void)size;
#endif
}

}  // namespace

Mapping::Mapping(int fd, std::size_t offset, std::size_t size) : lead_(offset % page_size()), length_(0) {
  struct stat found{};
  if (::fstat(fd, &found) != 0) throw std::system_error(errno, std::generic_category());
  if (size == 0 || checked_sum(offset, size) > static_cast<std::size_t>(found.st_size)) {
    throw std::invalid_argument("the rows are not inside the file");
  }
  const std::size_t length = lead_ + size;
  // Few pages are ever written to: a system that counts all of them as memory would refuse large maps.
  void* const base = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd,
                            static_cast<off_t>(offset - lead_));
  if (base == MAP_FAILED) throw std::system_error(errno, std::generic_category());
  base_ = static_cast<char*>(base);
  length_ = length;
  ::madvise(base_, length_, MADV_SEQUENTIAL);
}

Mapping::~Mapping() { ::munmap(base_, length_); }

void ReadAhead::push(Job job) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stop_ || limit_ == 0) return;
    if (job.kept) {
      if (kept_bytes_ + job.length > limit_ + page_size()) return;
      kept_bytes_ += job.length;
    }
    if (!thread_.joinable()) {
      try {
        thread_ = quiet_thread([this] { work(); });
      } catch (const std::exception&) {
        stop_ = true;  // no thread is to be had: the reader does without
        return;
      }
    }
    queue_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void ReadAhead::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  queue_.clear();
}

void ReadAhead::work() {
#if defined(__linux__)
  // Where no core is free, whoever computes comes first: its pages then come when it touches them.
  ::setpriority(PRIO_PROCESS, 0, 19);  // of this thread alone
#endif
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    step(lock);
  }
}

// One piece of work; the lock is let go while the system does it. References into the queue stay good
// meanwhile: others only add at its end.
void ReadAhead::step(std::unique_lock<std::mutex>& lock) {
  // First ask for as much as may be under way, then wait for what was asked for first.
  std::size_t under_way = 0;
  for (Job& job : queue_) {
    const std::size_t left = job.length - job.asked;
    if (left > 0 && under_way < limit_) {
      if (const auto mapping = job.mapping.lock()) {
        char* const piece = mapping->base() + job.asked;
        const std::size_t size = std::min(kPiece, left);
        lock.unlock();
        if (is_missing(piece)) request(piece, size);
        lock.lock();
        job.asked += size;
        return;
      }
    }
    under_way += job.asked - job.there;
  }
  Job& job = queue_.front();
  const auto mapping = job.mapping.lock();
  if (!mapping || job.kept || job.there == job.length) {
    if (job.kept) kept_bytes_ -= job.length;
    queue_.pop_front();
    return;
  }
  const std::size_t size = std::min(kPiece, job.asked - job.there);
  lock.unlock();
  populate(mapping->base() + job.there, size);
  lock.lock();
  job.there += size;
}

}  // namespace gradian
