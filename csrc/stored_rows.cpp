#include "stored_rows.h"

#include <algorithm>

#include "checked.h"

namespace gradian {

void StoredRows::append(const void* data, std::size_t rows) {
  if (rows == 0) return;
  checked_product(rows, columns_, item_size(dtype_));
  segments_.push_back(static_cast<const char*>(data));
  starts_.push_back(checked_sum(starts_.back(), rows));
}

void StoredRows::find(std::size_t first, std::size_t count, const char** rows) const {
  if (count == 0) return;
  auto after = std::upper_bound(starts_.begin(), starts_.end(), first);
  for (std::size_t row = first; row < first + count; ++row) {
    if (row == *after) ++after;
    const auto segment = static_cast<std::size_t>(after - starts_.begin()) - 1;
    rows[row - first] = segments_[segment] + (row - starts_[segment]) * row_bytes();
  }
}

}  // namespace gradian
