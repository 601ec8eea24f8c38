// Per-cluster sums of scores. Rows are added in the order given and threads take columns, so that the order
// of the additions, and with it every bit, is the same for any number of threads.
#include <pybind11/numpy.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "bindings.h"
#include "thread_pool.h"

namespace py = pybind11;

namespace gradian {

namespace {

constexpr std::size_t kColumns = 64;  // queries a task: whole cache lines of a row

using Values = py::array_t<double, py::array::c_style>;
using Clusters = py::array_t<std::int64_t, py::array::c_style>;

void add_cluster_sums(Values& totals, const Values& tile, const Clusters& clusters, std::size_t threads) {
  if (tile.ndim() != 2 || totals.ndim() != 2 || totals.shape(1) != tile.shape(1)) {
    throw std::invalid_argument("totals and scores must be matrices of one width");
  }
  if (clusters.ndim() != 1 || clusters.shape(0) != tile.shape(0)) {
    throw std::invalid_argument("every row of scores needs one cluster");
  }
  const auto count = static_cast<std::size_t>(tile.shape(0));
  const auto queries = static_cast<std::size_t>(tile.shape(1));
  const std::int64_t* cluster = clusters.data();
  if (std::any_of(cluster, cluster + count, [&](std::int64_t c) { return c < 0 || c >= totals.shape(0); })) {
    throw std::invalid_argument("a cluster's number is out of range");
  }
  double* sums = totals.mutable_data();
  const double* scores = tile.data();
  const py::gil_scoped_release release;
  pool().for_each((queries + kColumns - 1) / kColumns, threads, [&](std::size_t task) {
    const std::size_t first = task * kColumns;
    const std::size_t last = std::min(queries, first + kColumns);
    for (std::size_t i = 0; i < count; ++i) {
      double* sum = sums + static_cast<std::size_t>(cluster[i]) * queries;
      for (std::size_t column = first; column < last; ++column) sum[column] += scores[i * queries + column];
    }
  });
}

}  // namespace

void bind_cluster_sums(py::module_& module) {
  module.def("add_cluster_sums", &add_cluster_sums, py::arg("totals").noconvert(),
             py::arg("tile").noconvert(), py::arg("clusters").noconvert(), py::arg("threads"),
             "Add each row of scores to the total of its cluster; see gradian.ops.cluster_sums.");
}

}  // namespace gradian
