// Maps stretches of a file whose length changes meanwhile, and brings them in on the second thread.
//
// Beside the sanitizers, a model of the file decides what must be refused and what the bytes must be.
#include "chunk_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "checked.h"
#include "input.h"

namespace {

using gradian::Mapping;
using gradian::ReadAhead;

constexpr std::size_t kMostOps = 40;
constexpr std::size_t kLongest = std::size_t{5} << 20;  // more than a few pieces of the second thread

// What every file begins with.
const std::vector<std::uint8_t>& pattern() {
  static const std::vector<std::uint8_t> bytes = [] {
    std::vector<std::uint8_t> made(kLongest);
    for (std::size_t i = 0; i < kLongest; ++i) {
      made[i] = static_cast<std::uint8_t>(i * 31 + (i >> 8) * 7 + (i >> 16));
    }
    return made;
  }();
  return bytes;
}

// A file in memory and what it holds: the beginning of the pattern, then zeros.
class File {
 public:
  explicit File(std::size_t length)
      : fd_(::memfd_create("rows", MFD_CLOEXEC)), length_(length), filled_(length) {
    EXPECT(fd_ >= 0);
    EXPECT(::pwrite(fd_, pattern().data(), length, 0) == static_cast<ssize_t>(length));
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  std::size_t length() const { return length_; }

  void resize(std::size_t length) {
    length_ = length;
    filled_ = std::min(filled_, length);
    EXPECT(::ftruncate(fd_, static_cast<off_t>(length)) == 0);
  }

  bool holds(std::size_t offset, std::size_t size) const {
    return size > 0 && offset <= length_ && size <= length_ - offset;
  }

  // Whether bytes are those of the file, as far as `kLook` at their beginning and their end tells.
  bool is_at(std::size_t offset, const char* bytes, std::size_t size) const {
    return same(offset, bytes, std::min(size, kLook)) &&
           (size <= kLook || same(offset + size - kLook, bytes + size - kLook, kLook));
  }

  bool is_unchanged(std::size_t offset) const {
    char found[kLook];
    const ssize_t size = ::pread(fd_, found, kLook, static_cast<off_t>(offset));
    return size > 0 && same(offset, found, static_cast<std::size_t>(size));
  }

 private:
  static constexpr std::size_t kLook = 5000;

  bool same(std::size_t offset, const char* bytes, std::size_t size) const {
    const std::size_t patterned = std::min(size, filled_ - std::min(filled_, offset));
    static const std::vector<char> zeros(kLook);
    return (patterned == 0 || std::memcmp(bytes, pattern().data() + offset, patterned) == 0) &&
           (patterned == size || std::memcmp(bytes + patterned, zeros.data(), size - patterned) == 0);
  }

  int fd_;
  std::size_t length_;
  std::size_t filled_;
};

struct Held {
  std::shared_ptr<const Mapping> mapping;
  std::size_t offset;
  std::size_t size;
  bool written;
};

// What the reader makes of rows: their size, or nothing where it does not fit into 64 bits.
std::optional<std::size_t> rows_size(std::size_t rows, std::size_t width, std::size_t item) {
  const bool fits = rows == 0 || width <= ~std::size_t{0} / rows / item;
  try {
    const std::size_t size = gradian::checked_product(rows, width, item);
    EXPECT(fits);
    return size;
  } catch (const std::overflow_error&) {
    EXPECT(!fits);
    return std::nullopt;
  }
}

std::shared_ptr<const Mapping> mapped(int fd, const File& file, std::size_t offset, std::size_t size) {
  const bool whole = fd == file.fd() && file.holds(offset, size);
  try {
    auto mapping = std::make_shared<const Mapping>(fd, offset, size);
    EXPECT(whole);
    return mapping;
  } catch (const std::invalid_argument&) {
    EXPECT(!whole);
  } catch (const std::overflow_error&) {
    EXPECT(!whole);
  } catch (const std::system_error&) {
    EXPECT(fd != file.fd());
  }
  return nullptr;
}

void expect_same(const Held& held, const File& file) {
  if (held.written || !file.holds(held.offset, held.size)) return;
  EXPECT(file.is_at(held.offset, static_cast<const char*>(held.mapping->data()), held.size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  File file(in.take<std::uint8_t>() % 16 == 0 ? kLongest : in.take<std::uint16_t>());
  auto ahead = std::make_unique<ReadAhead>(in.size());
  std::vector<Held> held;
  for (std::size_t op = 0; op < kMostOps && !in.empty(); ++op) {
    switch (in.take<std::uint8_t>() % 12) {
      case 0:
      case 1:
      case 2: {  // rows, as a reader maps them
        const std::size_t offset = in.size();
        const std::size_t rows = in.size();
        const std::size_t width = in.size();
        const auto bytes = rows_size(rows, width, in.take<std::uint8_t>() % 2 == 0 ? 2 : 4);
        if (!bytes) break;
        if (auto mapping = mapped(file.fd(), file, offset, *bytes)) {
          ahead->add(mapping);
          held.push_back({std::move(mapping), offset, *bytes, false});
        }
        break;
      }
      case 3: {  // a stretch that lies in the file or ends a little behind it
        const std::size_t offset = file.length() == 0 ? 0 : in.size() % file.length();
        const std::size_t left = file.length() - offset + in.take<std::uint8_t>() % 3;
        const std::size_t bytes = left - std::min(left, in.size() % (left + 1));
        if (auto mapping = mapped(file.fd(), file, offset, bytes)) {
          ahead->add(mapping);
          held.push_back({std::move(mapping), offset, bytes, false});
        }
        break;
      }
      case 4: {
        const std::size_t offset = in.size();
        if (const auto mapping = mapped(file.fd(), file, offset, in.size())) ahead->warm(mapping);
        break;
      }
      case 5:
        if (!held.empty()) held.erase(held.begin() + static_cast<std::ptrdiff_t>(in.below(held.size())));
        break;
      case 6:  // a caller may write to its tile
        if (!held.empty()) {
          Held& one = held[in.below(held.size())];
          if (file.holds(one.offset, one.size)) {
            std::memset(one.mapping->data(), 0x5A, std::min(one.size, std::size_t{1} << 16));
            one.written = true;
            EXPECT(file.is_unchanged(one.offset));
          }
        }
        break;
      case 7:  // cut short, while the second thread is at it
        file.resize(in.size() % (file.length() + 1));
        break;
      case 8:
        // Pages of an earlier, longer file come back as zeros; maps of them are of no row.
        held.clear();
        file.resize(std::min(file.length() + in.size() % kLongest, kLongest));
        break;
      case 9:
        ahead->stop();
        break;
      case 10:
        ahead = std::make_unique<ReadAhead>(in.size());
        break;
      default: {  // what is no file
        const bool folder = in.take<std::uint8_t>() % 2 == 0;
        const int other = folder ? ::open("/", O_RDONLY | O_DIRECTORY) : -1;
        const std::size_t offset = in.size();
        EXPECT(mapped(other, file, offset, in.size()) == nullptr);
        if (other >= 0) ::close(other);
        break;
      }
    }
    for (const Held& one : held) expect_same(one, file);
  }
  return 0;
}
