#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "lib/codecs/registry.hpp"
#include "lib/core/sha256.hpp"
#include "tests/codecs/golden_inputs.hpp"
#include "tests/codecs/method_folder.hpp"

namespace gradtool::test {

/// A line of lib/methods/<name>/golden.txt: the hash of what a codec writes for an input of golden_inputs.hpp.
struct GoldenLine {
  std::string spec, input, hash;
};

/// The table of one method; empty where it has none.
inline std::vector<GoldenLine> golden_lines(std::string_view method) {
  std::vector<GoldenLine> lines;
  std::ifstream table{method_folder() / method / "golden.txt"};
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
