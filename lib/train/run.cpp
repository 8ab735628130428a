#include "lib/train/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lib/bench/fingerprint.hpp"
#include "lib/capture/sampler.hpp"
#include "lib/capture/schedule.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/comm/recording.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/sha256.hpp"
#include "lib/core/state.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/model/units.hpp"
#include "lib/train/checkpoint.hpp"

namespace gradtool {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Seconds that the processor spent on the calling thread.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Encoding and decoding in processor time of the rank's thread, which does all of it: more ranks than cores would
/// otherwise be measured with each other. Communicating in clock time.
class RankClock final : public PhaseClock<Space::host> {
 public:
  void begin(Phase phase, Queue<Space::host> /*queue*/) override {
    begun_ = phase == Phase::communicate ? wall() : processor_seconds();
  }
  void end(Phase phase, Queue<Space::host> /*queue*/) override {
    seconds_[static_cast<std::size_t>(phase)] += (phase == Phase::communicate ? wall() : processor_seconds()) - begun_;
  }
  /// Since the last call, indexed by Phase.
  std::array<double, 3> take() { return std::exchange(seconds_, {}); }

 private:
  static double wall() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }
  double begun_ = 0.0;
  std::array<double, 3> seconds_{};
};

/// The sums of rank 0 over an epoch for the network models.
struct UnitSums {
  double encode = 0.0, decode = 0.0;  ///< seconds of rank 0
  CollectiveUses uses = no_uses();    ///< of all steps
};

/// Since the last row.
struct RowSums {
  double loss = 0.0;  ///< added over workers and steps
  std::int64_t steps = 0;
  TrainCosts costs;
};

/// A hash of all results of a rank since the last comparison.
class ResultHash {
 public:
  void add(std::span<const float> values) {
    const auto print = fingerprint(values);
    for (std::size_t i = 0; i < 2; ++i) {
      halves_[i] = std::rotl(halves_[i], 5) * 0x9e3779b1U ^ static_cast<std::uint32_t>(print[i]);
    }
  }
  [[nodiscard]] std::array<std::uint32_t, 2> take() { return std::exchange(halves_, {}); }

 private:
  std::array<std::uint32_t, 2> halves_{};
};

class RankTraining {
 public:
  RankTraining(const RunPlan& plan, Communicator<Space::host>& comm, SharedTrainer& shared, TrainRun& run)
      : plan_{plan},
        comm_{comm},
        shared_{shared},
        run_{run},
        workers_{static_cast<std::size_t>(plan.options.training.workers)},
        rank_{static_cast<std::size_t>(comm.rank())},
        rate_{*plan.options.training.learning_rate * plan.lr_factor, plan.options.training.lr_schedule, plan.steps},
        sampler_{plan.training_set.size(), workers_, static_cast<std::size_t>(plan.options.training.batch_size),
                 static_cast<std::uint64_t>(plan.seed)} {
    const CodecDescriptor& codec = *plan.spec().descriptor;
    moments_ = codec.needs_second_moment && plan.options.training.micro_batches > 1;
    make_trainer_and_units(codec);
    verdict_.resize(kLosses + workers_);
    run_.codec = plan.codec;
    run_.seed = plan.seed;
    run_.lr_factor = plan.lr_factor;
  }

  void train() {
    resume();
    last_checkpoint_ = Clock::now();
    while (run_.status == TrainRun::Status::unfinished && step_ < plan_.steps) {
      const bool stop = make_step();
      const bool epoch = step_ % sampler_.iterations_per_epoch() == 0;
      const auto every = plan_.options.evaluate_every;
      const bool row =
          run_.status == TrainRun::Status::diverged || step_ == plan_.steps || epoch || (every && step_ % *every == 0);
      if (row) add_row();
      const bool over = run_.status == TrainRun::Status::diverged || step_ == plan_.steps;
      if (over && run_.status == TrainRun::Status::unfinished) run_.status = TrainRun::Status::finished;
      if (over) finish();
      if (leads() && plan_.on_step) plan_.on_step(run_, step_, last_loss_, row);
      if (over || stop || checkpoint_due(epoch)) save();
      if (stop && !over) return;
    }
  }

  [[nodiscard]] std::uint64_t elements() const { return elements_; }

 private:
  // Places of the values that ranks agree on after every step; workers' losses follow.
  static constexpr std::size_t kStop = 0, kLate = 1, kNotFinite = 2, kWire = 3, kCompute = 4, kEncode = 5,
                               kCommunicate = 6, kDecode = 7, kTotal = 8, kLosses = 9;

  [[nodiscard]] bool leads() const { return rank_ == 0; }
  /// The rank that computes gradients and makes the step: rank 0 for all threads, every process for itself.
  [[nodiscard]] bool trains() const { return leads() || !plan_.threads; }
  [[nodiscard]] Trainer& trainer() { return *shared_.trainer; }
  /// The number of this rank's gradient in its trainer.
  [[nodiscard]] std::size_t place() const { return plan_.threads ? rank_ : 0; }

  void make_trainer_and_units(const CodecDescriptor& descriptor) {
    if (trains()) {
      CaptureOptions options = plan_.options.training;
      options.seed = plan_.seed;
      if (!plan_.threads) options.workers = 1;
      if (plan_.spec().own_momentum()) options.momentum = 0.0, options.nesterov = false;
      shared_.trainer = make_trainer(trainer_options(options), plan_.training_set);
    }
    comm_.barrier({});  // the trainer is there
    elements_ = trainer().elements();
    const auto& tensors = trainer().parameters();
    std::size_t first = 0;
    for (const auto& tensor : tensors) {
      tensor_first_.push_back(first);
      first += static_cast<std::size_t>(tensor.elements);
    }
    std::vector<std::size_t> all(tensors.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    units_ = make_units(tensors, all, plan_.options.granularity);
    ready_ = ready_shares(units_, tensors);
    sums_.resize(units_.size());

    comm_.set_all_reduce(plan_.options.all_reduce);
    std::shared_ptr<const Codec<Space::host>> codec;
    std::size_t workspace = 0, largest = 0;
    const std::vector<double> depths = depths_of(tensors);
    for (const auto& unit : units_) {
      const Layout layout = layout_of(unit, tensors, depths);
      if (codec == nullptr || made_for_layout(descriptor)) codec = make_codec<Space::host>(plan_.spec(), layout);
      reducers_.push_back(make_reducer<Space::host>(plan_.spec(), codec, plan_.options.scheme_for(plan_.spec()), layout,
                                                    comm_.size(), {}));
      reducers_.back()->prepare(comm_);
      summed_.push_back(summed_tensors(layout));
      workspace = std::max(workspace, reducers_.back()->workspace_bytes());
      largest = std::max(largest, unit.elements);
    }
    workspace_.emplace(std::max<std::size_t>(workspace, 1));
    work_ = workspace_->take_bytes(workspace);
    buffer_.resize(largest);
    if (descriptor.needs_weight) weight_.resize(largest);
    if (moments_) moment_.resize(largest);
    if (trains()) mean_.resize(elements_);
  }

  /// Copies what a unit has of a flat vector of all parameters.
  HostView<float> gather(const Unit& unit, std::span<const float> flat, std::vector<float>& out) const {
    for (const auto& piece : unit.pieces) {
      const auto from = flat.subspan(tensor_first_[piece.tensor], piece.elements);
      std::copy(from.begin(), from.end(), out.begin() + static_cast<std::ptrdiff_t>(piece.first));
    }
    return {out.data(), unit.elements};
  }
  void scatter(const Unit& unit, std::span<const float> values) {
    for (const auto& piece : unit.pieces) {
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(piece.first), piece.elements,
                  mean_.begin() + static_cast<std::ptrdiff_t>(tensor_first_[piece.tensor]));
    }
  }

  /// Returns whether the user wants to stop.
  bool make_step() {
    std::fill(verdict_.begin(), verdict_.end(), 0.0);
    const auto start = Clock::now();
    if (trains()) compute();
    comm_.barrier({});  // all gradients are there
    const std::uint64_t sent = reduce_units();
    comm_.barrier({});  // nobody reads weights or gradients any more
    if (trains()) trainer().apply(mean_, rate_.at(step_));
    verdict_[kTotal] = since(start);
    if (trains()) {
      const auto seconds = trainer().compute_seconds();
      verdict_[kCompute] += *std::max_element(seconds.begin(), seconds.end());
    }
    verdict_[kWire] = static_cast<double>(sent);
    verdict_[kStop] = interrupted() ? 1.0 : 0.0;
    verdict_[kLate] = since(last_checkpoint_) > kMinute ? 1.0 : 0.0;
    comm_.agree_max(verdict_);
    const double loss = std::accumulate(verdict_.begin() + kLosses, verdict_.end(), 0.0);
    last_loss_ = loss / static_cast<double>(workers_);
    since_row_.loss += loss;
    ++since_row_.steps;
    TrainCosts& costs = since_row_.costs;
    costs.wire_bytes += verdict_[kWire];
    costs.compute += verdict_[kCompute];
    costs.encode += verdict_[kEncode];
    costs.communicate += verdict_[kCommunicate];
    costs.decode += verdict_[kDecode];
    costs.total += verdict_[kTotal];
    ++step_;
    if (verdict_[kNotFinite] != 0.0) {
      run_.status = TrainRun::Status::diverged;
      last_loss_ = std::numeric_limits<double>::quiet_NaN();
    }
    return verdict_[kStop] != 0.0;
  }

  void compute() {
    const auto batch = static_cast<std::size_t>(plan_.options.training.batch_size);
    auto samples = sampler_.batches(step_);
    if (!plan_.threads) samples = samples.subspan(rank_ * batch, batch);
    trainer().compute(samples, moments_);
    if (!weight_.empty()) shared_.weights = trainer().weights();
    const auto losses = trainer().losses();
    for (std::size_t w = 0; w < losses.size(); ++w) {
      // Maxima over ranks are taken of numbers of any sign, and each worker's loss is known to one rank: cross-entropy
      // is not negative, so that 0 stands for what others do not know.
      const double loss = static_cast<double>(losses[w]);
      if (std::isfinite(loss))
        verdict_[kLosses + rank_ + w] = loss;
      else
        verdict_[kNotFinite] = 1.0;
    }
  }

  /// Averages all units. Returns the bytes that this rank has sent.
  std::uint64_t reduce_units() {
    const std::uint64_t before = comm_.traffic().bytes_sent;
    const auto gradient = trainer().gradient(place());
    const auto weights = shared_.weights;
    std::span<const float> moments;
    if (moments_) moments = trainer().second_moment(place());
    // A warm-up is not what schedules follow. After a resumption this looks at all steps before it once.
    for (; rated_ <= step_; ++rated_) highest_rate_ = std::max(highest_rate_, rate_.at(rated_));
    for (std::size_t u = 0; u < units_.size(); ++u) {
      auto copying = Clock::now();
      const auto buffer = gather(units_[u], gradient, buffer_);
      SideInputs<Space::host> side;
      if (!weights.empty()) side.weight = gather(units_[u], weights, weight_);
      if (!moments.empty()) side.second_moment = gather(units_[u], moments, moment_);
      const EncodeContext context{.key = {.seed = static_cast<std::uint64_t>(plan_.seed),
                                          .step = static_cast<std::uint32_t>(step_),
                                          .rank = static_cast<std::uint32_t>(rank_),
                                          .tensor = static_cast<std::uint32_t>(u)},
                                  .iteration = step_,
                                  .learning_rate_ratio = highest_rate_ > 0.0 ? rate_.at(step_) / highest_rate_ : 1.0};
      comm_.describe(summed_[u]);
      verdict_[kCompute] += since(copying);
      reduce(u, buffer, side, context);
      copying = Clock::now();
      payload_bytes_ += static_cast<double>(reducers_[u]->payload_bytes());
      const auto seconds = clock_.take();
      verdict_[kEncode] += seconds[static_cast<std::size_t>(Phase::encode)];
      verdict_[kCommunicate] += seconds[static_cast<std::size_t>(Phase::communicate)];
      verdict_[kDecode] += seconds[static_cast<std::size_t>(Phase::decode)];
      sums_[u].encode += seconds[static_cast<std::size_t>(Phase::encode)];
      sums_[u].decode += seconds[static_cast<std::size_t>(Phase::decode)];
      results_.add(buffer.span());
      if (trains()) scatter(units_[u], buffer.span());
      verdict_[kCompute] += since(copying);
    }
    return comm_.traffic().bytes_sent - before;
  }

  void reduce(std::size_t u, HostView<float> buffer, const SideInputs<Space::host>& side,
              const EncodeContext& context) {
    Reducer<Space::host>& reducer = *reducers_[u];
    if (!leads() || plan_.options.networks.empty()) {
      reducer.reduce(comm_, {}, buffer, side, context, work_, clock_);
      return;
    }
    RecordingCommunicator<Space::host> recording{comm_, [&](const RecordingCommunicator<Space::host>::Call& call) {
                                                   const auto pattern = reducer.pattern(call.level);
                                                   add_use(sums_[u].uses, call.name, call.mean_bytes, pattern.shards,
                                                           pattern.ring, call.level, call.node);
                                                 }};
    reducer.reduce(recording, {}, buffer, side, context, work_, clock_);
  }

  /// Compares the ranks, evaluates, and adds a row.
  void add_row() {
    share_payload_bytes();
    if (run_.status != TrainRun::Status::diverged) expect_agreement();
    TrainRow row;
    row.modelled = modelled_so_far();
    TrainRow::Numbers& numbers = row.numbers;
    numbers.epoch = (step_ - 1) / sampler_.iterations_per_epoch() + 1;
    numbers.step = step_;
    numbers.learning_rate = rate_.at(step_ - 1);
    const bool diverged = run_.status == TrainRun::Status::diverged;
    numbers.train_loss = diverged
                             ? std::numeric_limits<double>::quiet_NaN()
                             : since_row_.loss / static_cast<double>(since_row_.steps) / static_cast<double>(workers_);
    const TrainCosts before = run_.rows.empty() ? TrainCosts{} : run_.rows.back().numbers.costs;
    for (double TrainCosts::*what :
         {&TrainCosts::wire_bytes, &TrainCosts::payload_bytes, &TrainCosts::compute, &TrainCosts::encode,
          &TrainCosts::communicate, &TrainCosts::decode, &TrainCosts::total})
      numbers.costs.*what = before.*what + since_row_.costs.*what;
    if (leads() && plan_.test_set != nullptr && !diverged) {
      const auto most = static_cast<std::size_t>(
          plan_.options.test_images.value_or(static_cast<std::int64_t>(plan_.test_set->size())));
      const Trainer::Score score = trainer().evaluate(*plan_.test_set, most);
      numbers.test_loss = score.loss;
      numbers.test_accuracy = score.accuracy;
      numbers.tested = 1;
    }
    // All ranks know the score, by which the next rate may be chosen. The last steps may have spoilt the weights, which
    // no loss of training has shown yet.
    const bool spoilt = numbers.tested != 0 && !std::isfinite(numbers.test_loss);
    std::array<double, 4> score{};
    if (numbers.tested != 0) score = {1.0, numbers.test_accuracy, spoilt ? 0.0 : numbers.test_loss, spoilt ? 1.0 : 0.0};
    comm_.agree_max(score);
    if (score[3] != 0.0) run_.status = TrainRun::Status::diverged;
    if (score[0] != 0.0 && !leads()) {
      numbers.tested = 1;
      numbers.test_accuracy = score[1];
      numbers.test_loss = score[3] != 0.0 ? std::numeric_limits<double>::quiet_NaN() : score[2];
    }
    run_.rows.push_back(std::move(row));
    since_row_ = {};
    std::fill(sums_.begin(), sums_.end(), UnitSums{});
  }

  /// Each rank leaves the places of the others at 0.
  void share_payload_bytes() {
    std::vector<double> bytes(workers_, 0.0);
    bytes[rank_] = std::exchange(payload_bytes_, 0.0);
    comm_.agree_max(bytes);
    since_row_.costs.payload_bytes += std::accumulate(bytes.begin(), bytes.end(), 0.0) / static_cast<double>(workers_);
  }

  /// Ranks agree where the largest hash is also the smallest, which is the largest negative one.
  void expect_agreement() {
    const auto results = results_.take();
    std::array<double, 2> weights{};
    if (!plan_.threads) weights = fingerprint(trainer().weights());
    std::array<double, 8> both{static_cast<double>(results[0]), static_cast<double>(results[1]), weights[0],
                               weights[1]};
    for (std::size_t i = 0; i < 4; ++i) both[4 + i] = -both[i];
    comm_.agree_max(both);
    for (std::size_t i = 0; i < 4; ++i) {
      if (both[i] == -both[4 + i]) continue;
      throw_error(Fault::check, "codec {}: ranks have different {} at step {}", plan_.spec().name(),
                  i < 2 ? "results" : "weights", step_);
    }
  }

  /// The seconds that the steps so far would take on each network, from the mean step since the last row: the
  /// collectives by the model, encoding and decoding as measured here.
  [[nodiscard]] std::vector<double> modelled_so_far() const {
    std::vector<double> modelled;
    if (!leads()) return modelled;
    const auto steps = static_cast<double>(since_row_.steps);
    double encode = 0.0, decode = 0.0;  // of rank 0
    for (const auto& unit : sums_) encode += unit.encode, decode += unit.decode;
    const double slower_encode = encode > 0.0 ? since_row_.costs.encode / encode : 1.0;
    const double slower_decode = decode > 0.0 ? since_row_.costs.decode / decode : 1.0;
    for (std::size_t i = 0; i < plan_.options.networks.size(); ++i) {
      std::vector<UnitCost> costs;
      for (std::size_t u = 0; u < sums_.size(); ++u) {
        CollectiveUses uses = sums_[u].uses;
        for (auto& use : uses) use.calls /= steps, use.bytes /= steps;
        costs.push_back({.ready = ready_[u],
                         .encode = sums_[u].encode * slower_encode / steps,
                         .communicate = model_step(uses, plan_.options.networks[i], comm_.size(), comm_.size()).seconds,
                         .decode = sums_[u].decode * slower_decode / steps});
      }
      const double before = run_.rows.empty() ? 0.0 : run_.rows.back().modelled[i];
      const double compute = plan_.compute_seconds.value_or(since_row_.costs.compute / steps);
      modelled.push_back(before + steps * iteration_seconds(costs, compute, plan_.options.overlap));
    }
    return modelled;
  }

  /// Stores the results of a run that is over, on rank 0.
  void finish() {
    if (!leads()) return;
    Sha256 hash;
    hash.update(std::as_bytes(trainer().weights()));
    run_.weights_sha256 = hash.hex();
    run_.note = note_of_run(plan_.options, plan_.spec(), reducers_);
    run_.at_work = std::any_of(reducers_.begin(), reducers_.end(), [](const auto& one) { return one->reached(); });
  }

  [[nodiscard]] bool checkpoint_due(bool epoch) const {
    if (const auto every = plan_.options.checkpoint_every) return step_ % *every == 0;
    return epoch || verdict_[kLate] != 0.0;
  }

  // A checkpoint has a part for what all ranks know, one for the trainer, and one for each rank.
  static constexpr std::size_t kCommon = 0, kTrainer = 1, kRanks = 2;

  /// Visits the state that all ranks share, and the rows, which rank 0 has.
  void visit_common(StateVisitor& visitor) {
    const std::string mine = fmt::format("{}:{} seed {} learning rate times {}", plan_.spec().name(),
                                         plan_.spec().params_text(), plan_.seed, plan_.lr_factor);
    std::string whose = mine;
    visit_text(visitor, whose);
    if (whose != mine) throw_foreign();
    visitor.value("step", step_);
    visitor.value("status", run_.status);
    visitor.value("at work", run_.at_work);
    visitor.value("since the last row", since_row_);
    std::uint64_t count = run_.rows.size();
    visitor.value("rows", count);
    if (visitor.restores()) {
      // A run that belongs here has no more rows than steps.
      if (step_ < 0 || step_ > plan_.steps || count > static_cast<std::uint64_t>(step_)) throw_foreign();
      run_.rows.resize(count);
    }
    for (auto& row : run_.rows) {
      visitor.value("row", row.numbers);
      row.modelled.resize(plan_.options.networks.size());
      visitor.values("modelled", row.modelled);
    }
    visitor.values("units", sums_);
    visit_text(visitor, run_.weights_sha256);
    visit_text(visitor, run_.note);
  }
  void visit_text(StateVisitor& visitor, std::string& text) const {
    std::uint64_t size = text.size();
    visitor.value("length", size);
    if (visitor.restores()) {
      if (size > kLongestText) throw_foreign();
      text.resize(size);
    }
    visitor.values("text", HostView<char>{text.data(), text.size()});
  }
  /// Visits the state that each rank has for itself: its reducers, and the replicas of its trainer.
  void visit_own(StateVisitor& visitor) {
    visitor.value("payload bytes", payload_bytes_);
    for (auto& reducer : reducers_) reducer->visit_state(visitor);
    if (!trains()) return;
    for (std::size_t w = 0; w < (plan_.threads ? workers_ : 1); ++w) trainer().visit_replica(w, visitor);
  }

  /// Rank 0 collects all parts and writes them.
  void save() {
    last_checkpoint_ = Clock::now();
    std::vector<std::byte> own;
    StateSaver saver{own};
    visit_own(saver);
    std::vector<double> sizes(workers_, 0.0);
    sizes[rank_] = static_cast<double>(own.size());
    comm_.agree_max(sizes);
    if (!leads()) {
      comm_.send({}, 0, {own.data(), own.size()});
      comm_.barrier({});
      return;
    }
    CheckpointParts parts(kRanks + workers_);
    StateSaver common{parts[kCommon]};
    visit_common(common);
    parts[kTrainer] = save_state(trainer());
    parts[kRanks] = std::move(own);
    for (std::size_t r = 1; r < workers_; ++r) {
      auto& part = parts[kRanks + r];
      part.resize(static_cast<std::size_t>(sizes[r]));
      comm_.recv({}, static_cast<int>(r), {part.data(), part.size()});
    }
    save_checkpoint(plan_.checkpoint, parts);
    comm_.barrier({});
  }

  /// Rank 0 reads the checkpoint and hands the parts out.
  void resume() {
    CheckpointParts parts;
    if (leads() && std::filesystem::exists(plan_.checkpoint)) {
      parts = load_checkpoint(plan_.checkpoint);
      if (parts.size() != kRanks + workers_) throw_foreign();
    }
    parts.resize(kRanks + workers_);
    std::vector<double> sizes(parts.size(), 0.0);
    for (std::size_t i = 0; i < parts.size(); ++i) sizes[i] = static_cast<double>(parts[i].size());
    comm_.agree_max(sizes);
    if (sizes[kCommon] == 0.0) return;
    for (const std::size_t shared : {kCommon, kTrainer}) {
      parts[shared].resize(static_cast<std::size_t>(sizes[shared]));
      comm_.broadcast({}, {parts[shared].data(), parts[shared].size()}, 0);
    }
    auto& own = parts[kRanks + rank_];
    own.resize(static_cast<std::size_t>(sizes[kRanks + rank_]));
    if (leads()) {
      for (std::size_t r = 1; r < workers_; ++r) {
        auto& part = parts[kRanks + r];
        comm_.send({}, static_cast<int>(r), {part.data(), part.size()});
      }
    } else {
      comm_.recv({}, 0, {own.data(), own.size()});
    }
    StateLoader common{parts[kCommon]};
    visit_common(common);
    common.finish();
    if (trains()) restore_state(trainer(), parts[kTrainer]);
    StateLoader loader{own};
    visit_own(loader);
    loader.finish();
    comm_.barrier({});
  }

  [[noreturn]] void throw_foreign() const {
    throw_error(Fault::data, "{}: is the checkpoint of another run", plan_.checkpoint);
  }

  static constexpr double kMinute = 60.0;
  static constexpr std::uint64_t kLongestText = 1U << 20;

  const RunPlan& plan_;
  Communicator<Space::host>& comm_;
  SharedTrainer& shared_;
  TrainRun& run_;
  std::size_t workers_, rank_;
  LearningRate rate_;
  double highest_rate_ = 0.0;  ///< of the first `rated_` steps
  std::int64_t rated_ = 0;
  Sampler sampler_;
  bool moments_ = false;
  std::size_t elements_ = 0;
  std::vector<std::size_t> tensor_first_;  ///< of each tensor in the flat vector of all parameters
  std::vector<Unit> units_;
  std::vector<double> ready_;  ///< of each unit, see ready_shares()
  std::vector<UnitSums> sums_;
  std::vector<std::unique_ptr<Reducer<Space::host>>> reducers_;
  std::vector<std::vector<SummedTensor>> summed_;  ///< of each unit, for Communicator::describe
  std::optional<Arena<Space::host>> workspace_;
  HostView<std::byte> work_;
  std::vector<float> buffer_, weight_, moment_;  ///< of one unit; the latter two empty where they are not needed
  std::vector<float> mean_;                      ///< of all parameters, as the codec has it; on ranks that train
  RankClock clock_;
  std::vector<double> verdict_;  ///< what ranks agree on after every step
  std::int64_t step_ = 0;
  double last_loss_ = 0.0;
  RowSums since_row_;
  double payload_bytes_ = 0.0;  ///< of this rank since the last row
  ResultHash results_;
  Clock::time_point last_checkpoint_;
};

}  // namespace

void train_rank(const RunPlan& plan, Communicator<Space::host>& comm, SharedTrainer& shared, TrainRun& run,
                std::uint64_t& elements) {
  RankTraining training{plan, comm, shared, run};
  elements = training.elements();
  training.train();
}

}  // namespace gradtool
