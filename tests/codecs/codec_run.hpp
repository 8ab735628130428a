#pragma once

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/task_pool.hpp"
#include "tests/codecs/method_folder.hpp"

namespace gradtool::test {

/// A codec with buffers for n elements, poisoned before every use, so that a byte it forgot to write shows.
class CodecRun {
 public:
  CodecRun(const std::string& spec, std::size_t n, int threads = 1) : CodecRun{spec, Layout::flat(n), threads} {}
  CodecRun(const std::string& spec, const Layout& layout, int threads = 1)
      : spec_{parse_codec(spec)},
        codec_{spec_.descriptor->make_host(spec_.params, layout)},
        footprint_{codec_->plan(layout.elements)},
        n_{layout.elements},
        pool_{threads},
        queue_{threads > 1 ? &pool_ : nullptr},
        arena_{Arena<Space::host>::padded_size(footprint_.payload_bytes) +
               Arena<Space::host>::padded_size(footprint_.scratch_bytes)},
        payload_{arena_.take_bytes(footprint_.payload_bytes)},
        scratch_{arena_.take_bytes(footprint_.scratch_bytes)} {}

  /// The payload's bytes, as long as they are.
  std::vector<std::byte> encode(std::span<const float> x, const EncodeContext& context = {}, int poison = 0xA5) {
    std::memset(payload_.data(), poison, payload_.size());
    std::memset(scratch_.data(), poison, scratch_.size());
    codec_->encode(queue_, {x.data(), x.size()}, context, payload_, scratch_);
    std::size_t bytes = footprint_.payload_bytes;
    if (!footprint_.exact) {
      std::uint64_t stated = 0;
      std::memcpy(&stated, payload_.data(), sizeof stated);
      bytes = stated;
    }
    return {payload_.data(), payload_.data() + std::min(bytes, payload_.size())};
  }

  void decode_add(std::span<const std::byte> payload, float weight, std::span<float> out) {
    // An own allocation of exactly this size, so that AddressSanitizer sees a read past its end.
    Arena<Space::host> exact{payload.size()};
    auto view = exact.take_bytes(payload.size());
    if (!payload.empty()) std::memcpy(view.data(), payload.data(), payload.size());
    std::memset(scratch_.data(), 0x5A, scratch_.size());
    codec_->decode_add(queue_, view, weight, {out.data(), out.size()}, scratch_);
  }

  std::vector<float> decode(std::span<const std::byte> payload) {
    std::vector<float> out(n_, 0.0F);
    decode_add(payload, 1.0F, out);
    return out;
  }

  [[nodiscard]] const Codec<Space::host>& codec() const { return *codec_; }
  [[nodiscard]] const CodecSpec& spec() const { return spec_; }
  [[nodiscard]] const Footprint& footprint() const { return footprint_; }
  [[nodiscard]] Queue<Space::host> queue() const { return queue_; }
  [[nodiscard]] HostView<std::byte> payload() const { return payload_; }
  [[nodiscard]] HostView<std::byte> scratch() const { return scratch_; }

 private:
  CodecSpec spec_;
  std::unique_ptr<Codec<Space::host>> codec_;
  Footprint footprint_;
  std::size_t n_;
  TaskPool pool_;
  Queue<Space::host> queue_;
  Arena<Space::host> arena_;
  HostView<std::byte> payload_, scratch_;
};

/// A unit of several tensors of several kinds, for codecs that look at shapes.
inline Layout several_tensors() {
  Layout layout;
  const auto add = [&](std::vector<std::int64_t> shape, std::string kind, std::size_t elements) {
    layout.tensors.push_back({.name = kind + std::to_string(layout.tensors.size()),
                              .shape = std::move(shape),
                              .kind = std::move(kind),
                              .first = layout.elements,
                              .elements = elements});
    layout.elements += elements;
  };
  add({9, 8, 3, 3}, "conv", 648);
  add({9}, "norm", 9);
  add({9}, "bias", 9);
  add({33, 65}, "linear", 2145);
  add({1}, "bias", 1);
  add({40, 300}, "embedding", 12'000);  // more than one piece of a parallel loop
  return layout;
}

/// A line of lib/methods/<name>/variants.txt: a specification, and behind a # what suites must know of it, which
/// docs/adding-a-codec.md lists. The codec's bare name stands for its defaults.
struct Variant {
  std::string spec;
  std::string traits;  ///< words, before the colon of a reason
};
inline std::vector<Variant> lines_of_variants(const CodecDescriptor& codec) {
  std::vector<Variant> lines;
  std::ifstream file{method_folder() / codec.name / "variants.txt"};
  for (std::string line; std::getline(file, line);) {
    const auto end = std::min(line.find(' '), line.size());
    const auto hash = line.find("# ");
    lines.push_back({line.substr(0, end), hash == std::string::npos
                                              ? std::string{}
                                              : line.substr(hash + 2, line.find(": ", hash) - hash - 2)});
  }
  return lines;
}
/// Whether the specification has the trait; the codec's bare name speaks for all of its specifications.
inline bool has_trait(const std::string& spec, std::string_view trait) {
  const CodecDescriptor& codec = *parse_codec(spec).descriptor;
  const auto lines = lines_of_variants(codec);
  const std::string word = " " + std::string{trait} + " ";
  return std::any_of(lines.begin(), lines.end(), [&](const Variant& line) {
    return (line.spec == spec || line.spec == codec.name) && (" " + line.traits + " ").find(word) != std::string::npos;
  });
}

/// Specifications that take other paths than the defaults do. For a reducer of its own their parameters reach every
/// phase within six steps.
inline std::vector<std::string> variants_of(const CodecDescriptor& codec) {
  std::vector<std::string> specs;
  for (auto& line : lines_of_variants(codec)) {
    if (line.spec != codec.name) specs.push_back(std::move(line.spec));
  }
  return specs;
}

/// The specifications that suites over codecs run: every method that has one, with its defaults, and their variants.
inline std::vector<std::string> specs_to_test() {
  std::vector<std::string> specs;
  for (const auto* codec : codecs()) {
    if (has_codec(*codec)) specs.emplace_back(codec->name);
  }
  for (const auto* codec : codecs()) {
    if (!has_codec(*codec)) continue;
    for (auto& variant : variants_of(*codec)) specs.push_back(std::move(variant));
  }
  return specs;
}

/// Readable test names: letters, digits and underscores.
inline std::string test_name(std::string spec) {
  for (auto& c : spec) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return spec;
}

}  // namespace gradtool::test
