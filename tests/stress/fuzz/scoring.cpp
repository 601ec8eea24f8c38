// Scores rows of mapped files and of arrays of their exact size, in every instruction set of this machine.
//
// Rows of small whole numbers must give exactly the dots that a plain loop gives; of any bits, the same bits
// whatever the number of threads. A pass that is told to stop must end.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "chunk_reader.h"
#include "input.h"
#include "isa.h"
#include "passes.h"
#include "row_kernels.h"
#include "stored_rows.h"
#include "watch.h"

namespace {

using gradian::Dtype;
using gradian::Isa;
using gradian::Mapping;
using gradian::StoredRows;

constexpr std::size_t kMostRows = 64;       // of all segments: sums of whole numbers stay exact in float32
constexpr std::size_t kMostColumns = 2500;  // several pieces of several slices
constexpr std::size_t kMostQueries = 20;

// A whole number from -4 to 4 in a storage dtype.
void store(int number, Dtype dtype, char* to) {
  const auto value = static_cast<float>(number);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  static constexpr std::uint16_t kHalf[] = {0x0000, 0x3C00, 0x4000, 0x4200, 0x4400};
  auto half = static_cast<std::uint16_t>(bits >> 16);
  if (dtype == Dtype::kFloat16) {
    half = static_cast<std::uint16_t>(kHalf[number < 0 ? -number : number] | (number < 0 ? 0x8000 : 0));
  }
  if (dtype == Dtype::kFloat32) {
    std::memcpy(to, &bits, 4);
  } else {
    std::memcpy(to, &half, 2);
  }
}

int whole_number(std::size_t i, std::uint8_t seed) {
  return static_cast<int>((i * 2654435761U + seed * 40503U) >> 7 & 0xFF) % 9 - 4;
}

// The rows of one chunk: an array of exactly that size, or a map of a file that ends with them.
class Segment {
 public:
  Segment(const std::vector<char>& bytes, bool in_file, std::size_t lead) {
    if (!in_file || bytes.empty()) {
      array_.reset(new char[bytes.size()]);
      std::copy(bytes.begin(), bytes.end(), array_.get());
      return;
    }
    const int fd = ::memfd_create("rows", MFD_CLOEXEC);
    EXPECT(fd >= 0);
    EXPECT(::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(lead)) ==
           static_cast<ssize_t>(bytes.size()));
    mapping_ = std::make_unique<const Mapping>(fd, lead, bytes.size());
    ::close(fd);
  }

  const void* data() const { return mapping_ ? mapping_->data() : array_.get(); }

 private:
  std::unique_ptr<char[]> array_;
  std::unique_ptr<const Mapping> mapping_;
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// The same values; which of its NaN a sum keeps is left to the compiler.
bool same_values(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return x == y || (x != x && y != y); });
}

// Stops a pass when it asks for the `polls`-th time; 0 never.
class Stop final : public gradian::Watch {
 public:
  explicit Stop(std::size_t polls) : left_(polls) {}
  void poll() override {
    if (left_ > 0 && --left_ == 0) stop();
  }

 private:
  std::size_t left_;
};

struct Scores {
  std::vector<double> dots, kept, total;
  std::vector<float> gram;
};

Scores score(const StoredRows& rows, const std::vector<float>& queries, std::size_t m,
             const std::vector<double>& scale, std::size_t threads, Isa isa, std::size_t polls = 0) {
  const std::size_t n = rows.size();
  Scores out{std::vector<double>(n * m), std::vector<double>(n * m), std::vector<double>(m * rows.columns()),
             std::vector<float>(n * n)};
  Stop dots(polls);
  gradian::query_dots(rows, queries.data(), m, threads, isa, out.dots.data(), dots);
  Stop accumulate(polls);
  gradian::datainf_accumulate(rows, queries.data(), m, scale.data(), threads, isa, out.kept.data(),
                              out.total.data(), accumulate);
  Stop gram(polls);
  gradian::gram(rows, threads, isa, out.gram.data(), gram);
  return out;
}

// The same by plain loops over whole numbers.
Scores truth(const std::vector<int>& rows, const std::vector<float>& queries, std::size_t m,
             const std::vector<double>& scale, std::size_t columns) {
  const std::size_t n = scale.size();
  Scores out{std::vector<double>(n * m), {}, std::vector<double>(m * columns), std::vector<float>(n * n)};
  for (std::size_t i = 0; i < n; ++i) {
    const int* row = rows.data() + i * columns;
    for (std::size_t q = 0; q < m; ++q) {
      double dot = 0.0;
      for (std::size_t c = 0; c < columns; ++c) dot += row[c] * static_cast<double>(queries[q * columns + c]);
      out.dots[i * m + q] = dot;
      for (std::size_t c = 0; c < columns; ++c) out.total[q * columns + c] += dot * scale[i] * row[c];
    }
    for (std::size_t j = 0; j < n; ++j) {
      int product = 0;
      for (std::size_t c = 0; c < columns; ++c) product += row[c] * rows[j * columns + c];
      out.gram[i * n + j] = static_cast<float>(product);
    }
  }
  out.kept = out.dots;
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  const auto dtype = static_cast<Dtype>(in.take<std::uint8_t>() % 3);
  const std::size_t item = gradian::item_size(dtype);
  const std::size_t columns = in.below(in.take<std::uint8_t>() % 8 == 0 ? kMostColumns : 70);
  const std::size_t m = in.take<std::uint8_t>() % kMostQueries;
  const std::size_t threads = in.take<std::uint8_t>() % 4;
  const bool exact = in.take<std::uint8_t>() % 2 == 0;
  const auto seed = in.take<std::uint8_t>();

  StoredRows rows(dtype, columns);
  std::vector<Segment> segments;
  std::vector<int> numbers;
  for (std::size_t s = in.take<std::uint8_t>() % 5; s > 0; --s) {
    // Of wide rows fewer: a run should take no time.
    const std::size_t most = columns < 100 ? kMostRows : kMostRows / 8;
    const std::size_t count = std::min(in.take<std::uint8_t>() % most, kMostRows - rows.size());
    std::vector<char> bytes(count * columns * item);
    for (std::size_t i = 0; i < count * columns; ++i) {
      if (exact) {
        numbers.push_back(whole_number(numbers.size(), seed));
        store(numbers.back(), dtype, bytes.data() + i * item);
      } else {
        const std::uint32_t bits =
            in.empty() ? static_cast<std::uint32_t>((i + seed) * 2654435761U) : in.take<std::uint32_t>();
        std::memcpy(bytes.data() + i * item, &bits, item);
      }
    }
    // Rows begin anywhere in a file: a store aligns them to a number's size, and other callers may not.
    const std::size_t lead = in.take<std::uint16_t>();
    segments.emplace_back(bytes, in.take<std::uint8_t>() % 2 == 0, lead);
    rows.append(segments.back().data(), count);
  }
  const auto polls = in.take<std::uint8_t>();
  const std::size_t n = rows.size();
  std::vector<float> queries(m * columns);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const std::uint32_t bits = in.take<std::uint32_t>() ^ static_cast<std::uint32_t>(i * 40503U);
    std::memcpy(&queries[i], &bits, 4);
    if (exact) queries[i] = static_cast<float>(whole_number(i, static_cast<std::uint8_t>(seed + 1)));
  }
  std::vector<double> scale(n);
  for (std::size_t i = 0; i < n; ++i) scale[i] = i % 2 == 0 ? 1.0 : -0.5;

  for (const Isa isa : gradian::supported_isas()) {
    if (polls > 0) score(rows, queries, m, scale, threads, isa, polls);
    const Scores alone = score(rows, queries, m, scale, 1, isa);
    const Scores shared = score(rows, queries, m, scale, threads, isa);
    EXPECT(same_bits(alone.dots, shared.dots));
    EXPECT(same_bits(alone.kept, shared.kept));
    EXPECT(same_bits(alone.total, shared.total));
    EXPECT(same_bits(alone.gram, shared.gram));
    EXPECT(same_values(alone.dots, alone.kept));
    if (!exact) continue;
    const Scores wanted = truth(numbers, queries, m, scale, columns);
    EXPECT(alone.dots == wanted.dots);
    EXPECT(alone.total == wanted.total);
    EXPECT(alone.gram == wanted.gram);
  }
  return 0;
}
