#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace gradtool::test {

/// Folder of all methods, where suites read golden.txt and variants.txt. The variable GRADTOOL_METHOD_FOLDER says where
/// it is when a program runs in another place than it was built in (scripts/gpu-check.sh). Throws where there is no
/// such folder: suites without their tables would check nothing, or the wrong things.
inline const std::filesystem::path& method_folder() {
  static const std::filesystem::path folder = [] {
    const char* moved = std::getenv("GRADTOOL_METHOD_FOLDER");
    const std::filesystem::path place{moved != nullptr ? moved : GRADTOOL_METHOD_FOLDER};
    if (!std::filesystem::is_directory(place))
      throw std::runtime_error{"no folder '" + place.string() + "': set GRADTOOL_METHOD_FOLDER to lib/methods"};
    return place;
  }();
  return folder;
}

}  // namespace gradtool::test
