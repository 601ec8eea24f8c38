// What both passes over a block's rows share: where columns are cut, and the queries laid out for the
// kernels.
//
// Columns are cut into pieces, over which products are summed in float32, and pieces into slices, the unit of
// work of a thread. Both depend on the number of columns alone: so do the orders of all sums.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "row_kernels.h"
#include "stored_rows.h"

namespace gradian {

// Uninitialised numbers at the start of a cache line.
//
// Aligned by hand: the C library may fail to use a gap that an aligned block of the same size has left, and
// then the heap grows with every call.
class FloatBuffer {
 public:
  explicit FloatBuffer(std::size_t size);
  float* data() { return data_; }
  const float* data() const { return data_; }

 private:
  std::unique_ptr<float[]> held_;
  float* data_;
};

struct ColumnLayout {
  explicit ColumnLayout(std::size_t columns);

  std::size_t columns;
  std::size_t piece;   // columns of a piece; the last one may be shorter
  std::size_t pieces;  // number of pieces
  std::size_t slice;   // pieces of a slice; the last one may be shorter
  std::size_t slices;

  std::size_t piece_columns(std::size_t p) const { return p + 1 < pieces ? piece : columns - p * piece; }
  std::size_t padded_columns(std::size_t p) const {
    return (piece_columns(p) + kLanes - 1) / kLanes * kLanes;
  }
  std::size_t first_piece(std::size_t s) const { return s * slice; }
  std::size_t end_piece(std::size_t s) const { return s + 1 < slices ? (s + 1) * slice : pieces; }
};

// float32 numbers for m queries, piece after piece and within one query after query; zeros beyond the
// columns.
class PiecewiseQueries {
 public:
  PiecewiseQueries(const ColumnLayout& layout, std::size_t m);

  // Copies `queries` [m, columns].
  void fill(const float* queries);

  std::size_t stride() const { return stride_; }
  float* piece(std::size_t p) { return values_.data() + p * m_ * stride_; }
  const float* piece(std::size_t p) const { return values_.data() + p * m_ * stride_; }
  Matrix matrix(std::size_t p) const { return {piece(p), m_, stride_}; }

 private:
  const ColumnLayout& layout_;
  std::size_t m_;
  std::size_t stride_;
  FloatBuffer values_;
};

// Distance between widened rows, in elements: one cache line more than the columns, because rows a power of
// two apart would compete for the same lines of the first-level cache.
constexpr std::size_t padded_stride(std::size_t columns) {
  return (columns + kLanes - 1) / kLanes * kLanes + kLanes;
}

// Rows of one piece widened to float32, for kernels that use each of them many times.
class WidenedRows {
 public:
  WidenedRows(const ColumnLayout& layout, std::size_t max_rows);

  // Piece p of `count` rows, filled up with zeros to the padded columns.
  Matrix widen(const RowKernels& kernels, Dtype dtype, const char* const* rows, std::size_t count,
               std::size_t p);

  // Adds piece p of the rows' products with `queries` to out[row * out_stride + query].
  void dots(const RowKernels& kernels, Dtype dtype, const char* const* rows, std::size_t count, std::size_t p,
            Matrix queries, double* out, std::size_t out_stride);

 private:
  const ColumnLayout& layout_;
  FloatBuffer values_;
};

// The one query's dots with a group of at most kSweepRows rows, and the weighted sum of another group, over
// the pieces of a slice; see RowKernels::sweep.
class Sweeper {
 public:
  Sweeper(const ColumnLayout& layout, const RowKernels& kernels, Dtype dtype);

  // `dots` and `weights` have kSweepRows elements. Either group may be empty.
  void run(std::size_t slice, const char* const* dot_rows, std::size_t n_dots, const PiecewiseQueries& query,
           double* dots, const char* const* sum_rows, std::size_t n_sums, const float* weights,
           PiecewiseQueries* total);

 private:
  const ColumnLayout& layout_;
  const RowKernels& kernels_;
  Dtype dtype_;
  std::vector<char> zeros_;  // a slice of zeros in place of rows that are missing
  WidenedRows dot_tail_;
  WidenedRows sum_tail_;
};

}  // namespace gradian
