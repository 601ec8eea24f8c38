#include "scoring.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "checked.h"

namespace gradian {

namespace {

constexpr std::size_t kLine = 64;
// A piece of four queries and three rows fits into the first-level cache; float32 sums stay short.
constexpr std::size_t kMaxPiece = 768;
constexpr std::size_t kMinPiece = 192;
// Enough slices for the threads of most machines, few enough that partial sums stay small.
constexpr std::size_t kSlices = 16;

void prefetch(const char* from, std::size_t bytes) {
  for (std::size_t line = 0; line < bytes; line += kLine) __builtin_prefetch(from + line);
}

constexpr std::size_t divide_up(std::size_t a, std::size_t b) { return a / b + (a % b != 0); }

}  // namespace

FloatBuffer::FloatBuffer(std::size_t size) {
  constexpr std::size_t kLineFloats = kLine / sizeof(float);
  std::size_t space = checked_product(checked_sum(size, 2 * kLineFloats), sizeof(float));
  held_.reset(new float[space / sizeof(float)]);
  void* at = held_.get();
  data_ = static_cast<float*>(std::align(kLine, size * sizeof(float), at, space));
}

ColumnLayout::ColumnLayout(std::size_t n_columns) : columns(n_columns) {
  const std::size_t wanted = divide_up(divide_up(columns, kSlices), kMinPiece) * kMinPiece;
  piece = std::clamp(wanted, kMinPiece, kMaxPiece);
  pieces = divide_up(columns, piece);
  slice = std::max<std::size_t>(1, pieces / kSlices);
  slices = divide_up(pieces, slice);
}

PiecewiseQueries::PiecewiseQueries(const ColumnLayout& layout, std::size_t m)
    : layout_(layout),
      m_(m),
      // One query's pieces join without a gap: a sweep runs over several of them.
      stride_(m == 1 ? layout.piece : padded_stride(layout.piece)),
      values_(checked_product(layout.pieces, m, stride_)) {
  std::fill_n(values_.data(), layout.pieces * m_ * stride_, 0.0F);
}

void PiecewiseQueries::fill(const float* queries) {
  for (std::size_t p = 0; p < layout_.pieces; ++p) {
    for (std::size_t q = 0; q < m_; ++q) {
      const float* from = queries + q * layout_.columns + p * layout_.piece;
      std::copy_n(from, layout_.piece_columns(p), piece(p) + q * stride_);
    }
  }
}

WidenedRows::WidenedRows(const ColumnLayout& layout, std::size_t max_rows)
    : layout_(layout), values_(checked_product(max_rows, padded_stride(layout.piece))) {}

Matrix WidenedRows::widen(const RowKernels& kernels, Dtype dtype, const char* const* rows, std::size_t count,
                          std::size_t p) {
  const std::size_t stride = padded_stride(layout_.piece);
  const std::size_t columns = layout_.piece_columns(p);
  const std::size_t offset = p * layout_.piece * item_size(dtype);
  for (std::size_t r = 0; r < count; ++r) {
    // Stretches this short end before the hardware has found their direction.
    if (r + 1 < count) prefetch(rows[r + 1] + offset, columns * item_size(dtype));
    float* to = values_.data() + r * stride;
    kernels.widen(rows[r] + offset, dtype, columns, to);
    std::fill(to + columns, to + layout_.padded_columns(p), 0.0F);
  }
  return {values_.data(), count, stride};
}

void WidenedRows::dots(const RowKernels& kernels, Dtype dtype, const char* const* rows, std::size_t count,
                       std::size_t p, Matrix queries, double* out, std::size_t out_stride) {
  const std::size_t columns = layout_.piece_columns(p);
  if (columns % kLanes != 0) {
    kernels.dots(widen(kernels, dtype, rows, count, p), queries, layout_.padded_columns(p), out, out_stride);
    return;
  }
  const std::size_t offset = p * layout_.piece * item_size(dtype);
  kernels.stored_dots(dtype, rows, count, offset, values_.data(), padded_stride(layout_.piece), queries,
                      columns, out, out_stride);
}

Sweeper::Sweeper(const ColumnLayout& layout, const RowKernels& kernels, Dtype dtype)
    : layout_(layout),
      kernels_(kernels),
      dtype_(dtype),
      zeros_(checked_product(layout.slice, layout.piece, item_size(dtype))),
      dot_tail_(layout, kSweepRows),
      sum_tail_(layout, kSweepRows) {}

void Sweeper::run(std::size_t slice, const char* const* dot_rows, std::size_t n_dots,
                  const PiecewiseQueries& query, double* dots, const char* const* sum_rows,
                  std::size_t n_sums, const float* weights, PiecewiseQueries* total) {
  const std::size_t first = layout_.first_piece(slice);
  const std::size_t end = layout_.end_piece(slice);
  // A shorter last piece is copied: the kernels read whole vectors.
  const bool tail = end == layout_.pieces && layout_.piece_columns(end - 1) % kLanes != 0;
  const std::size_t direct = tail ? end - 1 : end;
  const std::size_t offset = first * layout_.piece * item_size(dtype_);
  const char* dot_at[kSweepRows];
  const char* sum_at[kSweepRows];
  for (std::size_t r = 0; r < kSweepRows; ++r) {
    dot_at[r] = r < n_dots ? dot_rows[r] + offset : zeros_.data();
    sum_at[r] = r < n_sums ? sum_rows[r] + offset : zeros_.data();
  }
  if (direct > first) {
    const std::size_t columns = (direct - 1 - first) * layout_.piece + layout_.piece_columns(direct - 1);
    kernels_.sweep(dtype_, n_dots > 0 ? dot_at : nullptr, query.piece(first), dots,
                   n_sums > 0 ? sum_at : nullptr, weights, n_sums > 0 ? total->piece(first) : nullptr,
                   columns, layout_.piece);
  }
  if (!tail) return;
  const std::size_t columns = layout_.padded_columns(direct);
  if (n_dots > 0) {
    const Matrix rows = dot_tail_.widen(kernels_, dtype_, dot_rows, n_dots, direct);
    kernels_.dots(rows, query.matrix(direct), columns, dots, 1);
  }
  if (n_sums > 0) {
    const Matrix rows = sum_tail_.widen(kernels_, dtype_, sum_rows, n_sums, direct);
    kernels_.accumulate(rows, weights, 1, 1, columns, total->piece(direct), total->stride());
  }
}

}  // namespace gradian
