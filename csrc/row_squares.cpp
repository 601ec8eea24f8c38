#include "row_squares.h"

#include <cstring>

namespace gradian {

namespace {

inline float float_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t bits_of_float(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline double from_float32(float value) { return value; }

inline double from_bfloat16(std::uint16_t value) {
  return float_of_bits(static_cast<std::uint32_t>(value) << 16);
}

inline double from_float16(std::uint16_t value) {
  const std::uint32_t magnitude = value & 0x7FFFu;
  // The sign is of no use to a square. Infinities and NaN take float32's largest exponent.
  if (magnitude >= 0x7C00) return float_of_bits(0x7F800000u | (magnitude << 13));
  return magnitude < 0x400 ? magnitude * 0x1p-24 : float_of_bits(0x38000000u + (magnitude << 13));
}

template <typename T, double (*Widen)(T)>
void add_squares(const void* numbers, std::size_t count, double* lanes) {
  const T* const values = static_cast<const T*>(numbers);
  double sums[kSquareLanes];
  std::memcpy(sums, lanes, sizeof sums);
  std::size_t i = 0;
  for (; i + kSquareLanes <= count; i += kSquareLanes) {
    for (std::size_t lane = 0; lane < kSquareLanes; ++lane) {
      const double value = Widen(values[i + lane]);
      sums[lane] += value * value;
    }
  }
  for (std::size_t lane = 0; i + lane < count; ++lane) {
    const double value = Widen(values[i + lane]);
    sums[lane] += value * value;
  }
  std::memcpy(lanes, sums, sizeof sums);
}

inline std::uint16_t narrow_to_float16(float value) {
  const std::uint32_t bits = bits_of_float(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  std::uint32_t half;
  if (magnitude > 0x7F800000) {
    half = 0x7E00 | ((magnitude >> 13) & 0x3FF);
  } else if (magnitude >= 0x477FF000) {
    half = 0x7C00;  // 65520 and above round to infinity
  } else if (magnitude >= 0x38800000) {
    const std::uint32_t rebiased = magnitude - 0x38000000;
    half = (rebiased + 0xFFF + ((rebiased >> 13) & 1)) >> 13;
  } else {
    // float32 spaces numbers from 0.5 to 1 by 2^-24, float16's subnormal unit: the addition rounds to it.
    half = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3F000000;
  }
  return static_cast<std::uint16_t>(sign | half);
}

inline std::uint16_t narrow_to_bfloat16(float value) {
  const std::uint32_t bits = bits_of_float(value);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40 : rounded);
}

template <std::uint16_t (*Narrow)(float)>
void narrow(const float* numbers, std::size_t count, std::uint16_t* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = Narrow(numbers[i]);
}

}  // namespace

SquareKernels square_kernels_portable(StoredFormat format) {
  switch (format) {
    case StoredFormat::kFloat16:
      return {add_squares<std::uint16_t, from_float16>, narrow<narrow_to_float16>};
    case StoredFormat::kBfloat16:
      return {add_squares<std::uint16_t, from_bfloat16>, narrow<narrow_to_bfloat16>};
    case StoredFormat::kFloat32:
      break;
  }
  return {add_squares<float, from_float32>, nullptr};
}

SquareKernels square_kernels(StoredFormat format, Isa isa) {
#if defined(__x86_64__)
  if (isa != Isa::kPortable) return square_kernels_avx2(format);
#else
  (void)isa;
#endif
  return square_kernels_portable(format);
}

}  // namespace gradian
