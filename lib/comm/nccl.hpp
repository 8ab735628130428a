#pragma once

#include <string>

namespace gradtool {

/// "NCCL 2.28.9".
[[nodiscard]] std::string nccl_library_version();

}  // namespace gradtool
