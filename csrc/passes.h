// What is computed over all rows of a block. `threads` and `isa` change no bit of it.
#pragma once

#include <cstddef>

#include "isa.h"
#include "stored_rows.h"
#include "watch.h"

namespace gradian {

// dots[i * m + q] = <rows[i], queries[q]>, for queries [m, columns].
void query_dots(const StoredRows& rows, const float* queries, std::size_t m, std::size_t threads, Isa isa,
                double* dots, Watch& watch);

// The same dots, which are not kept where `dots` is null; their sum of rows, [m, columns], is added:
// total[q] += sum_i dots[i * m + q] scale[i] rows[i].
void datainf_accumulate(const StoredRows& rows, const float* queries, std::size_t m, const double* scale,
                        std::size_t threads, Isa isa, double* dots, double* total, Watch& watch);

// Rows may be given in parts of a multiple of so many without changing a bit of the sum.
std::size_t datainf_panel_rows(Dtype dtype, std::size_t m, std::size_t columns);

// out[i * n + j] = <rows[i], rows[j]>, for n rows.
void gram(const StoredRows& rows, std::size_t threads, Isa isa, float* out, Watch& watch);

}  // namespace gradian
