// The k lowest and the k highest scores of each query, folded from tiles of scores.
//
// A row is compared with the last entry of both lists and nearly always goes no further. Queries share
// nothing, so threads take columns and no number depends on how many there are.
#include <pybind11/numpy.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>

#include "bindings.h"
#include "checked.h"
#include "thread_pool.h"

namespace py = pybind11;

namespace gradian {

namespace {

constexpr std::size_t kColumns = 64;  // queries a task: whole cache lines of a row, thresholds on the stack

// One end of all rankings: values and the rows that they belong to, [queries, k], best first.
struct Ranking {
  double* values;
  std::int64_t* rows;
};

// Puts a value that belongs into a list in its place; `filled` entries stand there before. An equal entry
// stays in front: its row came earlier.
template <typename Before>
void insert(double* values, std::int64_t* rows, std::size_t filled, std::size_t k, double value,
            std::int64_t row, Before before) {
  std::size_t place = std::min(filled, k - 1);
  for (; place > 0 && before(value, values[place - 1]); --place) {
    values[place] = values[place - 1];
    rows[place] = rows[place - 1];
  }
  values[place] = value;
  rows[place] = row;
}

// Folds columns [first, last) of the tile [count, queries].
void fold_columns(Ranking lowest, Ranking highest, std::size_t k, std::size_t seen, const double* tile,
                  std::size_t count, std::size_t queries, std::size_t first, std::size_t last) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto below = [](double a, double b) { return a < b; };
  const auto above = [](double a, double b) { return a > b; };
  // What a score must pass to enter a list. While a list has room no score lies between the two.
  double entry_low[kColumns];
  double entry_high[kColumns];
  for (std::size_t column = first; column < last; ++column) {
    const bool full = seen >= k;
    entry_low[column - first] = full ? lowest.values[column * k + k - 1] : kInfinity;
    entry_high[column - first] = full ? highest.values[column * k + k - 1] : -kInfinity;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const double* scores = tile + i * queries;
    const std::size_t filled = std::min(k, seen + i);
    const auto row = static_cast<std::int64_t>(seen + i);
    for (std::size_t column = first; column < last; ++column) {
      const double score = scores[column];
      double& low = entry_low[column - first];
      double& high = entry_high[column - first];
      if (score >= low && score <= high) continue;
      if (score != score) throw std::invalid_argument("a score is not a number");
      if (filled < k || score < low) {
        insert(lowest.values + column * k, lowest.rows + column * k, filled, k, score, row, below);
      }
      if (filled < k || score > high) {
        insert(highest.values + column * k, highest.rows + column * k, filled, k, score, row, above);
      }
      if (filled + 1 >= k) {
        low = lowest.values[column * k + k - 1];
        high = highest.values[column * k + k - 1];
      }
    }
  }
}

using Values = py::array_t<double, py::array::c_style>;
using Rows = py::array_t<std::int64_t, py::array::c_style>;

void fold_top_k(Values& lowest, Rows& lowest_rows, Values& highest, Rows& highest_rows, std::size_t seen,
                const Values& tile, std::size_t threads) {
  if (tile.ndim() != 2 || lowest.ndim() != 2)
    throw std::invalid_argument("scores and lists must be matrices");
  const auto count = static_cast<std::size_t>(tile.shape(0));
  const auto queries = static_cast<std::size_t>(tile.shape(1));
  const auto k = static_cast<std::size_t>(lowest.shape(1));
  for (const py::array* list :
       {static_cast<const py::array*>(&lowest), static_cast<const py::array*>(&lowest_rows),
        static_cast<const py::array*>(&highest), static_cast<const py::array*>(&highest_rows)}) {
    if (list->ndim() != 2 || static_cast<std::size_t>(list->shape(0)) != queries ||
        static_cast<std::size_t>(list->shape(1)) != k || k == 0) {
      throw std::invalid_argument("every list must be [queries, k] with k at least 1");
    }
  }
  if (checked_sum(seen, count) > static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())) {
    throw std::invalid_argument("a row number does not fit into 63 bits");
  }
  const Ranking low{lowest.mutable_data(), lowest_rows.mutable_data()};
  const Ranking high{highest.mutable_data(), highest_rows.mutable_data()};
  const double* scores = tile.data();
  const py::gil_scoped_release release;
  pool().for_each((queries + kColumns - 1) / kColumns, threads, [&](std::size_t task) {
    const std::size_t first = task * kColumns;
    fold_columns(low, high, k, seen, scores, count, queries, first, std::min(queries, first + kColumns));
  });
}

}  // namespace

void bind_top_k(py::module_& module) {
  module.def("fold_top_k", &fold_top_k, py::arg("lowest").noconvert(), py::arg("lowest_rows").noconvert(),
             py::arg("highest").noconvert(), py::arg("highest_rows").noconvert(), py::arg("seen"),
             py::arg("tile").noconvert(), py::arg("threads"),
             "Take a tile of scores into the ends of each query's ranking; see gradian.ops.top_k.");
}

}  // namespace gradian
