// The Python module gradian._native. Python validates before it calls; what is checked again here is what
// would otherwise read or write outside of an array.
#include "bindings.h"

#include <pybind11/stl.h>

#include "isa.h"

namespace py = pybind11;

PYBIND11_MODULE(_native, module) {
  module.doc() = "Compiled fast paths of Gradian; each has a pure torch or numpy reference.";
  module.def(
      "instruction_sets",
      [] {
        std::vector<std::string> names;
        for (const gradian::Isa isa : gradian::supported_isas()) names.emplace_back(gradian::isa_name(isa));
        return names;
      },
      "Names of the instruction sets that this machine can run, best first.");
  gradian::bind_chunk_reader(module);
  gradian::bind_chunk_writer(module);
  gradian::bind_top_k(module);
  gradian::bind_cluster_sums(module);
  gradian::bind_widen(module);
  gradian::bind_query_dots(module);
  gradian::bind_gram(module);
  gradian::bind_datainf_accumulate(module);
  gradian::bind_heartbeat(module);
}
