// D = G Q^T. Threads share out tiles of rows; a row's sum depends on its columns alone: float32 over a piece,
// float64 over the pieces of a slice, then over slices, as in datainf_accumulate.
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

// Rows of a tile that are swept, or widened, at a time.
constexpr std::size_t kTileRows = 24;

struct Scratch {
  Scratch(const ColumnLayout& layout, const RowKernels& kernels, Dtype dtype, std::size_t m)
      : addresses(kTileRows),
        partial(checked_product(kTileRows, m)),
        widened(layout, kTileRows),
        sweeper(layout, kernels, dtype) {}

  std::vector<const char*> addresses;
  std::vector<double> partial;
  WidenedRows widened;
  Sweeper sweeper;
};

}  // namespace

void query_dots(const StoredRows& rows, const float* queries, std::size_t m, std::size_t threads, Isa isa,
                double* dots, Watch& watch) {
  const std::size_t n = rows.size();
  std::fill_n(dots, checked_product(n, m), 0.0);
  if (n == 0 || m == 0 || rows.columns() == 0) return;
  const ColumnLayout layout(rows.columns());
  const RowKernels& kernels = row_kernels(isa);
  PiecewiseQueries packed(layout, m);
  packed.fill(queries);
  const std::size_t tiles = (n + kTileRows - 1) / kTileRows;
  const std::size_t workers = pool().most(threads, tiles);
  std::vector<std::unique_ptr<Scratch>> scratch;
  for (std::size_t w = 0; w < workers; ++w) {
    scratch.push_back(std::make_unique<Scratch>(layout, kernels, rows.dtype(), m));
  }
  std::atomic<std::size_t> next{0};
  const auto body = [&](std::size_t worker) {
    Scratch& own = *scratch[worker];
    const auto stop = [&watch, worker] {
      if (worker == 0) watch.poll();
      return watch.stopped();
    };
    for (std::size_t tile = next++; tile < tiles; tile = next++) {
      const std::size_t first = tile * kTileRows;
      const std::size_t count = std::min(kTileRows, n - first);
      double* out = dots + first * m;
      rows.find(first, count, own.addresses.data());
      for (std::size_t s = 0; s < layout.slices; ++s) {
        if (stop()) return;
        std::fill(own.partial.begin(), own.partial.end(), 0.0);
        if (m == 1) {
          for (std::size_t r = 0; r < count; r += kSweepRows) {
            double group[kSweepRows] = {};
            const std::size_t size = std::min(kSweepRows, count - r);
            own.sweeper.run(s, own.addresses.data() + r, size, packed, group, nullptr, 0, nullptr, nullptr);
            std::copy_n(group, size, own.partial.data() + r);
          }
        } else {
          for (std::size_t p = layout.first_piece(s); p < layout.end_piece(s) && !stop(); ++p) {
            own.widened.dots(kernels, rows.dtype(), own.addresses.data(), count, p, packed.matrix(p),
                             own.partial.data(), m);
          }
        }
        for (std::size_t i = 0; i < count * m; ++i) out[i] += own.partial[i];
      }
    }
  };
  pool().run(workers, body, [&watch] { watch.poll(); });
}

}  // namespace gradian
