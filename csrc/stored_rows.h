// The rows of one block, as the store keeps them: one array per chunk.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "row_kernels.h"

namespace gradian {

class StoredRows {
 public:
  StoredRows(Dtype dtype, std::size_t columns) : dtype_(dtype), columns_(columns) {}

  // Adds `rows` contiguous rows of `columns` numbers; they must outlive this object.
  void append(const void* data, std::size_t rows);

  Dtype dtype() const { return dtype_; }
  std::size_t size() const { return starts_.back(); }
  std::size_t columns() const { return columns_; }
  std::size_t row_bytes() const { return columns_ * item_size(dtype_); }

  // rows[i] = address of row `first + i`, for i < count.
  void find(std::size_t first, std::size_t count, const char** rows) const;

 private:
  Dtype dtype_;
  std::size_t columns_;
  std::vector<const char*> segments_;
  std::vector<std::size_t> starts_{0};  // first row of each segment, and the number of rows
};

}  // namespace gradian
