// What each part adds to the Python module; see bindings.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace gradian {

void bind_chunk_reader(pybind11::module_& module);
void bind_chunk_writer(pybind11::module_& module);
void bind_top_k(pybind11::module_& module);
void bind_cluster_sums(pybind11::module_& module);
void bind_widen(pybind11::module_& module);
void bind_query_dots(pybind11::module_& module);
void bind_gram(pybind11::module_& module);
void bind_datainf_accumulate(pybind11::module_& module);
void bind_heartbeat(pybind11::module_& module);

}  // namespace gradian
