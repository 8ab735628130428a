#pragma once

// The only place that includes mpi.h, and without the C++ bindings, which the standard has removed.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace gradtool {

/// Throws Fault::backend with MPI's own text unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call, const char* file = __builtin_FILE(), int line = __builtin_LINE());
#define GT_MPI(call) check_mpi(call, #call)

}  // namespace gradtool
