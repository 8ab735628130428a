#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "lib/codecs/registry.hpp"
#include "lib/core/sha256.hpp"
#include "tests/codecs/golden_inputs.hpp"

namespace gradtool::test {

/// A line of lib/methods/<name>/golden.txt: the hash of what a codec writes for an input of golden_inputs.hpp.
struct GoldenLine {
  std::string spec, input, hash;
};

/// The table of one method; empty where it has none. The variable GRADTOOL_METHOD_FOLDER says where methods lie when the
/// program was built in another place (scripts/gpu-check.sh).
inline std::vector<GoldenLine> golden_lines(std::string_view method) {
  std::vector<GoldenLine> lines;
  const char* moved = std::getenv("GRADTOOL_METHOD_FOLDER");
  std::ifstream table{std::string{moved != nullptr ? moved : GRADTOOL_METHOD_FOLDER}.append("/").append(method) +
                      "/golden.txt"};
  for (std::string text; std::getline(table, text);) {
    std::istringstream words{text};
    GoldenLine line;
    words >> line.spec >> line.input >> line.hash;
    lines.push_back(line);
  }
  return lines;
}

inline std::string hash_of(const std::vector<std::byte>& payload) {
  Sha256 hash;
  hash.update(payload);
  return hash.hex();
}

}  // namespace gradtool::test
