// No intrinsics: the compiler's own vectors, which it maps to what the architecture has. As wide as AVX-512,
// so that its bookkeeping runs on machines that lack it.
#include "row_kernels_impl.h"

namespace gradian {
namespace {

struct Portable {
  static constexpr std::size_t kWidth = 16;
  static constexpr std::size_t kTileRows = 2;
  static constexpr std::size_t kTileQueries = 2;

  static constexpr std::size_t kParts = 4;
  static constexpr std::size_t kPart = kWidth / kParts;
  typedef float Floats __attribute__((vector_size(4 * kPart)));
  typedef std::uint32_t Bits __attribute__((vector_size(4 * kPart)));
  typedef std::int32_t Integers __attribute__((vector_size(4 * kPart)));
  typedef std::uint16_t Words __attribute__((vector_size(2 * kPart)));
  struct Vector {
    Floats part[kParts];
  };

  static Vector zero() { return Vector{}; }
  static Vector load(const void* from) {
    Vector x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  static void store(float* to, Vector x) { std::memcpy(to, &x, sizeof x); }
  static Vector broadcast(float x) {
    Vector all;
    for (Floats& part : all.part) part = x - Floats{};
    return all;
  }
  static Vector add(Vector a, Vector b) {
    for (std::size_t i = 0; i < kParts; ++i) a.part[i] += b.part[i];
    return a;
  }
  static Vector fma(Vector a, Vector b, Vector c) {
    for (std::size_t i = 0; i < kParts; ++i) c.part[i] += a.part[i] * b.part[i];
    return c;
  }
  static float sum(Vector x) {
    const Floats four = (x.part[0] + x.part[2]) + (x.part[1] + x.part[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
  }
  static Bits load_words(const void* from) {
    Words words;
    std::memcpy(&words, from, sizeof words);
    return __builtin_convertvector(words, Bits);
  }
  static Floats widen_float16_part(const void* from) {
    const Bits half = load_words(from);
    const Bits sign = (half & 0x8000U) << 16;
    const Bits size = half & 0x7fffU;
    const Bits normal = (size << 13) + (112U << 23);  // exponent bias 15 becomes 127
    // Below the smallest exponent `size` counts units of 2^-24, and every count is a float32.
    const Floats small = __builtin_convertvector(reinterpret_cast<Integers>(size), Floats) * 0x1p-24F;
    const Bits is_small = reinterpret_cast<Bits>(size < 0x0400U);
    const Bits is_special = reinterpret_cast<Bits>(size >= 0x7c00U);
    const Bits is_nan = reinterpret_cast<Bits>(size > 0x7c00U);
    const Bits finite = (reinterpret_cast<Bits>(small) & is_small) | (normal & ~is_small);
    const Bits special = (size << 13) | 0x7f800000U | (is_nan & 0x00400000U);
    return reinterpret_cast<Floats>(sign | (special & is_special) | (finite & ~is_special));
  }
  static Vector widen_float16(const void* from) {
    Vector x;
    for (std::size_t i = 0; i < kParts; ++i) {
      x.part[i] = widen_float16_part(static_cast<const char*>(from) + 2 * kPart * i);
    }
    return x;
  }
  static Vector widen_bfloat16(const void* from) {
    Vector x;
    for (std::size_t i = 0; i < kParts; ++i) {
      const Bits words = load_words(static_cast<const char*>(from) + 2 * kPart * i);
      x.part[i] = reinterpret_cast<Floats>(words << 16);
    }
    return x;
  }
};

}  // namespace

const RowKernels kPortableRowKernels = row_kernels_of<Portable>();

}  // namespace gradian
