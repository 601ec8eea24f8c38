// numpy arrays as arguments, checked before anything reads or writes through them.
#pragma once

#include <pybind11/numpy.h>

#include <cstddef>
#include <string>

#include "stored_rows.h"

namespace gradian {

using Floats = pybind11::array_t<float, pybind11::array::c_style>;
using Doubles = pybind11::array_t<double, pybind11::array::c_style>;

// "float32", "float16" or "bfloat16". Throws std::invalid_argument for another name.
Dtype dtype_named(const std::string& name);

// Throws std::invalid_argument if the numbers of `array` cannot be of that dtype, numpy having no bfloat16:
// those come as uint16.
void check_holds(const pybind11::array& array, Dtype dtype);

// Views of C-contiguous arrays [rows, columns]; the list must outlive them.
StoredRows stored_rows(const pybind11::list& segments, Dtype dtype, std::size_t columns);

// An uninitialised float64 [rows, columns].
Doubles new_matrix(std::size_t rows, std::size_t columns);

}  // namespace gradian
