// The passes over stored rows as Python functions.
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "array_arguments.h"
#include "bindings.h"
#include "checked.h"
#include "passes.h"
#include "row_kernels.h"
#include "signals.h"

namespace py = pybind11;

namespace gradian {

namespace {

Floats bound_widen(const py::array& values, const std::string& dtype, const std::optional<std::string>& isa) {
  const Dtype from = dtype_named(dtype);
  check_holds(values, from);
  if (values.ndim() != 1 || (values.flags() & py::array::c_style) == 0) {
    throw std::invalid_argument("values must be contiguous and have one dimension");
  }
  const RowKernels& kernels = row_kernels(choose_isa(isa));
  Floats wide(values.shape(0));
  float* to = wide.mutable_data();
  {
    const py::gil_scoped_release release;
    kernels.widen(values.data(), from, static_cast<std::size_t>(values.shape(0)), to);
  }
  return wide;
}

Doubles bound_query_dots(const py::list& segments, const std::string& dtype, const Floats& queries,
                         std::size_t threads, const std::optional<std::string>& isa) {
  if (queries.ndim() != 2) throw std::invalid_argument("queries must be a matrix");
  const auto m = static_cast<std::size_t>(queries.shape(0));
  const auto columns = static_cast<std::size_t>(queries.shape(1));
  const StoredRows rows = stored_rows(segments, dtype_named(dtype), columns);
  const Isa set = choose_isa(isa);
  Doubles dots = new_matrix(rows.size(), m);
  double* out = dots.mutable_data();
  const float* from = queries.data();
  SignalWatch signals;
  {
    const py::gil_scoped_release release;
    query_dots(rows, from, m, threads, set, out, signals);
  }
  signals.finish();
  return dots;
}

Floats bound_gram(const py::list& segments, const std::string& dtype, std::size_t columns,
                  std::size_t threads, const std::optional<std::string>& isa) {
  const StoredRows rows = stored_rows(segments, dtype_named(dtype), columns);
  const Isa set = choose_isa(isa);
  const std::size_t n = rows.size();
  if (checked_product(n, n, sizeof(float)) >
      static_cast<std::size_t>(std::numeric_limits<py::ssize_t>::max())) {
    throw std::invalid_argument("an array does not fit into memory");
  }
  Floats products({static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(n)});
  float* out = products.mutable_data();
  SignalWatch signals;
  {
    const py::gil_scoped_release release;
    gram(rows, threads, set, out, signals);
  }
  signals.finish();
  return products;
}

std::size_t bound_datainf_panel_rows(const std::string& dtype, std::size_t m, std::size_t columns) {
  return datainf_panel_rows(dtype_named(dtype), m, columns);
}

std::pair<Doubles, Doubles> bound_datainf_accumulate(const py::list& segments, const std::string& dtype,
                                                     const Floats& queries, const Doubles& scale,
                                                     std::size_t threads,
                                                     const std::optional<std::string>& isa, bool keep_dots,
                                                     std::optional<Doubles> total) {
  if (queries.ndim() != 2) throw std::invalid_argument("queries must be a matrix");
  const auto m = static_cast<std::size_t>(queries.shape(0));
  const auto columns = static_cast<std::size_t>(queries.shape(1));
  const StoredRows rows = stored_rows(segments, dtype_named(dtype), columns);
  const Isa set = choose_isa(isa);
  if (scale.ndim() != 1 || static_cast<std::size_t>(scale.shape(0)) != rows.size()) {
    throw std::invalid_argument("there must be one scale per row");
  }
  if (total &&
      (total->ndim() != 2 || total->shape(0) != queries.shape(0) || total->shape(1) != queries.shape(1))) {
    throw std::invalid_argument("the total must have the shape of the queries");
  }
  const bool fresh = !total;
  if (fresh) total = new_matrix(m, columns);
  Doubles kept = new_matrix(keep_dots ? rows.size() : 0, m);
  double* dots = keep_dots ? kept.mutable_data() : nullptr;
  double* sums = total->mutable_data();
  const float* from = queries.data();
  const double* factors = scale.data();
  SignalWatch signals;
  {
    const py::gil_scoped_release release;
    if (fresh) std::fill_n(sums, m * columns, 0.0);
    datainf_accumulate(rows, from, m, factors, threads, set, dots, sums, signals);
  }
  signals.finish();
  return {std::move(kept), *std::move(total)};
}

}  // namespace

void bind_widen(py::module_& module) {
  module.def("widen", &bound_widen, py::arg("values"), py::arg("dtype"), py::arg("isa") = py::none(),
             "float32 values of stored ones, exactly.");
}

void bind_query_dots(py::module_& module) {
  module.def("query_dots", &bound_query_dots, py::arg("segments"), py::arg("dtype"),
             py::arg("queries").noconvert(), py::arg("threads"), py::arg("isa") = py::none(),
             "Dot products of stored rows with queries; see gradian.ops.query_dots.");
}

void bind_gram(py::module_& module) {
  module.def("gram", &bound_gram, py::arg("segments"), py::arg("dtype"), py::arg("columns"),
             py::arg("threads"), py::arg("isa") = py::none(),
             "Dot products of stored rows with each other; see gradian.ops.gram.");
}

void bind_datainf_accumulate(py::module_& module) {
  module.def("datainf_accumulate", &bound_datainf_accumulate, py::arg("segments"), py::arg("dtype"),
             py::arg("queries").noconvert(), py::arg("scale").noconvert(), py::arg("threads"),
             py::arg("isa") = py::none(), py::arg("keep_dots") = true,
             py::arg("total").noconvert() = py::none(),
             "Dot products and their weighted sum of rows in one read; see gradian.ops.datainf_accumulate.");
  module.def("datainf_panel_rows", &bound_datainf_panel_rows, py::arg("dtype"), py::arg("queries"),
             py::arg("columns"),
             "The rows may be given in parts of a multiple of so many without changing a bit of the sum.");
}

}  // namespace gradian
