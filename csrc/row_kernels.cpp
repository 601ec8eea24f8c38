#include "row_kernels.h"

#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "array_arguments.h"
#include "bindings.h"

namespace py = pybind11;

namespace gradian {

const RowKernels& row_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return kAvx512RowKernels;
  if (isa == Isa::kAvx2) return kAvx2RowKernels;
#endif
  (void)isa;
  return kPortableRowKernels;
}

namespace {

Floats widen(const py::array& values, const std::string& dtype, const std::optional<std::string>& isa) {
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

}  // namespace

void bind_widen(py::module_& module) {
  module.def("widen", &widen, py::arg("values"), py::arg("dtype"), py::arg("isa") = py::none(),
             "float32 values of stored ones, exactly.");
}

}  // namespace gradian
