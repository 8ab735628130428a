// How codecs look and what they are called on the page of `gradtool report`.
#include "lib/page/codec_looks.hpp"

#include <gtest/gtest.h>

#include <set>

namespace gradtool::test {
namespace {

TEST(CodecLooks, StayTheSameAndAreAllDifferent) {
  CodecLooks looks;
  std::set<std::string> seen;
  const auto key = [](const CodecLooks::Look& look) {
    std::string text = look.colour + look.shape;
    for (const double length : look.dash) text += " " + std::to_string(length);
    return text;
  };
  for (int i = 0; i < 24; ++i) EXPECT_TRUE(seen.insert(key(looks.of("codec" + std::to_string(i)))).second) << i;
  const std::string first = key(looks.of("codec0"));
  EXPECT_EQ(looks.of("codec6").colour, looks.of("codec0").colour);
  EXPECT_NE(looks.of("codec6").shape, looks.of("codec0").shape);
  EXPECT_EQ(key(looks.of("codec0")), first);
}

std::vector<ResultRow> rows_of(const std::vector<std::string>& codecs) {
  std::vector<ResultRow> rows;
  rows.reserve(codecs.size());
  for (const auto& codec : codecs) rows.emplace_back(parse_codec(codec));
  return rows;
}

TEST(CodecLooks, LabelsNameWhatTellsCodecsApart) {
  const auto rows = rows_of({"bf16", "randomk", "topk", "topk:ratio=0.1", "qsgd:bits=4", "qsgd:bits=4,bucket=128"});
  const auto label = [&rows](std::size_t i) { return codec_label(rows.at(i), rows); };
  EXPECT_EQ(label(0), "bf16");
  EXPECT_EQ(label(1), "randomk:ratio=0.01") << "a name alone does not say how much is sent";
  EXPECT_EQ(label(2), "topk:ratio=0.01");
  EXPECT_EQ(label(3), "topk:ratio=0.1");
  EXPECT_EQ(label(4), "qsgd:bits=4,bucket=512") << "the other one has another bucket";
  EXPECT_EQ(label(5), "qsgd:bits=4,bucket=128");
  for (std::size_t i = 0; i < rows.size(); ++i)
    EXPECT_EQ(parse_codec(label(i)).params_text(), rows.at(i).codec.params_text()) << label(i);
}

}  // namespace
}  // namespace gradtool::test
