// Writes gradient rows in place into a chunk file whose space is allocated: by pwritev, never through a
// shared map, so that a full disk is an error of a call and not a signal. The squared norm of a row is summed
// while the row is in cache for its copy to the kernel.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "bindings.h"
#include "checked.h"
#include "row_squares.h"

namespace py = pybind11;

namespace gradian {

namespace {

// Bytes that go out in one call; they stay in the second-level cache from the sum to the kernel's copy.
constexpr std::size_t kRunBytes = std::size_t{256} << 10;
constexpr std::size_t kRunParts = 64;

using Rows = py::array_t<std::int64_t, py::array::c_style>;
using Norms = py::array_t<double, py::array::c_style>;

StoredFormat format_named(const std::string& name) {
  if (name == "float32") return StoredFormat::kFloat32;
  if (name == "float16") return StoredFormat::kFloat16;
  if (name == "bfloat16") return StoredFormat::kBfloat16;
  throw std::invalid_argument("no storage dtype is called '" + name + "'");
}

double squared_norm(const double* lanes) {
  std::array<double, kSquareLanes> sums;
  std::copy(lanes, lanes + kSquareLanes, sums.begin());
  for (std::size_t half = kSquareLanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  // Which of several NaN a sum keeps depends on the processor.
  return sums[0] == sums[0] ? sums[0] : std::numeric_limits<double>::quiet_NaN();
}

// Neighbouring pieces of a file that go out in one call.
class Run {
 public:
  explicit Run(int fd) : fd_(fd) {}

  bool takes(std::uint64_t offset, std::size_t size) const {
    return count_ == 0 || (offset == offset_ + size_ && count_ < kRunParts && size_ + size <= kRunBytes);
  }

  void add(std::uint64_t offset, const void* data, std::size_t size) {
    if (count_ == 0) offset_ = offset;
    parts_[count_++] = {const_cast<void*>(data), size};
    size_ += size;
  }

  void write() {
    iovec* part = parts_.data();
    while (size_ > 0) {
      const ssize_t done = ::pwritev(fd_, part, static_cast<int>(count_), static_cast<off_t>(offset_));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) throw std::system_error(done < 0 ? errno : EIO, std::generic_category());
      auto left = static_cast<std::size_t>(done);
      offset_ += left;
      size_ -= left;
      for (; count_ > 0 && left >= part->iov_len; ++part, --count_) left -= part->iov_len;
      if (count_ > 0) {
        part->iov_base = static_cast<char*>(part->iov_base) + left;
        part->iov_len -= left;
      }
    }
    count_ = 0;
  }

 private:
  int fd_;
  std::uint64_t offset_ = 0;
  std::size_t size_ = 0;
  std::size_t count_ = 0;
  std::array<iovec, kRunParts> parts_;
};

class ChunkWriter {
 public:
  ChunkWriter(std::size_t rows, std::vector<std::uint64_t> starts, std::vector<std::size_t> widths,
              const std::string& dtype, const std::optional<std::string>& isa)
      : rows_(rows),
        starts_(std::move(starts)),
        widths_(std::move(widths)),
        format_(format_named(dtype)),
        kernels_(square_kernels(format_, choose_isa(isa))) {
    if (starts_.size() != widths_.size()) throw std::invalid_argument("every block has a start and a width");
    for (std::size_t block = 0; block < starts_.size(); ++block) {
      const std::size_t end =
          checked_sum(starts_[block], checked_product(rows_, widths_[block], item_size()));
      if (end > static_cast<std::size_t>(std::numeric_limits<off_t>::max())) {
        throw std::overflow_error("a block ends beyond the largest file");
      }
    }
    if (kernels_.narrow != nullptr) narrowed_.reset(new std::uint16_t[kRunBytes / 2]);
  }

  void write(int fd, std::size_t first_block, const Rows& rows, const py::list& blocks, Norms& sq_norms) {
    const auto count = static_cast<std::size_t>(rows.size());
    if (first_block > widths_.size() || blocks.size() > widths_.size() - first_block) {
      throw std::invalid_argument("there are not so many blocks");
    }
    if (sq_norms.ndim() != 2 || static_cast<std::size_t>(sq_norms.shape(0)) != rows_ ||
        static_cast<std::size_t>(sq_norms.shape(1)) != widths_.size()) {
      throw std::invalid_argument("sq_norms must be [rows, blocks]");
    }
    const std::int64_t* numbers = rows.data();
    if (rows.ndim() != 1 || std::any_of(numbers, numbers + count, [&](std::int64_t row) {
          return row < 0 || static_cast<std::size_t>(row) >= rows_;
        })) {
      throw std::invalid_argument("a row is out of range");
    }
    std::vector<Block> work;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      work.push_back(checked(first_block + i, blocks[i], count));
    double* norms = sq_norms.mutable_data();

    const py::gil_scoped_release release;
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return numbers[a] < numbers[b]; });
    for (const Block& block : work) {
      Run run(fd);
      narrowed_used_ = 0;
      for (const std::size_t i : order) {
        const auto row = static_cast<std::size_t>(numbers[i]);
        norms[row * widths_.size() + block.number] = put(run, block, row, i);
      }
      run.write();
    }
  }

 private:
  struct Block {
    std::size_t number;
    const char* values;
    bool narrow;  // float32 for a 16-bit store
  };

  std::size_t item_size() const { return format_ == StoredFormat::kFloat32 ? 4 : 2; }

  Block checked(std::size_t number, const py::handle& item, std::size_t count) const {
    if (!py::isinstance<py::array>(item)) throw std::invalid_argument("a block's values must be an array");
    const auto values = py::reinterpret_borrow<py::array>(item);
    if (values.ndim() != 2 || static_cast<std::size_t>(values.shape(0)) != count ||
        static_cast<std::size_t>(values.shape(1)) != widths_[number] ||
        (values.flags() & py::array::c_style) == 0) {
      throw std::invalid_argument("a block's values must be contiguous [rows, width]");
    }
    const char kind = values.dtype().kind();
    const py::ssize_t size = values.itemsize();
    const bool float32 = kind == 'f' && size == 4;
    const bool as_stored = format_ == StoredFormat::kFloat32   ? float32
                           : format_ == StoredFormat::kFloat16 ? kind == 'f' && size == 2
                                                               : kind == 'u' && size == 2;
    if (!as_stored && !float32) throw std::invalid_argument("a block's values have another dtype");
    return {number, static_cast<const char*>(values.data()), !as_stored};
  }

  // Adds the row at place `i` of the block's values to the run; gives its squared norm.
  double put(Run& run, const Block& block, std::size_t row, std::size_t i) {
    const std::size_t width = widths_[block.number];
    const std::size_t most = kRunBytes / item_size();  // a multiple of the lanes
    const std::size_t source_size = block.narrow ? sizeof(float) : item_size();
    std::array<double, kSquareLanes> lanes{};
    for (std::size_t column = 0; column < width; column += most) {
      const std::size_t count = std::min(most, width - column);
      const std::size_t bytes = count * item_size();
      const std::uint64_t offset = starts_[block.number] + (row * width + column) * item_size();
      if (!run.takes(offset, bytes)) {
        run.write();
        narrowed_used_ = 0;
      }
      const void* piece = block.values + (i * width + column) * source_size;
      if (block.narrow) {
        std::uint16_t* const out = narrowed_.get() + narrowed_used_;
        kernels_.narrow(static_cast<const float*>(piece), count, out);
        narrowed_used_ += count;
        piece = out;
      }
      kernels_.add_squares(piece, count, lanes.data());
      run.add(offset, piece, bytes);
    }
    return squared_norm(lanes.data());
  }

  std::size_t rows_;
  std::vector<std::uint64_t> starts_;  // of each block, in bytes from the beginning of the file
  std::vector<std::size_t> widths_;
  StoredFormat format_;
  SquareKernels kernels_;
  std::unique_ptr<std::uint16_t[]> narrowed_;  // one run of converted numbers
  std::size_t narrowed_used_ = 0;
};

}  // namespace

void bind_chunk_writer(py::module_& module) {
  // An OSError with its number, as Python's own calls raise it.
  py::register_local_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const std::system_error& error) {
      errno = error.code().value();
      PyErr_SetFromErrno(PyExc_OSError);
    }
  });
  py::class_<ChunkWriter>(module, "ChunkWriter", "Writes rows of a chunk; see gradian.ops.chunk_io.")
      .def(py::init<std::size_t, std::vector<std::uint64_t>, std::vector<std::size_t>, const std::string&,
                    const std::optional<std::string>&>(),
           py::arg("rows"), py::arg("starts"), py::arg("widths"), py::arg("dtype"),
           py::arg("isa") = py::none())
      .def("write", &ChunkWriter::write, py::arg("fd"), py::arg("first_block"), py::arg("rows").noconvert(),
           py::arg("blocks"), py::arg("sq_norms").noconvert());
}

}  // namespace gradian
