#include "isa.h"

#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gradian {

#if defined(__x86_64__)
namespace {

// Not every clang knows "f16c" as a feature to ask for. That the system keeps the registers, "avx2" says.
bool has_f16c() {
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace
#endif

const std::vector<Isa>& supported_isas() {
  static const std::vector<Isa> found = [] {
    std::vector<Isa> isas;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      isas.push_back(Isa::kAvx512);
    }
    if (avx2) isas.push_back(Isa::kAvx2);
#endif
    isas.push_back(Isa::kPortable);
    return isas;
  }();
  return found;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kPortable:
      break;
  }
  return "portable";
}

Isa choose_isa(const std::optional<std::string>& name) {
  if (!name) return supported_isas().front();
  for (const Isa isa : supported_isas()) {
    if (*name == isa_name(isa)) return isa;
  }
  throw std::invalid_argument("this machine has no instruction set called '" + *name + "'");
}

}  // namespace gradian
