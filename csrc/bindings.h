// What each part adds to the Python module; see bindings.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace gradian {}  // namespace gradian
