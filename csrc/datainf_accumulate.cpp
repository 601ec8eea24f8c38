// Dots and their weighted sum of rows in one read. Each thread owns slices of the columns, so no sum is kept
// twice. In step k it computes its part of the dots of tile k and adds up tile k - 1, which is still in
// cache: one tile comes from memory while the other is worked on. Then all meet, and each adds the slices'
// parts up, in order, to the weights of the next step.
#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "checked.h"
#include "passes.h"
#include "scoring.h"
#include "thread_pool.h"

namespace gradian {

namespace {

// With one query memory sets the pace: two tiles should stay in cache. With many, arithmetic does, and every
// tile costs a pass over m x d sums, so it should have many rows.
constexpr std::size_t kTileBytes = std::size_t{1} << 20;
constexpr std::size_t kRowsPerQuery = 6;
constexpr std::size_t kMaxTileRows = 96;
// Rows summed up in float32 before the sum goes on in float64.
constexpr std::size_t kPanelRows = 256;

// A multiple of the rows that the kernels take at a time.
std::size_t tile_rows(std::size_t row_bytes, std::size_t m) {
  const std::size_t step = m == 1 ? kSweepRows : 12;
  const std::size_t wanted =
      std::max(kTileBytes / std::max<std::size_t>(1, row_bytes), m == 1 ? 0 : kRowsPerQuery * m);
  return std::clamp(wanted / step * step, step, kMaxTileRows);
}

// Tiles whose rows are summed up before the sum goes on in float64.
std::size_t panel_tiles(std::size_t rows) { return std::max<std::size_t>(1, kPanelRows / rows); }

struct Tile {
  std::size_t first = 0;
  std::vector<const char*> addresses;
  std::vector<float> weights;  // [rows, m]
};

struct Scratch {
  Scratch(const ColumnLayout& layout, const RowKernels& kernels, Dtype dtype, std::size_t max_rows,
          std::size_t m)
      : widened(layout, max_rows), sweeper(layout, kernels, dtype) {
    for (Tile* tile : {&dotted, &summed}) {
      tile->addresses.reserve(max_rows);
      tile->weights.resize(checked_product(max_rows, m));
    }
  }

  Tile dotted;
  Tile summed;
  WidenedRows widened;
  Sweeper sweeper;
};

class Pass {
 public:
  Pass(const StoredRows& rows, const float* queries, std::size_t m, const double* scale, std::size_t threads,
       Isa isa, double* dots, double* total, Watch& watch)
      : rows_(rows),
        m_(m),
        scale_(scale),
        dots_(dots),
        total_(total),
        kernels_(row_kernels(isa)),
        layout_(rows.columns()),
        tile_rows_(tile_rows(rows.row_bytes(), m)),
        tiles_((rows.size() + tile_rows_ - 1) / tile_rows_),
        panel_tiles_(panel_tiles(tile_rows_)),
        queries_(layout_, m),
        panel_(layout_, m),
        workers_(pool().most(threads, layout_.slices)),
        barrier_(workers_),
        watch_(watch) {
    queries_.fill(queries);
    const std::size_t size = checked_product(layout_.slices, tile_rows_, m_);
    for (std::vector<double>& partial : partial_) partial.resize(size);
    for (std::size_t w = 0; w < workers_; ++w) {
      scratch_.push_back(std::make_unique<Scratch>(layout_, kernels_, rows.dtype(), tile_rows_, m_));
    }
  }

  void run() {
    pool().run(workers_, [this](std::size_t worker) { work(worker); }, [this] { watch_.poll(); });
  }

 private:
  void work(std::size_t worker) {
    Scratch& own = *scratch_[worker];
    const std::size_t first = worker * layout_.slices / workers_;
    const std::size_t end = (worker + 1) * layout_.slices / workers_;
    for (std::size_t k = 0; k <= tiles_; ++k) {
      enter(own.dotted, k);
      double* partial = partial_[k % 2].data();
      const bool full = k > 0 && (k % panel_tiles_ == 0 || k == tiles_);
      for (std::size_t s = first; s < end && !stop(worker); ++s) {
        if (m_ == 1) {
          sweep(own, s, partial + s * tile_rows_);
        } else {
          multiply(own, s, partial + s * tile_rows_ * m_, worker);
        }
        if (full) flush(s);
      }
      if (k == tiles_) return;
      if (worker == 0 && watch_.stopped()) last_step_ = k;
      // One meeting a step is enough: the parts of step k + 1 go into the other half of `partial_`, and a
      // thread writes into this half again only after all have met again.
      barrier_.wait();
      // All leave after the same step, or some would wait for ever. A thread that looks late may see that the
      // next step is the last one, never that this one was.
      if (last_step_ <= k) return;
      combine(own.dotted, partial, worker == 0);
      std::swap(own.dotted, own.summed);
    }
  }

  void enter(Tile& tile, std::size_t k) const {
    tile.first = std::min(k * tile_rows_, rows_.size());
    tile.addresses.resize(std::min(tile_rows_, rows_.size() - tile.first));
    rows_.find(tile.first, tile.addresses.size(), tile.addresses.data());
  }

  void sweep(Scratch& own, std::size_t s, double* partial) {
    const std::vector<const char*>& dotted = own.dotted.addresses;
    const std::vector<const char*>& summed = own.summed.addresses;
    for (std::size_t r = 0; r < std::max(dotted.size(), summed.size()); r += kSweepRows) {
      const std::size_t n_dots = std::min(kSweepRows, dotted.size() - std::min(r, dotted.size()));
      const std::size_t n_sums = std::min(kSweepRows, summed.size() - std::min(r, summed.size()));
      double group[kSweepRows] = {};
      float weights[kSweepRows] = {};
      std::copy_n(own.summed.weights.data() + r, n_sums, weights);
      own.sweeper.run(s, dotted.data() + r, n_dots, queries_, group, summed.data() + r, n_sums, weights,
                      &panel_);
      std::copy_n(group, n_dots, partial + r);
    }
  }

  // Whether what is computed is no longer wanted.
  bool stop(std::size_t worker) {
    if (worker == 0) watch_.poll();
    return watch_.stopped();
  }

  void multiply(Scratch& own, std::size_t s, double* partial, std::size_t worker) {
    const std::vector<const char*>& dotted = own.dotted.addresses;
    const std::vector<const char*>& summed = own.summed.addresses;
    std::fill_n(partial, dotted.size() * m_, 0.0);
    for (std::size_t p = layout_.first_piece(s); p < layout_.end_piece(s) && !stop(worker); ++p) {
      const std::size_t columns = layout_.padded_columns(p);
      if (!summed.empty()) {
        const Matrix piece = own.widened.widen(kernels_, rows_.dtype(), summed.data(), summed.size(), p);
        kernels_.accumulate(piece, own.summed.weights.data(), m_, m_, columns, panel_.piece(p),
                            panel_.stride());
      }
      if (!dotted.empty()) {
        own.widened.dots(kernels_, rows_.dtype(), dotted.data(), dotted.size(), p, queries_.matrix(p),
                         partial, m_);
      }
    }
  }

  // Adds this slice of the float32 sums to the float64 total.
  void flush(std::size_t s) {
    for (std::size_t p = layout_.first_piece(s); p < layout_.end_piece(s); ++p) {
      for (std::size_t q = 0; q < m_; ++q) {
        float* from = panel_.piece(p) + q * panel_.stride();
        double* to = total_ + q * layout_.columns + p * layout_.piece;
        for (std::size_t c = 0; c < layout_.piece_columns(p); ++c) to[c] += static_cast<double>(from[c]);
        std::fill_n(from, layout_.padded_columns(p), 0.0F);
      }
    }
  }

  void combine(Tile& tile, const double* partial, bool write) {
    for (std::size_t r = 0; r < tile.addresses.size(); ++r) {
      for (std::size_t q = 0; q < m_; ++q) {
        double dot = 0.0;
        for (std::size_t s = 0; s < layout_.slices; ++s) dot += partial[(s * tile_rows_ + r) * m_ + q];
        if (write && dots_ != nullptr) dots_[(tile.first + r) * m_ + q] = dot;
        tile.weights[r * m_ + q] = static_cast<float>(dot * scale_[tile.first + r]);
      }
    }
  }

  const StoredRows& rows_;
  const std::size_t m_;
  const double* scale_;
  double* dots_;  // null where they are not kept
  double* total_;
  const RowKernels& kernels_;
  const ColumnLayout layout_;
  const std::size_t tile_rows_;
  const std::size_t tiles_;
  const std::size_t panel_tiles_;
  PiecewiseQueries queries_;
  PiecewiseQueries panel_;
  const std::size_t workers_;
  Barrier barrier_;
  Watch& watch_;
  std::atomic<std::size_t> last_step_{std::numeric_limits<std::size_t>::max()};
  std::vector<double> partial_[2];
  std::vector<std::unique_ptr<Scratch>> scratch_;
};

}  // namespace

std::size_t datainf_panel_rows(Dtype dtype, std::size_t m, std::size_t columns) {
  const std::size_t rows = tile_rows(checked_product(columns, item_size(dtype)), m);
  return rows * panel_tiles(rows);
}

void datainf_accumulate(const StoredRows& rows, const float* queries, std::size_t m, const double* scale,
                        std::size_t threads, Isa isa, double* dots, double* total, Watch& watch) {
  if (dots != nullptr) std::fill_n(dots, checked_product(rows.size(), m), 0.0);
  if (rows.size() == 0 || m == 0 || rows.columns() == 0) return;
  Pass(rows, queries, m, scale, threads, isa, dots, total, watch).run();
}

}  // namespace gradian
