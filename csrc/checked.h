// Sizes that cannot wrap.
#pragma once

#include <cstddef>
#include <stdexcept>

namespace gradian {

inline std::size_t checked_product(std::size_t a, std::size_t b) {
  std::size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw std::overflow_error("a size does not fit into 64 bits");
  return product;
}

template <typename... Rest>
std::size_t checked_product(std::size_t a, std::size_t b, Rest... rest) {
  return checked_product(checked_product(a, b), rest...);
}

inline std::size_t checked_sum(std::size_t a, std::size_t b) {
  std::size_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) throw std::overflow_error("a size does not fit into 64 bits");
  return sum;
}

}  // namespace gradian
