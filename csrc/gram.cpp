// K = G G^T by the kernel of query_dots, with rows in place of queries. Threads share out panels of rows; the
// order of an entry's sum depends on the columns alone: float32 over a piece, float64 over the pieces.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "checked.h"
#include "passes.h"
#include "scoring.h"
#include "thread_pool.h"

namespace gradian {

namespace {

// A piece of two panels stays in the second-level cache.
constexpr std::size_t kPanelRows = 64;

struct Scratch {
  Scratch(const ColumnLayout& layout, std::size_t n)
      : addresses(kPanelRows),
        sums(checked_product(kPanelRows, n)),
        left(layout, kPanelRows),
        right(layout, kPanelRows) {}

  std::vector<const char*> addresses;
  std::vector<double> sums;  // of a panel with all rows up to its own last
  WidenedRows left;
  WidenedRows right;
};

class Panels {
 public:
  Panels(const StoredRows& rows, Isa isa, float* out)
      : rows_(rows), layout_(rows.columns()), kernels_(row_kernels(isa)), out_(out) {}

  void compute(std::size_t threads, Watch& watch) {
    const std::size_t panels = (rows_.size() + kPanelRows - 1) / kPanelRows;
    const std::size_t workers = pool().most(threads, panels);
    std::vector<std::unique_ptr<Scratch>> scratch;
    for (std::size_t w = 0; w < workers; ++w) {
      scratch.push_back(std::make_unique<Scratch>(layout_, rows_.size()));
    }
    std::atomic<std::size_t> next{0};
    const auto body = [&](std::size_t worker) {
      const auto stop = [&watch, worker] {
        if (worker == 0) watch.poll();
        return watch.stopped();
      };
      // The last panel has the most products: it goes first, so that the threads end together.
      for (std::size_t taken = next++; taken < panels; taken = next++) {
        const std::size_t panel = panels - 1 - taken;
        if (!sum(panel, *scratch[worker], stop)) return;
        write(panel, scratch[worker]->sums.data());
      }
    };
    pool().run(workers, body, [&watch] { watch.poll(); });
  }

 private:
  std::size_t first(std::size_t panel) const { return panel * kPanelRows; }
  std::size_t end(std::size_t panel) const { return std::min(rows_.size(), first(panel) + kPanelRows); }

  Matrix widen(std::size_t panel, std::size_t piece, WidenedRows& to, Scratch& own) const {
    const std::size_t count = end(panel) - first(panel);
    rows_.find(first(panel), count, own.addresses.data());
    return to.widen(kernels_, rows_.dtype(), own.addresses.data(), count, piece);
  }

  // own.sums[i * n + j] = <rows[first(panel) + i], rows[j]>, for j < end(panel). False if it was stopped.
  template <typename Stop>
  bool sum(std::size_t panel, Scratch& own, const Stop& stop) const {
    const std::size_t n = rows_.size();
    std::fill(own.sums.begin(), own.sums.end(), 0.0);
    for (std::size_t piece = 0; piece < layout_.pieces; ++piece) {
      const std::size_t columns = layout_.padded_columns(piece);
      const Matrix left = widen(panel, piece, own.left, own);
      for (std::size_t other = 0; other < panel; ++other) {
        if (stop()) return false;
        const Matrix right = widen(other, piece, own.right, own);
        kernels_.dots(left, right, columns, own.sums.data() + first(other), n);
      }
      kernels_.dots(left, left, columns, own.sums.data() + first(panel), n);
    }
    return true;
  }

  // Rows of the panel up to the diagonal, and the same numbers in the columns.
  void write(std::size_t panel, const double* sums) const {
    const std::size_t n = rows_.size();
    for (std::size_t other = 0; other <= panel; ++other) {
      for (std::size_t i = first(panel); i < end(panel); ++i) {
        const double* from = sums + (i - first(panel)) * n;
        for (std::size_t j = first(other); j < std::min(end(other), i + 1); ++j) {
          const float product = static_cast<float>(from[j]);
          out_[i * n + j] = product;
          out_[j * n + i] = product;
        }
      }
    }
  }

  const StoredRows& rows_;
  const ColumnLayout layout_;
  const RowKernels& kernels_;
  float* const out_;
};

}  // namespace

void gram(const StoredRows& rows, std::size_t threads, Isa isa, float* out, Watch& watch) {
  Panels(rows, isa, out).compute(threads, watch);
}

}  // namespace gradian
