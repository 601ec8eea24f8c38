#include "row_kernels.h"

namespace gradian {

const RowKernels& row_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return kAvx512RowKernels;
  if (isa == Isa::kAvx2) return kAvx2RowKernels;
#endif
  (void)isa;
  return kPortableRowKernels;
}

}  // namespace gradian
