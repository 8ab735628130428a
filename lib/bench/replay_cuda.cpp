#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/cache_flush.hpp"
#include "kernels/cuda/runtime.hpp"
#include "lib/bench/copy_rate.hpp"
#include "lib/bench/rank_replay.hpp"

namespace gradtool {
namespace {

/// Phases of one rank on its stream, between pairs of events. Isolated, a phase is waited for at its end, because the
/// next rank's turn comes then; concurrent, nothing waits until the reduction is over.
class CudaClock final : public PhaseClock<Space::cuda> {
 public:
  CudaClock(Communicator<Space::cuda>& comm, Queue<Space::cuda> queue) : comm_{comm}, queue_{queue} {
    // A reduction has at most a few phases for each hop of a ring.
    for (int i = 0; i < 8 * comm.size() + 16; ++i) spans_.emplace_back();
  }

  void start(Timing timing) {
    timing_ = timing;
    times_ = {};
    level_ = Level::whole;
    used_ = 0;
    comm_.barrier(queue_);
    whole_.begin.record(queue_);
  }
  PhaseTimes stop() {
    whole_.end.record(queue_);
    comm_.barrier(queue_);  // waits with an eye on the other ranks, which cuda::synchronize does not
    collect();
    times_.total = cuda::elapsed_seconds(whole_.begin, whole_.end);
    return times_;
  }

  void begin(Phase phase, Queue<Space::cuda> queue) override {
    if (timing_ == Timing::isolated) {
      const int turns = phase == Phase::communicate ? 1 : 1 + comm_.rank();
      for (int i = 0; i < turns; ++i) comm_.barrier(queue);
    }
    expects(used_ < spans_.size(), "a reducer has more phases than its clock has events");
    spans_[used_].phase = phase;
    spans_[used_].level = level_;
    spans_[used_].begin.record(queue);
  }
  void end(Phase phase, Queue<Space::cuda> queue) override {
    spans_[used_++].end.record(queue);
    if (timing_ == Timing::concurrent || phase == Phase::communicate) return;
    for (int i = comm_.rank(); i < comm_.size(); ++i) comm_.barrier(queue);
  }
  void level(Level level) override { level_ = level; }

 private:
  struct Span {
    cuda::Event begin{cuda::Event::Timing::on};
    cuda::Event end{cuda::Event::Timing::on};
    Phase phase = Phase::encode;
    Level level = Level::whole;
  };
  void collect() {
    for (std::size_t i = 0; i < used_; ++i) {
      const Span& span = spans_[i];
      const double seconds = cuda::elapsed_seconds(span.begin, span.end);
      times_.phase[static_cast<std::size_t>(span.phase)] += seconds;
      if (span.phase == Phase::decode && span.level == Level::across) times_.decode_across += seconds;
    }
  }

  Communicator<Space::cuda>& comm_;
  Timing timing_ = Timing::isolated;
  Queue<Space::cuda> queue_;
  std::vector<Span> spans_;
  std::size_t used_ = 0;
  Span whole_;
  PhaseTimes times_;
  Level level_ = Level::whole;
};

class CudaProcessor {
 public:
  CudaProcessor(const ReplayPlan& plan, Communicator<Space::cuda>& comm, Queue<Space::cuda> queue)
      : queue_{queue}, clock_{comm, queue}, throttle_{clock_reasons(plan)} {
    std::size_t largest = 0;
    for (const auto& unit : plan.units) largest = std::max(largest, plan.padded(unit.elements));
    landing_ = cuda::PinnedBuffer{4 * largest};
    if (!plan.options.hot) flush_.emplace(queue);
  }
  [[nodiscard]] Queue<Space::cuda> queue() const { return queue_; }
  [[nodiscard]] Queue<Space::cuda> queue(std::size_t /*elements*/) const { return queue_; }
  [[nodiscard]] CudaClock& clock() { return clock_; }
  [[nodiscard]] ThrottleWatch& throttle() { return throttle_; }
  [[nodiscard]] std::string clock_note() const {
    if (cuda::emulated()) return "the GPU is emulated: times mean nothing";
    return unwatched_.empty() ? std::string{} : fmt::format("throttling not watched: {}", unwatched_);
  }
  /// NCCL and CUDA's libraries may keep books of their own when they are called.
  [[nodiscard]] static bool allocates_alone() { return false; }
  /// Straight from where the loader read it to, which is page-locked: the copy is enqueued and the host goes on.
  void upload(std::span<const float> from, View<float, Space::cuda> to) {
    cuda::copy(queue_, as_writable_bytes(to), as_bytes(HostView<const float>{from}));
    uploaded_.record(queue_);
  }
  void finish_uploads() const { uploaded_.synchronize(); }
  std::span<const float> download(View<const float, Space::cuda> from) {
    cuda::copy(queue_, landing_.bytes().first(from.bytes()), as_bytes(from));
    cuda::synchronize(queue_);
    return {landing_.as<float>().data(), from.size()};
  }
  HostView<const std::byte> look(View<const std::byte, Space::cuda> bytes) {
    seen_.resize(bytes.size());
    cuda::copy(queue_, HostView<std::byte>{seen_}, bytes);
    cuda::synchronize(queue_);
    return {seen_.data(), seen_.size()};
  }
  void evict(View<float, Space::cuda> /*buffer*/) { (*flush_)(queue_); }
  static void warm(View<float, Space::cuda> /*buffer*/) {}  // its upload did

 private:
  [[nodiscard]] ClockReasons clock_reasons(const ReplayPlan& plan) {
    if (plan.clock_reasons) return plan.clock_reasons;
    return nvml_clock_reasons(cuda::pci_bus_id(cuda::current_device()), unwatched_);
  }

  Queue<Space::cuda> queue_;
  CudaClock clock_;
  std::string unwatched_;  ///< why the clock is not watched
  ThrottleWatch throttle_;
  cuda::PinnedBuffer landing_;  ///< of results
  cuda::Event uploaded_;
  std::optional<cuda::CacheFlush> flush_;
  std::vector<std::byte> seen_;
};

}  // namespace

void replay_rank(const ReplayPlan& plan, Communicator<Space::cuda>& comm, Queue<Space::cuda> queue, StepLoader& loader,
                 bool shared_loader, ReplayResult& result) {
  CudaProcessor processor{plan, comm, queue};
  RankReplay<Space::cuda, CudaProcessor>{plan, comm, processor, loader, shared_loader, result}.run();
}

std::shared_ptr<float> pinned_floats(std::size_t elements) {
  auto buffer = std::make_shared<cuda::PinnedBuffer>(4 * elements);
  return {buffer, buffer->as<float>().data()};
}

double measure_device_copy_rate(int device, std::size_t bytes) {
  cuda::set_device(device);
  const cuda::Stream stream;
  const cuda::DeviceBuffer from{bytes};
  const cuda::DeviceBuffer to{bytes};
  cuda::fill(stream.queue(), from.bytes(), 1);
  const cuda::Event begin{cuda::Event::Timing::on};
  const cuda::Event end{cuda::Event::Timing::on};
  const int copies = cuda::emulated() ? 1 : 10;
  const auto seconds_of_one = [&] {
    begin.record(stream.queue());
    for (int i = 0; i < copies; ++i)
      cuda::copy(stream.queue(), to.bytes(), View<const std::byte, Space::cuda>{from.bytes()});
    end.record(stream.queue());
    cuda::synchronize(stream.queue());
    return cuda::elapsed_seconds(begin, end) / copies;
  };
  // A GPU without work runs at a fifth of its clock, and takes some tenths of a second to leave that.
  constexpr double kWarmSeconds = 0.5;
  for (double warm = 0.0; warm < (cuda::emulated() ? 0.0 : kWarmSeconds);) warm += copies * seconds_of_one();
  std::vector<double> rates;
  for (int repeat = 0; repeat < 5; ++repeat) rates.push_back(static_cast<double>(bytes) / seconds_of_one());
  return summarise(rates).median;
}

}  // namespace gradtool
