#include <immintrin.h>

#include "row_kernels_impl.h"

namespace gradian {
namespace {

struct Avx2 {
  using Vector = __m256;
  static constexpr std::size_t kWidth = 8;
  static constexpr std::size_t kTileRows = 3;
  static constexpr std::size_t kTileQueries = 4;

  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector load(const void* from) { return _mm256_loadu_ps(static_cast<const float*>(from)); }
  static void store(float* to, Vector x) { _mm256_storeu_ps(to, x); }
  static Vector broadcast(float x) { return _mm256_set1_ps(x); }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static float sum(Vector x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static __m128i load_words(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
  static Vector widen_float16(const void* from) { return _mm256_cvtph_ps(load_words(from)); }
  static Vector widen_bfloat16(const void* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_words(from)), 16));
  }
};

}  // namespace

const RowKernels kAvx2RowKernels = row_kernels_of<Avx2>();

}  // namespace gradian
