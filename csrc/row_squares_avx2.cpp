#include <immintrin.h>

#include "row_squares.h"

namespace gradian {

namespace {

struct Float32 {
  using Stored = float;
  static __m256 load8(const float* at) { return _mm256_loadu_ps(at); }
};

struct Float16 {
  using Stored = std::uint16_t;
  static __m256 load8(const std::uint16_t* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
};

struct Bfloat16 {
  using Stored = std::uint16_t;
  static __m256 load8(const std::uint16_t* at) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
};

inline __m256d plus_squares(__m256d sums, __m128 numbers) {
  const __m256d wide = _mm256_cvtps_pd(numbers);
  return _mm256_fmadd_pd(wide, wide, sums);
}

template <typename Format>
void add_squares(const void* numbers, std::size_t count, double* lanes) {
  using Stored = typename Format::Stored;
  const Stored* at = static_cast<const Stored*>(numbers);
  __m256d sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = _mm256_loadu_pd(lanes + 4 * i);
  const auto add16 = [&sums](const Stored* from) {
    const __m256 first = Format::load8(from);
    const __m256 second = Format::load8(from + 8);
    sums[0] = plus_squares(sums[0], _mm256_castps256_ps128(first));
    sums[1] = plus_squares(sums[1], _mm256_extractf128_ps(first, 1));
    sums[2] = plus_squares(sums[2], _mm256_castps256_ps128(second));
    sums[3] = plus_squares(sums[3], _mm256_extractf128_ps(second, 1));
  };
  for (; count >= kSquareLanes; count -= kSquareLanes, at += kSquareLanes) add16(at);
  if (count > 0) {
    // Filled up with zeros, which change no lane.
    Stored rest[kSquareLanes] = {};
    for (std::size_t i = 0; i < count; ++i) rest[i] = at[i];
    add16(rest);
  }
  for (int i = 0; i < 4; ++i) _mm256_storeu_pd(lanes + 4 * i, sums[i]);
}

inline __m128i narrow8_float16(__m256 numbers) {
  return _mm256_cvtps_ph(numbers, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline __m128i narrow8_bfloat16(__m256 numbers) {
  const __m256i bits = _mm256_castps_si256(numbers);
  const __m256i top = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(numbers, numbers, _CMP_UNORD_Q));
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
}

template <__m128i (*Narrow8)(__m256)>
void narrow(const float* numbers, std::size_t count, std::uint16_t* out) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), Narrow8(_mm256_loadu_ps(numbers + i)));
  }
  if (i == count) return;
  float rest[8] = {};
  std::uint16_t narrowed[8];
  for (std::size_t j = 0; i + j < count; ++j) rest[j] = numbers[i + j];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(narrowed), Narrow8(_mm256_loadu_ps(rest)));
  for (std::size_t j = 0; i + j < count; ++j) out[i + j] = narrowed[j];
}

}  // namespace

SquareKernels square_kernels_avx2(StoredFormat format) {
  switch (format) {
    case StoredFormat::kFloat16:
      return {add_squares<Float16>, narrow<narrow8_float16>};
    case StoredFormat::kBfloat16:
      return {add_squares<Bfloat16>, narrow<narrow8_bfloat16>};
    case StoredFormat::kFloat32:
      break;
  }
  return {add_squares<Float32>, nullptr};
}

}  // namespace gradian
