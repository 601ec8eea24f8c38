#include "array_arguments.h"

#include <limits>
#include <stdexcept>

#include "checked.h"

namespace py = pybind11;

namespace gradian {

Dtype dtype_named(const std::string& name) {
  if (name == "float32") return Dtype::kFloat32;
  if (name == "float16") return Dtype::kFloat16;
  if (name == "bfloat16") return Dtype::kBfloat16;
  throw std::invalid_argument("stored rows are float32, float16 or bfloat16, not " + name);
}

void check_holds(const py::array& array, Dtype dtype) {
  const char kind = dtype == Dtype::kBfloat16 ? 'u' : 'f';
  const bool native_order = array.dtype().byteorder() == '=' || array.dtype().byteorder() == '|';
  if (array.dtype().kind() != kind || static_cast<std::size_t>(array.itemsize()) != item_size(dtype) ||
      !native_order) {
    throw std::invalid_argument("an array's numbers are not of the dtype named");
  }
}

StoredRows stored_rows(const py::list& segments, Dtype dtype, std::size_t columns) {
  StoredRows rows(dtype, columns);
  for (const py::handle item : segments) {
    if (!py::isinstance<py::array>(item)) throw std::invalid_argument("rows come as a list of arrays");
    const auto segment = py::reinterpret_borrow<py::array>(item);
    check_holds(segment, dtype);
    if (segment.ndim() != 2 || static_cast<std::size_t>(segment.shape(1)) != columns) {
      throw std::invalid_argument("rows must be [rows, columns] with the columns of the queries");
    }
    if ((segment.flags() & py::array::c_style) == 0) throw std::invalid_argument("rows must be contiguous");
    rows.append(segment.data(), static_cast<std::size_t>(segment.shape(0)));
  }
  return rows;
}

Doubles new_matrix(std::size_t rows, std::size_t columns) {
  if (checked_product(rows, columns, sizeof(double)) >
      static_cast<std::size_t>(std::numeric_limits<py::ssize_t>::max())) {
    throw std::invalid_argument("an array does not fit into memory");
  }
  return Doubles({static_cast<py::ssize_t>(rows), static_cast<py::ssize_t>(columns)});
}

}  // namespace gradian
