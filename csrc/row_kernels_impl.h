// The kernels of row_kernels.h over a type S of vectors. Included by one file per instruction set, hence the
// anonymous namespace: the linker must not merge copies compiled with different flags.
//
// S has: Vector, kWidth lanes; kTileRows x kTileQueries, how many accumulators fit into registers beside
// their operands; zero, load, store, broadcast, add, fma, sum (of all lanes); widen_float16 and
// widen_bfloat16, of kWidth numbers. Addresses need no alignment.
#pragma once

#include <cstdint>
#include <cstring>

#include "row_kernels.h"

namespace gradian {
namespace {

template <class S, Dtype kDtype>
inline typename S::Vector load_row(const char* from) {
  if constexpr (kDtype == Dtype::kFloat32) {
    return S::load(from);
  } else if constexpr (kDtype == Dtype::kFloat16) {
    return S::widen_float16(from);
  } else {
    return S::widen_bfloat16(from);
  }
}

template <class S, Dtype kDtype>
void widen_as(const char* from, std::size_t n, float* to) {
  constexpr std::size_t kItem = item_size(kDtype);
  std::size_t i = 0;
  for (; i + S::kWidth <= n; i += S::kWidth) S::store(to + i, load_row<S, kDtype>(from + i * kItem));
  if (i == n) return;
  char rest[S::kWidth * kItem] = {};
  float wide[S::kWidth];
  std::memcpy(rest, from + i * kItem, (n - i) * kItem);
  S::store(wide, load_row<S, kDtype>(rest));
  std::memcpy(to + i, wide, (n - i) * sizeof(float));
}

template <class S>
void widen(const void* from, Dtype dtype, std::size_t n, float* to) {
  const char* bytes = static_cast<const char*>(from);
  switch (dtype) {
    case Dtype::kFloat32:
      return widen_as<S, Dtype::kFloat32>(bytes, n, to);
    case Dtype::kFloat16:
      return widen_as<S, Dtype::kFloat16>(bytes, n, to);
    case Dtype::kBfloat16:
      return widen_as<S, Dtype::kBfloat16>(bytes, n, to);
  }
}

// Where a tile's rows come from: float32 rows of a matrix ...
struct WideSource {
  const float* data;
  std::size_t stride;

  template <class S>
  typename S::Vector load(std::size_t r, std::size_t c) const {
    return S::load(data + r * stride + c);
  }
  void prefetch(std::size_t) const {}
};

// ... or R stored rows, widened on the way and, if kKeep, written to `wide`.
template <Dtype kDtype, std::size_t R, bool kKeep>
struct StoredSource {
  const char* rows[R];
  const char* next[R];  // what is read after them
  float* wide;
  std::size_t stride;

  StoredSource(const char* const* addresses, std::size_t n_left, std::size_t offset, float* to,
               std::size_t to_stride)
      : wide(to), stride(to_stride) {
#pragma GCC unroll 16
    for (std::size_t r = 0; r < R; ++r) {
      rows[r] = addresses[r] + offset;
      next[r] = addresses[n_left >= 2 * R ? r + R : r] + offset;
    }
  }
  template <class S>
  typename S::Vector load(std::size_t r, std::size_t c) const {
    const typename S::Vector row = load_row<S, kDtype>(rows[r] + c * item_size(kDtype));
    if constexpr (kKeep) S::store(wide + r * stride + c, row);
    return row;
  }
  void prefetch(std::size_t c) const {
    if (c * item_size(kDtype) % 64 != 0) return;
#pragma GCC unroll 16
    for (std::size_t r = 0; r < R; ++r) __builtin_prefetch(next[r] + c * item_size(kDtype));
  }
};

// R x Q dot products in registers. Not inlined: there are many of them, and each call is long.
template <class S, std::size_t R, std::size_t Q, class Source>
[[gnu::noinline]] void dot_tile(const Source& rows, const float* queries, std::size_t query_stride,
                                std::size_t columns, double* out, std::size_t out_stride) {
  typename S::Vector sums[R][Q];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (std::size_t q = 0; q < Q; ++q) sums[r][q] = S::zero();
  }
  for (std::size_t c = 0; c < columns; c += S::kWidth) {
    rows.prefetch(c);
    typename S::Vector query[Q];
#pragma GCC unroll 16
    for (std::size_t q = 0; q < Q; ++q) query[q] = S::load(queries + q * query_stride + c);
#pragma GCC unroll 16
    for (std::size_t r = 0; r < R; ++r) {
      const typename S::Vector row = rows.template load<S>(r, c);
#pragma GCC unroll 16
      for (std::size_t q = 0; q < Q; ++q) sums[r][q] = S::fma(row, query[q], sums[r][q]);
    }
  }
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (std::size_t q = 0; q < Q; ++q) out[r * out_stride + q] += static_cast<double>(S::sum(sums[r][q]));
  }
}

// Tiles of R rows over all rows, of single rows at the end.
template <class S, std::size_t R, std::size_t Q>
inline void wide_column(Matrix rows, const float* queries, std::size_t query_stride, std::size_t columns,
                        double* out, std::size_t out_stride) {
  std::size_t r = 0;
  for (; r + R <= rows.rows; r += R) {
    const WideSource source{rows.data + r * rows.stride, rows.stride};
    dot_tile<S, R, Q>(source, queries, query_stride, columns, out + r * out_stride, out_stride);
  }
  if constexpr (R > 1) {
    if (r < rows.rows) {
      const Matrix rest{rows.data + r * rows.stride, rows.rows - r, rows.stride};
      wide_column<S, 1, Q>(rest, queries, query_stride, columns, out + r * out_stride, out_stride);
    }
  }
}

template <class S, std::size_t Q>
inline void wide_columns(std::size_t q, Matrix rows, const float* queries, std::size_t query_stride,
                         std::size_t columns, double* out, std::size_t out_stride) {
  if constexpr (Q > 1) {
    if (q < Q) return wide_columns<S, Q - 1>(q, rows, queries, query_stride, columns, out, out_stride);
  }
  wide_column<S, S::kTileRows, Q>(rows, queries, query_stride, columns, out, out_stride);
}

template <class S>
void dots(Matrix rows, Matrix queries, std::size_t columns, double* out, std::size_t out_stride) {
  for (std::size_t q = 0; q < queries.rows; q += S::kTileQueries) {
    const std::size_t n = queries.rows - q < S::kTileQueries ? queries.rows - q : S::kTileQueries;
    wide_columns<S, S::kTileQueries>(n, rows, queries.data + q * queries.stride, queries.stride, columns,
                                     out + q, out_stride);
  }
}

template <class S, Dtype kDtype, bool kKeep, std::size_t R, std::size_t Q>
inline void stored_column(const char* const* rows, std::size_t n_rows, std::size_t offset, float* wide,
                          std::size_t wide_stride, Matrix queries, std::size_t columns, double* out,
                          std::size_t out_stride) {
  std::size_t r = 0;
  for (; r + R <= n_rows; r += R) {
    const StoredSource<kDtype, R, kKeep> source(rows + r, n_rows - r, offset, wide + r * wide_stride,
                                                wide_stride);
    dot_tile<S, R, Q>(source, queries.data, queries.stride, columns, out + r * out_stride, out_stride);
  }
  if constexpr (R > 1) {
    if (r < n_rows) {
      stored_column<S, kDtype, kKeep, 1, Q>(rows + r, n_rows - r, offset, wide + r * wide_stride, wide_stride,
                                            queries, columns, out + r * out_stride, out_stride);
    }
  }
}

// At most Q queries.
template <class S, Dtype kDtype, std::size_t Q>
inline void stored_columns(const char* const* rows, std::size_t n_rows, std::size_t offset, float* wide,
                           std::size_t wide_stride, Matrix queries, std::size_t columns, double* out,
                           std::size_t out_stride) {
  if constexpr (Q > 1) {
    if (queries.rows < Q) {
      return stored_columns<S, kDtype, Q - 1>(rows, n_rows, offset, wide, wide_stride, queries, columns, out,
                                              out_stride);
    }
  }
  stored_column<S, kDtype, false, S::kTileRows, Q>(rows, n_rows, offset, wide, wide_stride, queries, columns,
                                                   out, out_stride);
}

template <class S, Dtype kDtype>
void stored_dots_as(const char* const* rows, std::size_t n_rows, std::size_t offset, float* wide,
                    std::size_t wide_stride, Matrix queries, std::size_t columns, double* out,
                    std::size_t out_stride) {
  constexpr std::size_t kFirst = S::kTileQueries;
  if (queries.rows <= kFirst) {
    return stored_columns<S, kDtype, kFirst>(rows, n_rows, offset, wide, wide_stride, queries, columns, out,
                                             out_stride);
  }
  stored_column<S, kDtype, true, S::kTileRows, kFirst>(rows, n_rows, offset, wide, wide_stride, queries,
                                                       columns, out, out_stride);
  const Matrix rest{queries.data + kFirst * queries.stride, queries.rows - kFirst, queries.stride};
  dots<S>({wide, n_rows, wide_stride}, rest, columns, out + kFirst, out_stride);
}

template <class S>
void stored_dots(Dtype dtype, const char* const* rows, std::size_t n_rows, std::size_t offset, float* wide,
                 std::size_t wide_stride, Matrix queries, std::size_t columns, double* out,
                 std::size_t out_stride) {
  switch (dtype) {
    case Dtype::kFloat32:
      return stored_dots_as<S, Dtype::kFloat32>(rows, n_rows, offset, wide, wide_stride, queries, columns,
                                                out, out_stride);
    case Dtype::kFloat16:
      return stored_dots_as<S, Dtype::kFloat16>(rows, n_rows, offset, wide, wide_stride, queries, columns,
                                                out, out_stride);
    case Dtype::kBfloat16:
      return stored_dots_as<S, Dtype::kBfloat16>(rows, n_rows, offset, wide, wide_stride, queries, columns,
                                                 out, out_stride);
  }
}

// V vectors of columns for Q queries, summed over the rows in registers.
template <class S, std::size_t V, std::size_t Q>
[[gnu::noinline]] void sum_tile(Matrix rows, const float* weights, std::size_t weight_stride, float* total,
                                std::size_t total_stride) {
  typename S::Vector sums[Q][V];
#pragma GCC unroll 16
  for (std::size_t q = 0; q < Q; ++q) {
#pragma GCC unroll 16
    for (std::size_t v = 0; v < V; ++v) sums[q][v] = S::zero();
  }
  for (std::size_t r = 0; r < rows.rows; ++r) {
    typename S::Vector row[V];
#pragma GCC unroll 16
    for (std::size_t v = 0; v < V; ++v) row[v] = S::load(rows.data + r * rows.stride + v * S::kWidth);
#pragma GCC unroll 16
    for (std::size_t q = 0; q < Q; ++q) {
      const typename S::Vector weight = S::broadcast(weights[r * weight_stride + q]);
#pragma GCC unroll 16
      for (std::size_t v = 0; v < V; ++v) sums[q][v] = S::fma(weight, row[v], sums[q][v]);
    }
  }
#pragma GCC unroll 16
  for (std::size_t q = 0; q < Q; ++q) {
#pragma GCC unroll 16
    for (std::size_t v = 0; v < V; ++v) {
      float* to = total + q * total_stride + v * S::kWidth;
      S::store(to, S::add(S::load(to), sums[q][v]));
    }
  }
}

// V vectors of columns for all queries, Q at a time.
template <class S, std::size_t V, std::size_t Q>
inline void sum_rows(Matrix rows, const float* weights, std::size_t weight_stride, std::size_t n_queries,
                     float* total, std::size_t total_stride) {
  std::size_t q = 0;
  for (; q + Q <= n_queries; q += Q) {
    sum_tile<S, V, Q>(rows, weights + q, weight_stride, total + q * total_stride, total_stride);
  }
  if constexpr (Q > 1) {
    if (q < n_queries) {
      sum_rows<S, V, Q - 1>(rows, weights + q, weight_stride, n_queries - q, total + q * total_stride,
                            total_stride);
    }
  }
}

template <class S>
void accumulate(Matrix rows, const float* weights, std::size_t weight_stride, std::size_t n_queries,
                std::size_t columns, float* total, std::size_t total_stride) {
  constexpr std::size_t kColumns = S::kTileRows * S::kWidth;
  // Columns outside: those of all rows stay in the first-level cache for every query.
  std::size_t c = 0;
  for (; c + kColumns <= columns; c += kColumns) {
    sum_rows<S, S::kTileRows, S::kTileQueries>({rows.data + c, rows.rows, rows.stride}, weights,
                                               weight_stride, n_queries, total + c, total_stride);
  }
  for (; c < columns; c += S::kWidth) {
    sum_rows<S, 1, S::kTileQueries>({rows.data + c, rows.rows, rows.stride}, weights, weight_stride,
                                    n_queries, total + c, total_stride);
  }
}

template <class S, Dtype kDtype, bool kDots, bool kSums>
void sweep_as(const char* const* dot_rows, const float* query, double* out, const char* const* sum_rows,
              const float* weights, float* total, std::size_t columns, std::size_t piece) {
  constexpr std::size_t kItem = item_size(kDtype);
  typename S::Vector weight[kSweepRows];
  const char* dot_row[kSweepRows];
  const char* sum_row[kSweepRows];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < kSweepRows; ++r) {
    if constexpr (kSums) weight[r] = S::broadcast(weights[r]);
    if constexpr (kDots) dot_row[r] = dot_rows[r];
    if constexpr (kSums) sum_row[r] = sum_rows[r];
  }
  for (std::size_t start = 0; start < columns; start += piece) {
    const std::size_t end = columns - start < piece ? columns : start + piece;
    typename S::Vector dot[kSweepRows];
#pragma GCC unroll 16
    for (std::size_t r = 0; r < kSweepRows; ++r) dot[r] = S::zero();
    for (std::size_t c = start; c < end; c += S::kWidth) {
      if constexpr (kDots) {
        const typename S::Vector q = S::load(query + c);
#pragma GCC unroll 16
        for (std::size_t r = 0; r < kSweepRows; ++r) {
          dot[r] = S::fma(load_row<S, kDtype>(dot_row[r] + c * kItem), q, dot[r]);
        }
      }
      if constexpr (kSums) {
        typename S::Vector sum = S::zero();
#pragma GCC unroll 16
        for (std::size_t r = 0; r < kSweepRows; ++r) {
          sum = S::fma(load_row<S, kDtype>(sum_row[r] + c * kItem), weight[r], sum);
        }
        S::store(total + c, S::add(S::load(total + c), sum));
      }
    }
    if constexpr (kDots) {
#pragma GCC unroll 16
      for (std::size_t r = 0; r < kSweepRows; ++r) out[r] += static_cast<double>(S::sum(dot[r]));
    }
  }
}

template <class S, Dtype kDtype>
void sweep_dtype(const char* const* dot_rows, const float* query, double* out, const char* const* sum_rows,
                 const float* weights, float* total, std::size_t columns, std::size_t piece) {
  if (dot_rows == nullptr) {
    sweep_as<S, kDtype, false, true>(dot_rows, query, out, sum_rows, weights, total, columns, piece);
  } else if (sum_rows == nullptr) {
    sweep_as<S, kDtype, true, false>(dot_rows, query, out, sum_rows, weights, total, columns, piece);
  } else {
    sweep_as<S, kDtype, true, true>(dot_rows, query, out, sum_rows, weights, total, columns, piece);
  }
}

template <class S>
void sweep(Dtype dtype, const char* const* dot_rows, const float* query, double* out,
           const char* const* sum_rows, const float* weights, float* total, std::size_t columns,
           std::size_t piece) {
  switch (dtype) {
    case Dtype::kFloat32:
      return sweep_dtype<S, Dtype::kFloat32>(dot_rows, query, out, sum_rows, weights, total, columns, piece);
    case Dtype::kFloat16:
      return sweep_dtype<S, Dtype::kFloat16>(dot_rows, query, out, sum_rows, weights, total, columns, piece);
    case Dtype::kBfloat16:
      return sweep_dtype<S, Dtype::kBfloat16>(dot_rows, query, out, sum_rows, weights, total, columns, piece);
  }
}

template <class S>
constexpr RowKernels row_kernels_of() {
  return {widen<S>, dots<S>, stored_dots<S>, accumulate<S>, sweep<S>};
}

}  // namespace
}  // namespace gradian
