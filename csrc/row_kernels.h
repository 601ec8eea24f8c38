// What is computed on a few rows at a time, once per instruction set: widening, dot products with queries and
// weighted sums of rows. The drivers around them (query_dots.cpp, datainf_accumulate.cpp) hold the loops over
// the store, the threads and every sum in float64.
#pragma once

#include <cstddef>

#include "isa.h"

namespace gradian {

enum class Dtype { kFloat32, kFloat16, kBfloat16 };

constexpr std::size_t item_size(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

// Kernels take column counts that are multiples of this, the lanes of the widest vector. Rows of another
// length are copied and filled up with zeros, which change no sum.
inline constexpr std::size_t kLanes = 16;

// Rows that `sweep` takes at a time; rows that are missing point to zeros.
inline constexpr std::size_t kSweepRows = 4;

// float32 [rows, columns], each row starting `stride` elements after the one before.
struct Matrix {
  const float* data;
  std::size_t rows;
  std::size_t stride;
};

struct RowKernels {
  // to[i] = from[i] for i < n, as float32. Exact, and the same bits on every instruction set: a NaN keeps its
  // sign and payload, and a float16 NaN becomes quiet.
  void (*widen)(const void* from, Dtype dtype, std::size_t n, float* to);

  // out[r * out_stride + q] += <rows[r], queries[q]>. Products are summed in float32, in an order that
  // depends on `columns` alone, never on the other rows and queries.
  void (*dots)(Matrix rows, Matrix queries, std::size_t columns, double* out, std::size_t out_stride);

  // The same from stored rows, `offset` bytes into each of `n_rows` of them, which reach the registers
  // widened. With many queries they are left in `wide`, `wide_stride` apart, for all but the first few.
  void (*stored_dots)(Dtype dtype, const char* const* rows, std::size_t n_rows, std::size_t offset,
                      float* wide, std::size_t wide_stride, Matrix queries, std::size_t columns, double* out,
                      std::size_t out_stride);

  // total[q * total_stride + c] += sum_r weights[r * weight_stride + q] rows[r][c], for q < n_queries.
  void (*accumulate)(Matrix rows, const float* weights, std::size_t weight_stride, std::size_t n_queries,
                     std::size_t columns, float* total, std::size_t total_stride);

  // Both of the above for one query, straight from kSweepRows stored rows each, in one pass over the columns:
  // out[r] += <dot_rows[r], query>, with the same bits as `dots` on columns cut into pieces of `piece`, and
  // total[c] += sum_r weights[r] sum_rows[r][c]. Either half is left out when its rows are null.
  void (*sweep)(Dtype dtype, const char* const* dot_rows, const float* query, double* out,
                const char* const* sum_rows, const float* weights, float* total, std::size_t columns,
                std::size_t piece);
};

const RowKernels& row_kernels(Isa isa);

// One per instruction set; on other architectures only the portable one exists.
extern const RowKernels kPortableRowKernels;
extern const RowKernels kAvx2RowKernels;
extern const RowKernels kAvx512RowKernels;

}  // namespace gradian
