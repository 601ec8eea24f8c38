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

template <class S, std::size_t R, std::size_t Q>
inline void dot_tile(const float* rows, std::size_t row_stride, const float* queries,
                     std::size_t query_stride, std::size_t columns, double* out, std::size_t out_stride) {
  typename S::Vector sums[R][Q];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (std::size_t q = 0; q < Q; ++q) sums[r][q] = S::zero();
  }
  for (std::size_t c = 0; c < columns; c += S::kWidth) {
    typename S::Vector query[Q];
#pragma GCC unroll 16
    for (std::size_t q = 0; q < Q; ++q) query[q] = S::load(queries + q * query_stride + c);
#pragma GCC unroll 16
    for (std::size_t r = 0; r < R; ++r) {
      const typename S::Vector row = S::load(rows + r * row_stride + c);
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

// The tile of exactly r x q, at most R x Q.
template <class S, std::size_t R, std::size_t Q>
inline void dot_tile_of(std::size_t r, std::size_t q, const float* rows, std::size_t row_stride,
                        const float* queries, std::size_t query_stride, std::size_t columns, double* out,
                        std::size_t out_stride) {
  if constexpr (R > 1) {
    if (r < R) {
      return dot_tile_of<S, R - 1, Q>(r, q, rows, row_stride, queries, query_stride, columns, out,
                                      out_stride);
    }
  }
  if constexpr (Q > 1) {
    if (q < Q) {
      return dot_tile_of<S, R, Q - 1>(r, q, rows, row_stride, queries, query_stride, columns, out,
                                      out_stride);
    }
  }
  dot_tile<S, R, Q>(rows, row_stride, queries, query_stride, columns, out, out_stride);
}

template <class S>
void dots(Matrix rows, Matrix queries, std::size_t columns, double* out, std::size_t out_stride) {
  for (std::size_t q = 0; q < queries.rows; q += S::kTileQueries) {
    const std::size_t n_queries = queries.rows - q < S::kTileQueries ? queries.rows - q : S::kTileQueries;
    for (std::size_t r = 0; r < rows.rows; r += S::kTileRows) {
      const std::size_t n_rows = rows.rows - r < S::kTileRows ? rows.rows - r : S::kTileRows;
      dot_tile_of<S, S::kTileRows, S::kTileQueries>(
          n_rows, n_queries, rows.data + r * rows.stride, rows.stride, queries.data + q * queries.stride,
          queries.stride, columns, out + r * out_stride + q, out_stride);
    }
  }
}

// V vectors of columns for Q queries, summed over the rows in registers.
template <class S, std::size_t V, std::size_t Q>
inline void sum_tile(Matrix rows, const float* weights, std::size_t weight_stride, float* total,
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

template <class S, std::size_t V, std::size_t Q>
inline void sum_tile_of(std::size_t v, std::size_t q, Matrix rows, const float* weights,
                        std::size_t weight_stride, float* total, std::size_t total_stride) {
  if constexpr (V > 1) {
    if (v < V) return sum_tile_of<S, V - 1, Q>(v, q, rows, weights, weight_stride, total, total_stride);
  }
  if constexpr (Q > 1) {
    if (q < Q) return sum_tile_of<S, V, Q - 1>(v, q, rows, weights, weight_stride, total, total_stride);
  }
  sum_tile<S, V, Q>(rows, weights, weight_stride, total, total_stride);
}

template <class S>
void accumulate(Matrix rows, const float* weights, std::size_t weight_stride, std::size_t n_queries,
                std::size_t columns, float* total, std::size_t total_stride) {
  const std::size_t vectors = columns / S::kWidth;
  // Columns outside: those of all rows stay in the first-level cache for every query.
  for (std::size_t v = 0; v < vectors; v += S::kTileRows) {
    const std::size_t n_vectors = vectors - v < S::kTileRows ? vectors - v : S::kTileRows;
    const std::size_t c = v * S::kWidth;
    for (std::size_t q = 0; q < n_queries; q += S::kTileQueries) {
      const std::size_t n = n_queries - q < S::kTileQueries ? n_queries - q : S::kTileQueries;
      sum_tile_of<S, S::kTileRows, S::kTileQueries>(n_vectors, n, {rows.data + c, rows.rows, rows.stride},
                                                    weights + q, weight_stride, total + q * total_stride + c,
                                                    total_stride);
    }
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
  return {widen<S>, dots<S>, accumulate<S>, sweep<S>};
}

}  // namespace
}  // namespace gradian
