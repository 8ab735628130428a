#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "lib/codecs/registry.hpp"
#include "lib/core/sha256.hpp"
#include "tests/codecs/golden_inputs.hpp"

namespace gradtool::test {

/// A line of tests/golden/payloads.txt: the hash of what a codec writes for an input.
struct GoldenLine {
  std::string spec, input, hash;
};

/// Those of the codecs that this build has.
inline std::vector<GoldenLine> golden_lines() {
  std::vector<GoldenLine> lines;
  std::ifstream table{GRADTOOL_GOLDEN_TABLE};
  EXPECT_TRUE(table) << "no table at " << GRADTOOL_GOLDEN_TABLE;
  for (std::string text; std::getline(table, text);) {
    if (text.empty() || text[0] == '#') continue;
    std::istringstream words{text};
    GoldenLine line;
    words >> line.spec >> line.input >> line.hash;
    const auto name = line.spec.substr(0, line.spec.find(':'));
    for (const auto* codec : codecs()) {
      if (codec->name == name) lines.push_back(line);
    }
  }
  return lines;
}

inline std::string hash_of(const std::vector<std::byte>& payload) {
  Sha256 hash;
  hash.update(payload);
  return hash.hex();
}

}  // namespace gradtool::test
