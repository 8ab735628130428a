// libFuzzer target: one rank of three whose two peers send it damaged messages. The first two bytes pick codec and
// layout, the third the number of steps, the rest the damage. The rank must throw Fault::data or finish the step inside
// its views, whatever arrives: sizes that peers state, their payloads, sums of payloads, and the messages of methods
// that bring a reducer of their own.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "lib/comm/host_sum.hpp"
#include "lib/comm/ring.hpp"
#include "lib/core/error.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/fuzz/choices.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::fuzz {
namespace {

/// Rank 0 of three. What it sends comes back to it as if from its peers, with bytes changed: so messages have mostly
/// the right form, and the collectives check their arguments as they do in a job.
class DamagingCommunicator final : public RingCommunicator<Space::host> {
 public:
  static constexpr int kRanks = 3;
  explicit DamagingCommunicator(Choices& choices) : RingCommunicator{0, kRanks}, choices_{choices} {}

  [[nodiscard]] std::string_view name() const noexcept override { return "damaging"; }
  void barrier(Queue<Space::host> /*queue*/) override {}
  void agree_max(std::span<double> /*values*/) override {}

 protected:
  void transfer(Queue<Space::host> /*queue*/, int /*to*/, ConstBytes out, int /*from*/, Bytes in) override {
    const std::size_t common = std::min(out.size(), in.size());
    if (common > 0) std::memmove(in.data(), out.data(), common);
    if (common < in.size()) std::memset(in.data() + common, 0, in.size() - common);
    damage(in);
  }
  void transfer_sum(Queue<Space::host> queue, int /*to*/, ConstBytes out, int /*from*/, Bytes inout, Dtype dtype,
                    Bytes /*scratch*/) override {
    Arena<Space::host> arena{inout.size()};
    const Bytes arrived = arena.take_bytes(inout.size());
    transfer(queue, 0, out, 0, arrived);
    sum_into(queue, inout, arrived, dtype);
  }
  [[nodiscard]] std::size_t ring_scratch(std::size_t /*bytes*/) const override { return 0; }
  void copy_local(Queue<Space::host> queue, Bytes to, ConstBytes from) override { copy_into(queue, to, from); }
  void sum_local(Queue<Space::host> queue, Bytes sum, ConstBytes addend, Dtype dtype) override {
    sum_into(queue, sum, addend, dtype);
  }

 private:
  void damage(Bytes bytes) {
    constexpr unsigned kFarAway = 5;  // positions near the front hold headers and sizes, and are drawn as often
    for (unsigned i = choices_.odd(8); i > 0 && !bytes.empty(); --i) {
      std::size_t position = choices_.next();
      if (position % kFarAway == 0) position = position * 256U + choices_.next();
      bytes.data()[position % bytes.size()] ^= static_cast<std::byte>(choices_.next());
    }
  }

  Choices& choices_;
};

struct Target {
  CodecSpec spec;
  Layout layout;
  Scheme scheme;
};

std::vector<Target> targets() {
  std::vector<Target> all;
  const auto add = [&all](const std::string& text, Scheme scheme) {
    const CodecSpec spec = parse_codec(text);
    for (const Layout& layout : {Layout::flat(33), Layout::flat(513), test::small_model()})
      all.push_back({spec, layout, scheme});
  };
  for (const auto& text : test::own_specs()) add(text, Scheme::automatic);
  for (const auto& text : test::specs_to_test()) {
    const CodecSpec spec = parse_codec(text);
    if (spec.descriptor->aggregation == Aggregation::own) continue;
    for (const Scheme scheme : {Scheme::sum, Scheme::gather, Scheme::hop, Scheme::alltoall}) {
      try {
        static_cast<void>(resolve(scheme, spec));
        add(text, scheme);
      } catch (const Error&) {
        continue;  // this codec does not ride this scheme
      }
    }
  }
  return all;
}

void reduce(const Target& target, int steps, Communicator<Space::host>& comm) {
  const std::size_t n = target.layout.elements;
  const Queue<Space::host> queue;
  const auto reducer = make_reducer<Space::host>(target.spec, make_codec<Space::host>(target.spec, target.layout),
                                                 target.scheme, target.layout, comm.size(), queue);
  reducer->prepare(comm);
  Arena<Space::host> arena{reducer->workspace_bytes()};
  const auto workspace = arena.take_bytes(reducer->workspace_bytes());
  std::memset(workspace.data(), 0xA5, workspace.size());
  NoClock<Space::host> clock;
  const auto weight = test::model_weight(n);
  for (int step = 0; step < steps; ++step) {
    auto x = test::model_gradient(n, 0, step);
    const auto moment = test::model_second_moment(x, 9000);
    const SideInputs<Space::host> side{.weight = {weight.data(), n}, .second_moment = {moment.data(), n}};
    const EncodeContext context{.key = {.seed = 9, .step = static_cast<std::uint32_t>(step)}, .iteration = step};
    reducer->reduce(comm, queue, {x.data(), n}, side, context, workspace, clock);
  }
}

}  // namespace
}  // namespace gradtool::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradtool::fuzz;
  static const std::vector<Target> kTargets = targets();
  if (size < 3) return 0;
  const Target& target = kTargets[(data[0] * 256U + data[1]) % kTargets.size()];
  Choices choices{{data + 3, size - 3}};
  DamagingCommunicator comm{choices};
  try {
    reduce(target, 1 + data[2] % 6, comm);
  } catch (const gradtool::Error& error) {
    if (error.fault() != gradtool::Fault::data) {
      std::fprintf(stderr, "%s:%s: %s\n", target.spec.name().c_str(), target.spec.params_text().c_str(), error.what());
      std::abort();
    }
  }
  return 0;
}
