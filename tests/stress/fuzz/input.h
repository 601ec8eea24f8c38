// What a fuzz target draws from the bytes it is given; when they are used up, zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// Ends the run: the finding is what the message says.
#define EXPECT(condition)                                                           \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)

// Two draws in one expression would come in an order of the compiler's.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), left_(size) {}

  bool empty() const { return left_ == 0; }

  template <typename T>
  T take() {
    T value{};
    const std::size_t size = left_ < sizeof(T) ? left_ : sizeof(T);
    std::memcpy(&value, at_, size);
    at_ += size;
    left_ -= size;
    return value;
  }

  // A number below `end`.
  std::size_t below(std::size_t end) { return take<std::uint16_t>() % end; }

  // A size: mostly one that a file could have, at times any of 64 bits, so that sums and products wrap.
  std::size_t size() {
    switch (take<std::uint8_t>() % 8) {
      case 0:
        return take<std::uint64_t>();
      case 1:
        return ~std::size_t{0} - take<std::uint16_t>();
      case 2:
        return std::size_t{take<std::uint16_t>()} << 12;
      case 3:
        return std::size_t{take<std::uint16_t>()} << 48;
      case 4:
        return take<std::uint32_t>() >> 8;
      case 5:
        return take<std::uint8_t>();
      default:
        return take<std::uint16_t>();
    }
  }

 private:
  const std::uint8_t* at_;
  std::size_t left_;
};
