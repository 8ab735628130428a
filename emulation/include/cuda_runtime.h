#pragma once

/// CUDA's runtime and its C++ dialect, as far as gradtool's .cu files use them, for a CPU (README.md beside this
/// folder). Names and meanings are those of the CUDA documentation.

#include "emulation/api.hpp"
#include "emulation/atomics.hpp"
#include "emulation/dialect.hpp"
#include "emulation/intrinsics.hpp"
#include "emulation/launch.hpp"
#include "emulation/warp.hpp"
