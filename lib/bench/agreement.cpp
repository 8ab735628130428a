#include "lib/bench/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "gradtool_version.hpp"
#include "lib/bench/fingerprint.hpp"
#include "lib/core/error.hpp"
#include "lib/core/sha256.hpp"
#include "lib/core/text.hpp"
#include "lib/core/utf8.hpp"

namespace gradtool {
namespace {

void add_options(std::vector<Fact>& facts, const BenchOptions& options) {
  const auto yes = [](bool value) { return value ? "yes" : "no"; };
  facts.push_back({"gradtool", GRADTOOL_VERSION " (" GRADTOOL_COMMIT ")"});
  facts.push_back({"--comm", options.comm});
  if (options.comm == "udp") facts.push_back({"--comm udp's options", options.udp.text});
  facts.push_back({"--device", options.device});
  facts.push_back({"the number of codecs", fmt::to_string(options.codecs.size())});
  for (const auto& spec : options.codecs) {
    facts.push_back(
        {"--codec", fmt::format("{}{}{}", spec.name(), spec.params_text().empty() ? "" : ":", spec.params_text())});
  }
  facts.push_back({"the number of granularities", fmt::to_string(options.granularities.size())});
  for (const auto& granularity : options.granularities) facts.push_back({"--granularity", granularity.text()});
  facts.push_back({"--synthetic", joined(options.sizes, ", ")});
  facts.push_back({"--rounds", fmt::to_string(options.rounds)});
  facts.push_back({"--baseline-dtype", std::string{options.baseline ? name_of(*options.baseline) : "captured"}});
  facts.push_back({"--values", fmt::to_string(static_cast<int>(options.values))});
  facts.push_back({"--op", std::string{name_of(options.op)}});
  facts.push_back({"--levels", fmt::format("node={}", options.node)});
  facts.push_back(
      {"--codec-inner", options.inner ? options.inner->name() + ":" + options.inner->params_text() : "none"});
  facts.push_back({"--reduce", std::string{name_of(options.scheme)}});
  facts.push_back({"--all-reduce", std::string{name_of(options.all_reduce)}});
  facts.push_back({"--pipeline", fmt::to_string(options.pipeline)});
  facts.push_back({"--timing", !options.isolated ? "concurrent" : !options.concurrent ? "isolated" : "both"});
  facts.push_back({"--network, which has codecs replayed by more ways", yes(!options.networks.empty())});
  const auto machines = std::find_if(options.networks.begin(), options.networks.end(),
                                     [](const Network& network) { return network.node > 1; });
  facts.push_back(
      {"the ranks of a machine in --network", fmt::to_string(machines == options.networks.end() ? 1 : machines->node)});
  facts.push_back({"--seed", fmt::to_string(options.seed)});
  facts.push_back({"--seeds behind the first", joined(options.more_seeds, ", ")});
  const auto& steps = options.only_iterations;
  facts.push_back({"--steps", steps ? fmt::format("{}:{}", steps->first, steps->last) : "all"});
  facts.push_back({"--check", yes(options.check)});
  facts.push_back({"--hot", yes(options.hot)});
  facts.push_back({"the list of outputs", options.outputs.empty() ? " none" : options.outputs});
  facts.push_back({"--layers", options.layers.empty() ? "all" : options.layers});
  const auto& rule = options.update_rule;
  facts.push_back({"--update-error", !rule ? "off"
                                     : rule->adam
                                         ? fmt::format("adam:{},{},{}", rule->beta1, rule->beta2, rule->epsilon)
                                         : fmt::format("sgd:{},{}", rule->momentum, rule->nesterov)});
  facts.push_back({"--reconstruction", yes(!options.reconstruction.empty())});
  facts.push_back({"--payloads", yes(!options.payloads.empty())});
}

void add_shapes(std::vector<Fact>& facts, const GradientSource& reader) {
  facts.push_back({"the number of workers", fmt::to_string(reader.workers())});
  facts.push_back({"the number of steps", fmt::to_string(reader.steps().size())});
  const auto reduced_in = reader.info().reduce_dtype;
  facts.push_back({"reduce_dtype", std::string{reduced_in ? name_of(*reduced_in) : "none"}});
  facts.push_back({"the number of tensors", fmt::to_string(reader.tensors().size())});
  Sha256 steps;
  for (const auto& step : reader.steps()) {
    const std::string text = fmt::format("{} {} ", step.iteration, step.learning_rate.value_or(0.0));
    steps.update(std::as_bytes(std::span{text}));
  }
  facts.push_back({"the hash of the steps' iterations and learning rates", steps.hex()});
  for (std::size_t t = 0; t < reader.tensors().size(); ++t) {
    const TensorInfo& info = reader.tensors()[t];
    facts.push_back({fmt::format("tensor {}", t),
                     fmt::format("{} [{}] {} {} {}{}{}", info.name, joined(info.shape, ", "), name_of(info.dtype),
                                 info.kind, printable(info.layout), info.has_second_moment ? ", second moments" : "",
                                 info.has_weight ? ", weights" : "")});
  }
}

/// Hashes values that arrive in parts of the same tensor.
class ValueHash {
 public:
  /// `read(first, out)` reads the part that begins at `first`.
  template <class Read>
  void add(std::uint64_t elements, std::vector<float>& buffer, Read read) {
    constexpr std::uint64_t kPart = std::uint64_t{1} << 20;
    for (std::uint64_t first = 0; first < elements; first += kPart) {
      buffer.resize(std::min(kPart, elements - first));
      read(first, std::span<float>{buffer});
      const auto print = fingerprint(buffer);
      hash_.update(std::as_bytes(std::span{print}));
    }
  }
  [[nodiscard]] std::string hex() { return hash_.hex(); }

 private:
  Sha256 hash_;
};

void add_values(std::vector<Fact>& facts, const BenchOptions& options, const GradientSource& reader) {
  const auto any_needs = [&](bool CodecDescriptor::*what) {
    return std::any_of(options.codecs.begin(), options.codecs.end(),
                       [what](const CodecSpec& spec) { return spec.descriptor->*what; });
  };
  const bool moments = any_needs(&CodecDescriptor::needs_second_moment);
  const bool weights = any_needs(&CodecDescriptor::needs_weight);
  std::vector<float> buffer;
  for (std::size_t t = 0; t < reader.tensors().size(); ++t) {
    const TensorInfo& info = reader.tensors()[t];
    ValueHash gradient, moment, weight;
    for (std::size_t step = 0; step < reader.steps().size(); ++step) {
      for (std::size_t worker = 0; worker < reader.workers(); ++worker) {
        gradient.add(info.elements, buffer, [&](std::uint64_t first, std::span<float> out) {
          reader.read_gradient_part(t, step, worker, first, out);
        });
        if (!moments || !info.has_second_moment) continue;
        moment.add(info.elements, buffer, [&](std::uint64_t first, std::span<float> out) {
          reader.read_second_moment_part(t, step, worker, first, out);
        });
      }
      if (!weights || !info.has_weight) continue;
      weight.add(info.elements, buffer,
                 [&](std::uint64_t first, std::span<float> out) { reader.read_weight_part(t, step, first, out); });
    }
    facts.push_back({fmt::format("the hash of the gradients of {}", info.name), gradient.hex()});
    facts.push_back({fmt::format("the hash of the second moments of {}", info.name), moment.hex()});
    facts.push_back({fmt::format("the hash of the weights of {}", info.name), weight.hex()});
  }
}

constexpr std::size_t kDigest = 64;  ///< hexadecimal digits of SHA-256

std::string digest_of(std::span<const Fact> facts) {
  Sha256 hash;
  const auto add = [&hash](const std::string& text) {
    const std::array<std::uint64_t, 1> size{text.size()};  // so that no text runs into the next
    hash.update(std::as_bytes(std::span{size}));
    hash.update(std::as_bytes(std::span{text}));
  };
  for (const auto& fact : facts) add(fact.what), add(fact.value);
  return hash.hex();
}

/// The texts of all ranks, each cut off after `size` bytes.
std::vector<std::string> gather(Communicator<Space::host>& comm, const std::string& mine, std::size_t size) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<std::byte> own(size), all(size * ranks);
  std::memcpy(own.data(), mine.data(), std::min(mine.size(), size));
  comm.all_gather({}, {own.data(), own.size()}, {all.data(), all.size()});
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::string text(size, '\0');
    std::memcpy(text.data(), all.data() + rank * size, size);
    texts.push_back(text.substr(0, text.find('\0')));
  }
  return texts;
}

}  // namespace

std::vector<Fact> facts_of(const BenchOptions& options, const GradientSource* reader) {
  std::vector<Fact> facts;
  add_options(facts, options);
  if (reader == nullptr) return facts;
  add_shapes(facts, *reader);
  add_values(facts, options, *reader);
  return facts;
}

void expect_same_on_all_ranks(const std::vector<Fact>& facts, Communicator<Space::host>& comm) {
  const auto all_same = [](const std::vector<std::string>& texts) {
    return std::all_of(texts.begin(), texts.end(), [&](const std::string& text) { return text == texts.front(); });
  };
  if (all_same(gather(comm, digest_of(facts), kDigest))) return;
  // The first fact that differs: at all facts before it, the digest of what comes up to there is the same everywhere.
  // Every rank sees the same digests, so that all take the same way.
  std::array<double, 1> most{static_cast<double>(facts.size())};
  comm.agree_max(most);
  std::size_t low = 0, high = static_cast<std::size_t>(most[0]);  // equal up to `low` facts, different up to `high`
  const auto first_facts = [&](std::size_t count) { return std::span{facts}.first(std::min(count, facts.size())); };
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    (all_same(gather(comm, digest_of(first_facts(middle)), kDigest)) ? low : high) = middle;
  }
  constexpr std::size_t kShown = 200;
  const Fact mine = low < facts.size() ? facts[low] : Fact{"nothing more", ""};
  const auto names = gather(comm, mine.what, kShown), values = gather(comm, mine.value, kShown);
  const auto digests = gather(comm, digest_of(std::span{&mine, 1}), kDigest);
  const auto other = std::find_if(digests.begin(), digests.end(), [&](auto& text) { return text != digests.front(); });
  if (other == digests.end()) {
    throw Error{Fault::backend,
                "the ranks' digests of their options differed and then did not: what one rank sends is not what "
                "another receives"};
  }
  const auto rank = static_cast<std::size_t>(other - digests.begin());
  throw Error{Fault::usage, fmt::format("the ranks of a job must have the same gradtool, options and file, but for "
                                        "rank {} {} is '{}', and for rank 0 {} is '{}'",
                                        rank, names[rank], values[rank], names[0], values[0])};
}

}  // namespace gradtool
