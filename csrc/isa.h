// Which instruction set the kernels run on: chosen at run time, never at build time.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace gradian {

enum class Isa { kPortable, kAvx2, kAvx512 };

// The sets that this machine can run, best first; the portable one is always the last.
const std::vector<Isa>& supported_isas();

const char* isa_name(Isa isa);

// The set of that name, or the best one for no name.
// Throws std::invalid_argument for a name that is unknown or not supported here.
Isa choose_isa(const std::optional<std::string>& name);

}  // namespace gradian
