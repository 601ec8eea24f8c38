// Squared norms of rows and their conversion to the storage dtype: the same bits on every instruction set.
//
// A squared norm is summed in 16 float64 lanes: element i goes to lane i mod 16, each lane adds in the order
// of the row, and at the end lane l takes lane l + 8, then l + 4, l + 2 and l + 1. Squares of float32,
// float16 and bfloat16 are exact in float64, so whether one is fused with its addition changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace gradian {

enum class StoredFormat { kFloat32, kFloat16, kBfloat16 };

constexpr std::size_t kSquareLanes = 16;

struct SquareKernels {
  // Adds the squares of `count` stored numbers to the lanes, the first one to lane 0.
  void (*add_squares)(const void* numbers, std::size_t count, double* lanes);
  // float32 to a 16-bit storage dtype, ties to even. A NaN keeps its sign and the top of its payload and
  // becomes quiet. Null for float32.
  void (*narrow)(const float* numbers, std::size_t count, std::uint16_t* out);
};

SquareKernels square_kernels(StoredFormat format, Isa isa);

SquareKernels square_kernels_portable(StoredFormat format);
SquareKernels square_kernels_avx2(StoredFormat format);

}  // namespace gradian
