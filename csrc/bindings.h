// What each part adds to the Python module; see bindings.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace gradian {

void bind_top_k(pybind11::module_& module);
void bind_cluster_sums(pybind11::module_& module);

}  // namespace gradian
