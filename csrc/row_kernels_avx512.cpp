#if defined(__GNUC__) && !defined(__clang__)
// gcc 12 warns about the undefined operands inside its own intrinsics (gcc bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "row_kernels_impl.h"

namespace gradian {
namespace {

struct Avx512 {
  using Vector = __m512;
  static constexpr std::size_t kWidth = 16;
  static constexpr std::size_t kTileRows = 6;
  static constexpr std::size_t kTileQueries = 4;

  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector load(const void* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vector x) { _mm512_storeu_ps(to, x); }
  static Vector broadcast(float x) { return _mm512_set1_ps(x); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static float sum(Vector x) { return _mm512_reduce_add_ps(x); }
  static __m256i load_words(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  static Vector widen_float16(const void* from) { return _mm512_cvtph_ps(load_words(from)); }
  static Vector widen_bfloat16(const void* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_words(from)), 16));
  }
};

}  // namespace

const RowKernels kAvx512RowKernels = row_kernels_of<Avx512>();

}  // namespace gradian
