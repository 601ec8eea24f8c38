// The Python class that maps rows of chunk files.
#include <pybind11/numpy.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "checked.h"
#include "chunk_reader.h"

namespace py = pybind11;

namespace gradian {

namespace {

py::dtype dtype_named(const std::string& name) {
  if (name == "float32" || name == "float16") return py::dtype(name);
  if (name == "bfloat16") return py::dtype("uint16");
  throw std::invalid_argument("no storage dtype is called '" + name + "'");
}

// Maps rows for Python, with a read-ahead of its own.
class ChunkReader {
 public:
  ChunkReader(const std::string& dtype, std::size_t read_ahead)
      : numbers_(dtype_named(dtype)), limit_(read_ahead) {
    begin();
  }
  ~ChunkReader() { end(); }
  ChunkReader(const ChunkReader&) = delete;
  ChunkReader& operator=(const ChunkReader&) = delete;

  bool reads_ahead() const { return limit_ > 0; }

  py::array map_rows(int fd, std::size_t offset, std::size_t rows, std::size_t width) {
    const std::size_t size = checked_product(rows, width, static_cast<std::size_t>(numbers_.itemsize()));
    auto owner = std::make_unique<std::shared_ptr<const Mapping>>(mapped(fd, offset, size));
    const std::shared_ptr<const Mapping> mapping = *owner;
    const py::capsule base(owner.get(), [](void* held) {
      const std::unique_ptr<std::shared_ptr<const Mapping>> last(
          static_cast<std::shared_ptr<const Mapping>*>(held));
    });
    owner.release();
    if (size >= kFaultAround) read_ahead().add(mapping);
    return py::array(numbers_, {rows, width}, mapping->data(), base);
  }

  void warm(int fd, std::size_t offset, std::size_t size) { read_ahead().warm(mapped(fd, offset, size)); }

  void close() {
    const py::gil_scoped_release release;
    if (pid_ == ::getpid()) read_ahead_->stop();
  }

 private:
  static std::shared_ptr<const Mapping> mapped(int fd, std::size_t offset, std::size_t size) {
    const py::gil_scoped_release release;
    return std::make_shared<const Mapping>(fd, offset, size);
  }

  ReadAhead& read_ahead() {
    if (pid_ != ::getpid()) {
      end();
      begin();
    }
    return *read_ahead_;
  }

  void begin() {
    pid_ = ::getpid();
    read_ahead_ = std::make_unique<ReadAhead>(limit_);
  }

  void end() {
    // In a forked child the thread does not exist, and it may have held the lock: both are left behind.
    if (pid_ == ::getpid()) {
      // The thread may be waiting for a disk that does not answer.
      const py::gil_scoped_release release;
      read_ahead_.reset();
    } else {
      static_cast<void>(read_ahead_.release());
    }
  }

  const py::dtype numbers_;
  const std::size_t limit_;
  ::pid_t pid_ = 0;
  std::unique_ptr<ReadAhead> read_ahead_;
};

}  // namespace

void bind_chunk_reader(py::module_& module) {
  py::class_<ChunkReader>(module, "ChunkReader", "Maps rows of chunks; see gradian.ops.chunk_io.")
      .def(py::init<const std::string&, std::size_t>(), py::arg("dtype"), py::arg("read_ahead"))
      .def_property_readonly("reads_ahead", &ChunkReader::reads_ahead)
      .def("map_rows", &ChunkReader::map_rows, py::arg("fd"), py::arg("offset"), py::arg("rows"),
           py::arg("width"))
      .def("warm", &ChunkReader::warm, py::arg("fd"), py::arg("offset"), py::arg("size"))
      .def("close", &ChunkReader::close);
}

}  // namespace gradian
