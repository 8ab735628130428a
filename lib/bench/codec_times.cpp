// Codec times of another machine in the place of those that were measured here.
#include "lib/bench/codec_times.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lib/core/error.hpp"
#include "lib/core/files.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"
#include "lib/report/json.hpp"

namespace gradtool {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMostSpeedBytes = std::uint64_t{1} << 30;

std::string text(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_string() ? found->get<std::string>() : std::string{};
}

/// Seconds of the number of microseconds under `key`; empty where it is missing or none that a clock shows.
std::optional<double> seconds(const Json& row, const std::string& key) {
  const auto found = row.find(key);
  if (found == row.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>() * 1e-6;
  return std::isfinite(value) && value >= 0.0 ? std::optional{value} : std::nullopt;
}

/// A whole number of at least 1 under `key`, 1 where it is missing.
double count(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number() ? std::max(1.0, std::floor(found->get<double>())) : 1.0;
}

/// Without the noise, which is of samples that are not there.
std::optional<PhaseSummary> phase(const Json& row, const std::string& name) {
  const auto median = seconds(row, name + "_us_median");
  if (!median) return std::nullopt;
  return PhaseSummary{
      .median = *median, .low = seconds(row, name + "_us_low"), .high = seconds(row, name + "_us_high")};
}

std::string params_of(const CodecSpec& codec) {
  const std::string params = codec.params_text();
  return params.empty() ? "default" : params;
}

std::string inner_of(const ResultRow& row) {
  if (!row.inner) return {};
  const std::string params = row.inner->params_text();
  return row.inner->name() + (params.empty() ? "" : ":") + params;
}

PhaseSummary times(const PhaseSummary& phase, double factor) {
  const auto scaled = [factor](std::optional<double> value) { return value ? std::optional{*value * factor} : value; };
  return {.median = phase.median * factor, .low = scaled(phase.low), .high = scaled(phase.high)};
}

/// Units share the new times as they shared the old ones, or evenly where the clock saw nothing.
void set_times(ResultRow& row, const PhaseSummary& encode, const PhaseSummary& decode) {
  const double even = 1.0 / static_cast<double>(std::max<std::size_t>(1, row.units.size()));
  const auto share = [](double part, double whole, double without) { return whole > 0.0 ? part / whole : without; };
  for (UnitProfile& unit : row.units) {
    const double across = share(unit.decode_across, unit.decode, 0.0);
    unit.encode = encode.median * share(unit.encode, row.encode->median, even);
    unit.decode = decode.median * share(unit.decode, row.decode->median, even);
    unit.decode_across = across * unit.decode;
  }
  row.encode = encode;
  row.decode = decode;
}

/// Float32 that the codec reads beside one pass over the row's units: elements that `cache` bytes do not hold until it
/// reads them again, and side inputs.
double read_beside(const ResultRow& row, const MemoryPasses& passes, double cache) {
  double elements = 0.0;
  for (const UnitProfile& unit : row.units) {
    if (unit.gated) continue;
    const std::size_t span = passes.again == ReadAgain::unit ? unit.elements : unit.largest_tensor;
    const double encoded = row.encoded_share() * static_cast<double>(span);
    if (passes.again != ReadAgain::never && 4.0 * encoded > cache) elements += encoded;
    if (unit.has_side) elements += row.encoded_share() * static_cast<double>(unit.elements) * passes.side;
  }
  return elements;
}

/// A recorded row's parameters, and the defaults of those that the codec has got since.
std::string completed_params(const Json& row) {
  std::string params = text(row, "params");
  try {
    const std::string codec = text(row, "codec");
    return params_of(parse_recorded_codec(params.empty() || params == "default" ? codec : codec + ":" + params));
  } catch (const Error&) {
    return params;  // of another gradtool, or of a prototype that is not here
  }
}

constexpr std::string_view kFloor = "floor:";
constexpr std::string_view kCache = ",cache=";

}  // namespace

RecordedTimes RecordedTimes::read(const std::string& path) {
  const auto fail = [&path](const std::string& why) {
    throw Error{Fault::data, fmt::format("--codec-speed {}: {}", path, why)};
  };
  const Json json = parse_json(read_file(path, kMostSpeedBytes, "--codec-speed " + path));
  if (json.is_discarded()) fail("is no valid JSON; it may have been cut off");
  if (!json.is_object() || text(json, "format") != "gradtool.bench")
    fail("is no record of a bench, which gradtool bench --json writes");
  if (!json.contains("schema_version") || json["schema_version"] != kBenchSchema)
    fail(fmt::format("has a schema_version other than {}, which is the one that this gradtool reads", kBenchSchema));
  RecordedTimes record;
  record.path_ = path;
  if (json.contains("rows") && json["rows"].is_array()) {
    for (const Json& row : json["rows"]) {
      const bool whole = row.is_object() && text(row, "tensor") == "all" && text(row, "status") == "ok" &&
                         text(row, "time_source") == "measured" && text(row, "timing") == "isolated";
      if (!whole) continue;
      const auto encode = phase(row, "encode"), decode = phase(row, "decode");
      if (!encode || !decode) continue;
      record.all_.push_back({.codec = text(row, "codec"),
                             .params = completed_params(row),
                             .way = text(row, "aggregation"),
                             .op = text(row, "op"),
                             .levels = text(row, "levels"),
                             .inner = text(row, "codec_inner"),
                             .granularity = text(row, "granularity"),
                             .processor = text(row, "processor"),
                             .device = text(row, "device"),
                             .threads = static_cast<int>(count(row, "threads")),
                             .ranks = static_cast<int>(count(row, "ranks")),
                             .elements = count(row, "elements"),
                             .encode = *encode,
                             .decode = *decode});
    }
  }
  if (record.all_.empty())
    fail("has no times of codecs: write it with gradtool bench --timing isolated (or both) --json");
  return record;
}

const RecordedTimes::Times* RecordedTimes::times_of(const ResultRow& row) const {
  const std::string way =
      row.codec.descriptor->aggregation == Aggregation::none ? "none" : std::string{name_of(row.scheme)};
  const std::string levels = row.level_node > 1 ? fmt::format("node={}", row.level_node) : "";
  const std::string params = params_of(row.codec), inner = inner_of(row);
  const double elements = static_cast<double>(row.elements);
  const auto farness = [&](const Times& one) {
    return std::pair{one.granularity != row.granularity, std::abs(std::log(one.elements / elements))};
  };
  const Times* best = nullptr;
  for (const Times& one : all_) {
    const bool same = one.codec == row.codec.name() && one.params == params && one.way == way &&
                      one.op == name_of(row.op) && one.levels == levels && one.inner == inner;
    if (same && (best == nullptr || farness(one) < farness(*best))) best = &one;
  }
  return best;
}

bool RecordedTimes::apply(ResultRow& row) const {
  const Times* const recorded = times_of(row);
  if (recorded == nullptr || !row.encode || !row.decode) return false;
  const double elements = static_cast<double>(row.elements) / recorded->elements;
  const double ranks = static_cast<double>(row.measured_ranks) / recorded->ranks;
  const bool shards = row.op == Collective::all_gather;
  const PhaseSummary encode = times(recorded->encode, elements / (shards ? ranks : 1.0));
  const bool gathers = decodes_every_rank(row) && !row.inner;
  const PhaseSummary decode = times(recorded->decode, elements * (gathers                  ? ranks
                                                                  : decodes_own_shard(row) ? 1.0 / ranks
                                                                                           : 1.0));
  set_times(row, encode, decode);
  row.processor = recorded->processor;
  row.device = recorded->device;
  row.threads = recorded->threads;
  row.codec_times = CodecTimes::record;
  // One number of ranks does not tell what of the decoding is once a step, such as zeroing the result.
  if (gathers && ranks != 1.0)
    row.message += fmt::format("{}all of the record's decoding scaled from {} ranks to {}",
                               row.message.empty() ? "" : "; ", recorded->ranks, row.measured_ranks);
  return true;
}

MemoryFloor memory_floor(const ResultRow& row, double cache) {
  const double n = static_cast<double>(row.elements);
  // A rank keeps its shard of a reduce-scatter.
  const double kept = row.op == Collective::reduce_scatter ? n / row.measured_ranks : n;
  if (row.codec.name() == "noop") return {};
  const bool averages = row.op == Collective::all_reduce || row.op == Collective::reduce_scatter;
  const double division = averages && row.baseline_dtype == "f32" ? 8.0 : 0.0;  // bytes an element, uncompressed
  if (row.codec.name() == "none") return {.encode = 0.0, .decode = division * kept, .decode_fixed = division * kept};
  // Units below the codec's gate go as those of `none`.
  double gated = 0.0, gated_payload = 0.0;
  for (const UnitProfile& unit : row.units) {
    if (!unit.gated) continue;
    gated += static_cast<double>(unit.elements) / n;
    gated_payload += unit.bytes.payload;
  }
  const double divided = division * kept * gated;
  // In two levels a rank codes a shard. The row's payload counts what is sent inside machines as well and is left out.
  const double coded = row.inner ? 1.0 / row.level_node : 1.0;
  const double payload = row.inner ? 0.0 : row.bytes->payload - gated_payload;
  const double encoded = coded * row.encoded_share() * n * (1.0 - gated);
  const double written = 4.0 * coded * kept * (1.0 - gated);
  MemoryPasses passes = memory_passes(*row.codec.descriptor, row.codec.params);
  if (row.codec.feedback() != Feedback::off) {  // the residual is added to every element
    ++passes.kept;
    passes.reads = 1.0;
  }
  // In two levels what is kept is a shard's, and a method that has not begun keeps nothing: both are left out of what
  // is needed at least.
  if (!row.reached || row.inner) passes = {.reads = passes.reads};
  const double payloads = decodes_every_rank(row)  ? row.measured_ranks
                          : decodes_own_shard(row) ? 1.0 / row.measured_ranks
                                                   : 1.0;
  return {.encode = passes.encode_bytes(encoded, read_beside(row, passes, cache)) + payload,
          .decode = payloads * payload + written + divided,
          .decode_fixed = written + divided};
}

std::string memory_floor_words(const CodecDescriptor& codec) {
  if (codec.name == "noop") return "nothing is read or written";
  if (codec.name == "none") return "encode: nothing; decode: 4 bytes an element read and 4 written, in float32";
  const MemoryPasses passes = memory_passes(codec, Params{codec.name, codec.params, ""});
  const bool chosen = !codec.memory;
  std::string encode = "4 bytes an element read";
  if (passes.reads < 1.0) encode += fmt::format(" (with ef=off {:g}: {})", 4.0 * passes.reads, passes.why);
  encode += ", the payload written";
  if (passes.kept > 0) encode += fmt::format(", {0} read and {0} written for its memory", 4 * passes.kept);
  if (passes.side > 0)
    encode += fmt::format(", {} read of {}", 4 * passes.side, codec.needs_weight ? "weights" : "second moments");
  if (chosen && codec.error_feedback) encode += ", 4 read and 4 written for the residual (ef=off: none)";
  if (chosen && !codec.error_feedback) encode += " (with ef=on 4 read and 4 written for the residual)";
  const auto twice = [](const MemoryPasses& p) {
    return fmt::format("4 are read again where no cache holds the {}, because {}",
                       p.again == ReadAgain::tensor ? "tensor" : "unit", p.why);
  };
  if (passes.again != ReadAgain::never) encode += "; " + twice(passes);
  for (const ParamInfo& info : codec.params) {
    // Some methods read twice with another choice, or with a number in the place of a word such as off.
    std::vector<std::string> values;
    std::istringstream words{std::string{info.choices}};
    for (std::string word; std::getline(words, word, '|');) values.push_back(word);
    const bool number = info.kind != ParamInfo::Kind::choice;
    if (number) values.push_back(fmt::format("{:g}", info.min));
    for (const std::string& value : values) {
      const std::string with = info.condition.empty() ? "" : fmt::format("{},", info.condition);
      const auto other =
          memory_passes(codec, Params{codec.name, codec.params, fmt::format("{}{}={}", with, info.name, value)});
      if (passes.again == ReadAgain::never && other.again != ReadAgain::never)
        encode += fmt::format("; with {}{}{} {}", info.name, number ? "" : "=", number ? "" : value, twice(other));
    }
  }
  return fmt::format("encode: {}; decode: {} read, 4 bytes an element written", encode,
                     codec.aggregation == Aggregation::gather ? "every rank's payload" : "a payload");
}

std::string codec_speed_file(const std::string& text) {
  return text.starts_with(kFloor) ? std::string{} : text;
}

CodecSpeed CodecSpeed::parse(const std::string& text) {
  CodecSpeed speed;
  speed.text_ = text;
  if (!text.starts_with(kFloor)) {
    speed.source_ = RecordedTimes::read(text);
    return speed;
  }
  const std::string_view floor = std::string_view{text}.substr(kFloor.size());
  const std::size_t end = std::min(floor.find(','), floor.size());
  const std::string_view cache = floor.substr(end);
  const double rate = number_of<double>(floor.substr(0, end)).value_or(0.0);
  if (!(rate > 0.0 && rate <= 1e9 && (cache.empty() || cache.starts_with(kCache)))) {
    throw Error{Fault::usage,
                fmt::format("--codec-speed '{}' is not valid; write the GB/s of a memory above 0, as floor:3000 or "
                            "floor:3000,cache=50MB, or the record of another bench, as card.json",
                            text)};
  }
  Memory memory{.bytes_per_second = rate * 1e9};
  if (!cache.empty())
    memory.cache =
        static_cast<double>(parse_bytes(std::string{cache.substr(kCache.size())}, "--codec-speed floor: cache"));
  speed.source_ = memory;
  return speed;
}

std::string CodecSpeed::file() const {
  const auto* record = std::get_if<RecordedTimes>(&source_);
  return record == nullptr ? std::string{} : record->path();
}

bool CodecSpeed::apply(ResultRow& row) const {
  if (!row.encode || !row.decode || !row.bytes) return false;
  if (const auto* record = std::get_if<RecordedTimes>(&source_)) {
    if (!record->apply(row)) return false;
    row.codec_times_file = record->path();
    return true;
  }
  const auto [rate, cache] = std::get<Memory>(source_);
  const MemoryFloor floor = memory_floor(row, cache);
  const auto exactly = [](double time) { return PhaseSummary{.median = time, .low = time, .high = time}; };
  set_times(row, exactly(floor.encode / rate), exactly(floor.decode / rate));
  row.decode_fixed_share = floor.decode > 0.0 ? floor.decode_fixed / floor.decode : 0.0;
  row.processor = fmt::format("a processor with {:g} GB/s of memory", rate * 1e-9);
  if (cache != kLargestCache) row.processor += fmt::format(" and {} of cache", human_bytes(cache));
  row.device = "floor";
  row.threads = 1;
  row.codec_times = CodecTimes::floor;
  return true;
}

std::vector<ResultRow> with_codec_speed(const std::vector<ResultRow>& rows, const CodecSpeed& speed,
                                        std::vector<std::string>& missing) {
  std::vector<ResultRow> replaced;
  for (const ResultRow& row : rows) {
    if (row.units.empty() || row.modelled()) continue;
    ResultRow one = row;
    if (speed.apply(one)) {
      replaced.push_back(std::move(one));
    } else if (const std::string name = short_name(row);
               std::find(missing.begin(), missing.end(), name) == missing.end()) {
      missing.push_back(name);
    }
  }
  return replaced;
}

}  // namespace gradtool
