#include "lib/codecs/prototype.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/interpreter.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/files.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

using nlohmann::json;

constexpr std::string_view kCaveat = "times are Python's";
/// A parameter that records have of prototypes whose state sends later what it leaves out now: it decides which error
/// they are judged by.
constexpr std::string_view kDelays = "delays";

/// A prototype that was read, its descriptor, and the interpreters of the ranks of this process.
class Prototype {
 public:
  /// `file`: what the parameter `file` says; `source`: what an interpreter is made for.
  Prototype(const std::string& file, std::string source, std::string cls)
      : source_{std::move(source)}, wanted_{std::move(cls)} {
    said_ = describe(interpreters_[0]);
    params_.push_back(only("file", file));
    if (!wanted_.empty()) params_.push_back(only("cls", wanted_));
    if (said_.value("delays", false)) params_.push_back(only(kDelays, "on"));
    for (const json& row : said_["parameters"]) params_.push_back(parameter(row));
    descriptor_.name = kPrototype;
    descriptor_.summary = keep(said_["doc"]);
    descriptor_.caveat = kCaveat;
    descriptor_.determinism = Determinism::not_guaranteed;
    if (said_["reduces"].get<bool>()) {
      descriptor_.aggregation = Aggregation::own;
      descriptor_.make_host_reducer = make_reducer_of_prototype;
      descriptor_.params = params_;
      return;
    }
    const std::string sums = said_["sums"];
    if (!sums.empty()) {
      descriptor_.aggregation = Aggregation::sum;
      descriptor_.sum_dtype = sums == "float16" ? Dtype::f16 : Dtype::f32;
    }
    descriptor_.memory = said_["memory"];
    descriptor_.delays = said_["delays"];
    descriptor_.error_feedback = said_["error_feedback"];
    descriptor_.unbiased = said_["unbiased"];
    descriptor_.by_layout = said_["by_layout"];
    descriptor_.knows_layout = true;
    descriptor_.make_host = make_codec_of_prototype;
    descriptor_.params = params_;
  }

  [[nodiscard]] const CodecDescriptor& descriptor() const { return descriptor_; }

  /// The interpreter of a rank, started when it is first asked for, and for the next codec where the user's code has
  /// ended it.
  std::shared_ptr<Interpreter> interpreter(std::uint32_t rank) {
    const std::lock_guard lock{mutex_};
    std::shared_ptr<Interpreter>& interpreter = interpreters_[rank];
    if (interpreter == nullptr) describe(interpreter);
    return interpreter;
  }
  /// Lets interpreters that have ended be started anew, for the next codec.
  void renew() {
    const std::lock_guard lock{mutex_};
    std::erase_if(interpreters_, [](const auto& each) { return each.second == nullptr || each.second->ended(); });
  }

  /// The parameters that Python's constructor takes.
  [[nodiscard]] json arguments(const Params& params) const {
    json all = json::object();
    for (const json& row : said_["parameters"]) {
      const std::string name = row["name"];
      all[name] = params.word(name);
    }
    return all;
  }

  /// The prototype that the parameters of a spec name.
  static Prototype& of(const Params& params);
  /// The one that was read last for `file` and `cls`; reads it from `source`, unless that is "", the first time and
  /// where the file has changed.
  static Prototype& read(const std::string& file, const std::string& source, const std::string& cls);

 private:
  json describe(std::shared_ptr<Interpreter>& interpreter) const {
    auto started = std::make_shared<Interpreter>(source_);
    json said = Interpreter::Turn{started, 0}.ask({{"do", "describe"}, {"cls", wanted_}});
    interpreter = std::move(started);
    return said;
  }

  /// A copy that lives as long as this object.
  std::string_view keep(std::string text) { return texts_.emplace_back(std::move(text)); }

  /// A parameter with one valid value.
  ParamInfo only(std::string_view name, const std::string& value) {
    return {.name = name, .kind = ParamInfo::Kind::choice, .default_value = keep(value), .choices = keep(value)};
  }
  ParamInfo parameter(const json& row) {
    const auto listed = [&](const char* key) { return keep(joined(row[key].get<std::vector<std::string>>(), "|")); };
    const std::string kind = row["kind"];
    constexpr double kAny = 1e15;  ///< integers up to it are exact in the float64 that holds them
    return {.name = keep(row["name"]),
            .kind = kind == "choice"    ? ParamInfo::Kind::choice
                    : kind == "integer" ? ParamInfo::Kind::integer
                                        : ParamInfo::Kind::real,
            .default_value = keep(row["default"]),
            .min = -kAny,
            .max = kAny,
            .choices = listed("choices"),
            .search = listed("search")};
  }

  static std::unique_ptr<Codec<Space::host>> make_codec_of_prototype(const Params& params, const Layout& layout);
  static std::unique_ptr<Reducer<Space::host>> make_reducer_of_prototype(const ReducerSetup<Space::host>& setup);

  std::string source_, wanted_;
  json said_;
  std::deque<std::string> texts_;
  std::vector<ParamInfo> params_;
  CodecDescriptor descriptor_ = {};
  std::mutex mutex_;
  std::map<std::uint32_t, std::shared_ptr<Interpreter>> interpreters_;
};

/// Memory of an interpreter: values first, the payload behind.
struct SharedMemory {
  explicit SharedMemory(std::size_t values, std::size_t payload_bytes)
      : payload{padded(values * sizeof(float))}, bytes{std::max<std::size_t>(payload + payload_bytes, 4096)} {}
  std::size_t payload;  ///< where it begins
  std::size_t bytes;
};

/// The requests' description of a unit, and of the step it is in.
class UnitWords {
 public:
  UnitWords(Prototype& prototype, const Params& params, const Layout& layout)
      : arguments_(prototype.arguments(params)), elements_{layout.elements}, shape_(json::array()) {
    if (layout.tensors.empty()) return;
    tensor_ = layout.tensors.front().name;
    if (layout.tensors.size() > 1)
      tensor_ += fmt::format(" .. {} ({} tensors)", layout.tensors.back().name, layout.tensors.size());
    else
      shape_ = layout.tensors.front().shape;
  }

  [[nodiscard]] const json& arguments() const { return arguments_; }
  [[nodiscard]] const std::string& tensor() const { return tensor_; }
  /// That of the tensor, where all of it is encoded and it is the only one of the unit.
  [[nodiscard]] json shape(std::size_t n) const {
    return n == elements_ && !shape_.empty() ? shape_ : json::array({n});
  }
  [[nodiscard]] json context(const EncodeContext& context, std::size_t n, int ranks) const {
    return {{"seed", context.key.seed},
            {"step", context.key.step},
            {"rank", context.key.rank},
            {"ranks", ranks},
            {"tensor", tensor_},
            {"index", context.key.tensor},
            {"shape", shape(n)},
            {"iteration", context.iteration},
            {"learning_rate_ratio", context.learning_rate_ratio}};
  }

 private:
  json arguments_;
  std::string tensor_;
  std::size_t elements_;
  json shape_;
};

/// The rank whose gradient the calling thread encoded last. Decoding asks its interpreter, so that ranks that are
/// threads do not wait for each other.
thread_local std::uint32_t rank_of_thread = 0;

class PrototypeCodec final : public Codec<Space::host> {
 public:
  PrototypeCodec(Prototype& prototype, const Params& params, const Layout& layout)
      : prototype_{prototype}, words_{prototype, params, layout} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return planned(n).footprint; }

  void encode(Queue<Space::host> /*queue*/, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    encode("", 1, gradient, context, payload);
  }

  /// `key` names the state; "": none, and then nobody knows how many ranks there are.
  void encode(const std::string& key, int ranks, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload) const {
    rank_of_thread = context.key.rank;
    const auto& [footprint, shapes] = planned(gradient.size());
    const std::size_t head = footprint.exact ? 0 : kSizeBytes;
    const SharedMemory places{gradient.size(), footprint.payload_bytes};
    Interpreter::Turn turn{prototype_.interpreter(context.key.rank), places.bytes};
    std::memcpy(turn.memory().data(), gradient.data(), gradient.size() * sizeof(float));
    const json said = turn.ask({{"do", "encode"},
                                {"key", key},
                                {"parameters", words_.arguments()},
                                {"context", words_.context(context, gradient.size(), ranks)},
                                {"n", gradient.size()},
                                {"shapes", shapes},
                                {"values", 0},
                                {"payload", places.payload},
                                {"room", footprint.payload_bytes - head}});
    const std::uint64_t bytes = said["bytes"].get<std::uint64_t>() + head;
    if (head > 0) std::memcpy(payload.data(), &bytes, head);
    std::memcpy(payload.data() + head, turn.memory().data() + places.payload, bytes - head);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    const HostView<float> values = Scratch<Space::host>{scratch}.take<float>(out.size());
    decode(queue, payload, values, {});
    scale(queue, values, weight);
    add(queue, values, out);
  }

  void decode(Queue<Space::host> /*queue*/, HostView<const std::byte> payload, HostView<float> out,
              HostView<std::byte> /*scratch*/) const override {
    const auto& [footprint, shapes] = planned(out.size());
    const std::size_t head = footprint.exact ? 0 : kSizeBytes;
    if (payload.size() < head) throw Error{Fault::data, "python payload: it is shorter than its size"};
    const SharedMemory places{out.size(), payload.size()};
    Interpreter::Turn turn{prototype_.interpreter(rank_of_thread), places.bytes};
    std::memcpy(turn.memory().data() + places.payload, payload.data() + head, payload.size() - head);
    turn.ask({{"do", "decode"},
              {"parameters", words_.arguments()},
              {"n", out.size()},
              {"shapes", shapes},
              {"values", 0},
              {"payload", places.payload},
              {"size", payload.size() - head}});
    std::memcpy(out.data(), turn.memory().data(), out.size() * sizeof(float));
  }

  /// A class of Python promises nothing.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {}; }

  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::host> queue) const override;

  [[nodiscard]] Prototype& prototype() const { return prototype_; }

 private:
  static constexpr std::size_t kSizeBytes = 8;
  struct Plan {
    Footprint footprint;
    json shapes;  ///< of the payload's arrays; null: each payload says its own
  };

  const Plan& planned(std::size_t n) const {
    const std::lock_guard lock{mutex_};
    const auto known = plans_.find(n);
    if (known != plans_.end()) return known->second;
    const json said = Interpreter::Turn{prototype_.interpreter(0), 0}.ask({{"do", "plan"},
                                                                           {"parameters", words_.arguments()},
                                                                           {"tensor", words_.tensor()},
                                                                           {"shape", words_.shape(n)},
                                                                           {"n", n}});
    const bool exact = !said["shapes"].is_null();
    const Footprint footprint{.payload_bytes = said["bytes"].get<std::size_t>() + (exact ? 0 : kSizeBytes),
                              .scratch_bytes = padded(n * sizeof(float)),
                              .exact = exact};
    return plans_.emplace(n, Plan{footprint, said["shapes"]}).first->second;
  }

  Prototype& prototype_;
  UnitWords words_;
  mutable std::mutex mutex_;
  mutable std::map<std::size_t, Plan> plans_;
};

/// The Python object that keeps the state of one unit on one rank.
class PrototypeObject {
 public:
  explicit PrototypeObject(Prototype& prototype) : prototype_{prototype} {}
  PrototypeObject(const PrototypeObject&) = delete;
  PrototypeObject& operator=(const PrototypeObject&) = delete;
  ~PrototypeObject() {
    try {
      reset();
    } catch (const std::exception&) {  // an interpreter that has ended holds nothing
      return;
    }
  }

  /// Its name in requests to the interpreter of `rank`, for which it is used from now on.
  const std::string& use(std::uint32_t rank) {
    rank_ = rank;
    used_ = true;
    if (!restored_.empty()) {
      Interpreter::Turn turn{prototype_.interpreter(rank_), restored_.size()};
      std::copy(restored_.begin(), restored_.end(), turn.memory().begin());
      turn.ask({{"do", "restore"}, {"key", key_}, {"size", restored_.size()}});
      restored_.clear();
    }
    return key_;
  }
  void reset() {
    restored_.clear();
    if (!std::exchange(used_, false)) return;
    Interpreter::Turn{prototype_.interpreter(rank_), 0}.ask({{"do", "forget"}, {"key", key_}});
  }
  void visit(StateVisitor& visitor) {
    std::vector<std::byte> state = !visitor.restores() && used_ ? saved() : restored_;
    std::uint64_t size = state.size();
    visitor.value("size of the state of a prototype", size);
    state.resize(size);
    visitor.values("state of a prototype", state);
    if (!visitor.restores()) return;
    reset();
    restored_ = std::move(state);  // given to the interpreter once it is known which rank this is
  }

 private:
  /// The object, pickled.
  [[nodiscard]] std::vector<std::byte> saved() const {
    const std::shared_ptr<Interpreter> interpreter = prototype_.interpreter(rank_);
    const auto size =
        Interpreter::Turn{interpreter, 0}.ask({{"do", "save"}, {"key", key_}})["bytes"].get<std::size_t>();
    Interpreter::Turn turn{interpreter, size};
    turn.ask({{"do", "fetch"}});
    const auto bytes = turn.memory().first(size);
    return {bytes.begin(), bytes.end()};
  }
  static std::string new_key() {
    static std::atomic<std::uint64_t> made{0};
    return std::to_string(++made);
  }

  Prototype& prototype_;
  std::string key_ = new_key();
  std::uint32_t rank_ = 0;
  bool used_ = false;                ///< the interpreter has the object
  std::vector<std::byte> restored_;  ///< a state that the interpreter does not have yet
};

class PrototypeEncoder final : public Encoder<Space::host> {
 public:
  PrototypeEncoder(const PrototypeCodec& codec, int ranks) : codec_{codec}, ranks_{ranks}, object_{codec.prototype()} {}

  void encode(Queue<Space::host> /*queue*/, HostView<const float> gradient, const SideInputs<Space::host>& /*side*/,
              const EncodeContext& context, HostView<std::byte> payload, HostView<std::byte> /*scratch*/) override {
    codec_.encode(object_.use(context.key.rank), ranks_, gradient, context, payload);
  }
  void reset(Queue<Space::host> /*queue*/) override { object_.reset(); }
  void visit_state(StateVisitor& visitor) override { object_.visit(visitor); }

 private:
  const PrototypeCodec& codec_;
  int ranks_;
  PrototypeObject object_;
};

std::unique_ptr<Encoder<Space::host>> PrototypeCodec::make_encoder(std::size_t /*n*/, int ranks,
                                                                   Queue<Space::host> /*queue*/) const {
  if (!prototype_.descriptor().memory) return nullptr;
  return std::make_unique<PrototypeEncoder>(*this, ranks);
}

/// A reducer in Python: every rank's object gets the gradients of all ranks, which is not counted, and says how many
/// bytes a rank would have sent. Those are sent, to the next rank, and counted.
class PrototypeReducer final : public CountingReducer<Space::host> {
 public:
  explicit PrototypeReducer(const ReducerSetup<Space::host>& setup)
      : CountingReducer{setup.layout.elements, setup.ranks},
        prototype_{Prototype::of(setup.spec.params)},
        object_{prototype_},
        words_{prototype_, setup.spec.params, setup.layout},
        known_(n_ * ranks_),
        exchanged_(n_ * ranks_),
        sizes_(ranks_) {}

  [[nodiscard]] std::size_t workspace_bytes() const override { return 0; }

  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
              const SideInputs<Space::host>& /*side*/, const EncodeContext& context, HostView<std::byte> /*workspace*/,
              PhaseClock<Space::host>& clock) override {
    const auto me = static_cast<std::size_t>(comm.rank());
    const std::uint32_t rank = context.key.rank;
    in_phase(clock, Phase::communicate, queue, [&] { share(comm, gradient, me); });
    in_phase(clock, Phase::encode, queue, [&] {
      const std::string& key = object_.use(rank);
      Interpreter::Turn turn{prototype_.interpreter(rank), std::max<std::size_t>(known_.size() * sizeof(float), 4096)};
      std::memcpy(turn.memory().data(), known_.data(), known_.size() * sizeof(float));
      const json said = turn.ask({{"do", "reduce"},
                                  {"key", key},
                                  {"parameters", words_.arguments()},
                                  {"context", words_.context(context, n_, comm.size())},
                                  {"ranks", ranks_},
                                  {"n", n_}});
      std::memcpy(gradient.data(), turn.memory().data(), n_ * sizeof(float));
      payload_bytes_ = said["bytes"];
      values_sent_ = n_;
      if (const std::size_t most = 64 * (known_.size() * sizeof(float) + 1024); payload_bytes_ > most) {
        throw_error(Fault::data,
                    "codec python: reduce says that a rank sends {} bytes, more than 64 times "
                    "what the gradients of all ranks have",
                    payload_bytes_);
      }
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      const auto p = static_cast<std::size_t>(comm.size());
      const std::size_t before = (me + p - 1) % p;
      std::fill(sizes_.begin(), sizes_.end(), -1.0);
      sizes_[me] = static_cast<double>(payload_bytes_);
      comm.agree_max(sizes_);
      const auto incoming = static_cast<std::size_t>(sizes_[before]);
      message_.resize(payload_bytes_ + incoming);
      const HostView<std::byte> all{message_.data(), message_.size()};
      comm.exchange(queue, static_cast<int>((me + 1) % p), all.first(payload_bytes_), static_cast<int>(before),
                    all.part(payload_bytes_, incoming));
    });
    in_phase(clock, Phase::decode, queue, [] {});
  }

  void reset(Queue<Space::host> /*queue*/) override { object_.reset(); }
  void visit_state(StateVisitor& visitor) override { object_.visit(visitor); }

 private:
  /// known_ := the gradients of all ranks. It takes the one call of a communicator that is not counted, a maximum: the
  /// bits of a float are an integer, which a double holds, and other ranks' places are below every integer.
  void share(Communicator<Space::host>& comm, HostView<const float> gradient, std::size_t me) {
    std::fill(exchanged_.begin(), exchanged_.end(), -1.0);
    for (std::size_t i = 0; i < n_; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &gradient[i], sizeof bits);
      exchanged_[me * n_ + i] = bits;
    }
    comm.agree_max(exchanged_);
    for (std::size_t i = 0; i < known_.size(); ++i) {
      const auto bits = static_cast<std::uint32_t>(exchanged_[i]);
      std::memcpy(&known_[i], &bits, sizeof bits);
    }
  }

  Prototype& prototype_;
  PrototypeObject object_;
  UnitWords words_;
  std::vector<float> known_;       ///< of rank r from element r n on
  std::vector<double> exchanged_;  ///< the same, as agree_max takes them
  std::vector<double> sizes_;      ///< bytes that each rank sends
  std::vector<std::byte> message_;
};

std::unique_ptr<Codec<Space::host>> Prototype::make_codec_of_prototype(const Params& params, const Layout& layout) {
  of(params).renew();
  return std::make_unique<PrototypeCodec>(of(params), params, layout);
}

std::unique_ptr<Reducer<Space::host>> Prototype::make_reducer_of_prototype(const ReducerSetup<Space::host>& setup) {
  of(setup.spec.params).renew();
  return std::make_unique<PrototypeReducer>(setup);
}

Prototype& Prototype::of(const Params& params) {
  return read(params.word("file"), "", params.has("cls") ? params.word("cls") : "");
}

/// When the file was changed last, and its size; zeros for what is no file.
std::pair<std::int64_t, std::int64_t> stamp_of(const std::string& source) {
  struct stat found {};
  if (source.empty() || source.starts_with('@') || stat(source.c_str(), &found) != 0) return {};
  return {found.st_mtim.tv_sec * 1'000'000'000 + found.st_mtim.tv_nsec, found.st_size};
}

Prototype& Prototype::read(const std::string& file, const std::string& source, const std::string& cls) {
  struct Known {
    std::pair<std::int64_t, std::int64_t> stamp;
    std::vector<std::unique_ptr<Prototype>> versions;  // specs of earlier ones may still be in use
  };
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, Known> all;
  const std::lock_guard lock{mutex};
  Known& known = all[{file, cls}];
  const auto stamp = stamp_of(source);
  if (known.versions.empty() || (!source.empty() && stamp != known.stamp)) {
    known.versions.push_back(std::make_unique<Prototype>(file, source, cls));
    known.stamp = stamp;
  }
  return *known.versions.back();
}

/// A descriptor of parameters whose values are all that is known, for a record.
struct RecordedPrototype {
  explicit RecordedPrototype(std::string_view recorded) : text{recorded} {
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view part = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(part.size() + 1, rest.size()));
      const auto equals = std::min(part.find('='), part.size());
      const std::string_view name = part.substr(0, equals);
      if (name == "ef" || equals == part.size()) continue;
      const std::string_view value = part.substr(equals + 1);
      params.push_back({.name = name, .kind = ParamInfo::Kind::choice, .default_value = value, .choices = value});
      if (name == kDelays) descriptor.memory = descriptor.delays = true;
    }
    descriptor.name = kPrototype;
    descriptor.caveat = kCaveat;
    descriptor.params = params;
  }
  std::string text;
  std::vector<ParamInfo> params;
  CodecDescriptor descriptor = {};
};

}  // namespace

PrototypeText read_prototype(std::string_view text) {
  std::string file, cls, others;
  bool first = true;
  for (std::string_view rest = text; !rest.empty() || first; first = false) {
    const auto end = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (first)
      file = part.starts_with("file=") ? part.substr(5) : part;
    else if (part.starts_with("cls="))
      cls = part.substr(4);
    else
      others += fmt::format(",{}", part);
  }
  if (file.empty() || file.find_first_of("|[]") != std::string::npos)
    throw_error(Fault::usage,
                "codec python: '{}' names no file; write python:mine.py or "
                "python:mine.py,key=value,... with a path without any of |[],",
                text);
  // A socket lies in a folder of its own, which tells nobody anything.
  const std::string shown = file.starts_with('@') ? "@" + file.substr(file.rfind('/') + 1) : file;
  if (!file.starts_with('@')) remember_input({"--codec", file});
  const Prototype& prototype = Prototype::read(shown, file, cls);
  return {&prototype.descriptor(), fmt::format("file={}{}{}", shown, cls.empty() ? "" : ",cls=" + cls, others)};
}

PrototypeText recorded_prototype(std::string_view text) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<RecordedPrototype>, std::less<>> all;
  const std::lock_guard lock{mutex};
  std::unique_ptr<RecordedPrototype>& recorded = all[std::string{text}];
  if (recorded == nullptr) recorded = std::make_unique<RecordedPrototype>(text);
  return {&recorded->descriptor, recorded->text};
}

}  // namespace gradtool
