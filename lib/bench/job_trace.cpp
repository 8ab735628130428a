#include "lib/bench/job_trace.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <istream>
#include <nlohmann/json.hpp>
#include <span>
#include <streambuf>

#include "lib/bench/trace_calls.hpp"
#include "lib/core/error.hpp"
#include "lib/core/files.hpp"
#include "lib/core/median.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

double median(const std::vector<double>& values) {
  return median_of_known(values).value_or(0.0);
}

constexpr std::uint64_t kMostTraceBytes = std::uint64_t{2} << 30;      // of a file
constexpr std::uint64_t kMostInflatedBytes = std::uint64_t{16} << 30;  // of what it inflates to

/// Microseconds, as the trace has them.
struct Span {
  double from = 0.0, to = 0.0;
};
using Spans = std::vector<Span>;

/// In ascending order, without overlaps.
Spans merged(Spans spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.from < b.from; });
  Spans out;
  for (const Span& span : spans) {
    if (!out.empty() && span.from <= out.back().to)
      out.back().to = std::max(out.back().to, span.to);
    else
      out.push_back(span);
  }
  return out;
}

/// The time within `step` in which `sent` goes on and `busy` does not; both as merged() makes them.
double exposed_within(const Span& step, const Spans& sent, const Spans& busy) {
  double exposed = 0.0;
  auto next = busy.begin();
  for (const Span& span : sent) {
    double at = std::max(span.from, step.from);
    const double end = std::min(span.to, step.to);
    while (next != busy.end() && next->to <= at) ++next;
    for (auto work = next; at < end; ++work) {
      const double begins = work == busy.end() ? end : std::min(work->from, end);
      exposed += std::max(0.0, begins - at);
      if (work == busy.end()) break;
      at = std::max(at, work->to);
    }
  }
  return exposed;
}

/// The parts of a trace that are needed, event by event.
struct Events {
  Spans steps, kernels, sent_by_kernels, operators, sent_by_annotations;
  TraceCalls calls;
  double world = 0.0;  ///< ranks of the job; 0: the trace does not say

  void add(const TraceEvent& event) {
    if (event.phase != "X" || event.begin < 0.0 || event.duration < 0.0) return;
    const Span span{event.begin, event.end()};
    const bool kernel = event.category == "kernel" || event.category == "Kernel";
    if (kernel || event.category == "gpu_memcpy" || event.category == "gpu_memset" || event.category == "Memcpy") {
      const bool sent =
          kernel && (!event.collective.empty() || event.name.starts_with("nccl") || event.name.starts_with("rccl"));
      (sent ? sent_by_kernels : kernels).push_back(span);
      if (sent) calls.add_kernel(event);
    } else if (event.category == "gpu_user_annotation") {
      return;  // the host's annotation once more, where its kernels lie
    } else if (event.name.starts_with("ProfilerStep#")) {
      steps.push_back(span);
    } else if (event.name.starts_with("gloo:") || event.name.starts_with("mpi:")) {
      sent_by_annotations.push_back(span);
      calls.add(event, event.name.substr(event.name.find(':') + 1));
    } else if (event.name.starts_with("nccl:") || event.name == "record_param_comms") {
      calls.add_annotation(event);
    } else if (event.category.starts_with("cuda_") && event.name.find("Launch") != std::string::npos) {
      calls.add_launch(event);
    } else if ((event.category == "cpu_op" || event.category.empty()) && event.name.starts_with("aten::")) {
      operators.push_back(span);  // PyTorch without Kineto writes no categories
    }
  }
};

/// Takes the events out of a document as it is parsed, because traces are larger than what they are read for. Events
/// are the objects of the list `traceEvents`, or of the document itself where it is a list.
class EventReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit EventReader(Events& events) : events_{events} {}
  [[nodiscard]] bool found_list() const { return event_depth_ > 0; }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return number(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return number(value); }
  bool binary(binary_t& /*value*/) override { return true; }
  bool string(string_t& value) override {
    if (depth_ == event_depth_ && in_event_) {
      if (key_ == "ph") event_.phase = value;
      if (key_ == "cat") event_.category = value;
      if (key_ == "name") event_.name = value;
    } else if (in_arguments()) {
      if (key_ == "Collective name") event_.collective = value;
      if (key_ == "dtype") event_.dtype = value;
    } else if (in_event_ && arguments_ && key_ == "Input type" && depth_ == event_depth_ + 2) {
      event_.tensor_types.push_back(value);
    }
    return true;
  }
  bool start_object(std::size_t /*elements*/) override {
    if (++depth_ == event_depth_) {
      in_event_ = true;
      event_ = {};
    }
    return true;
  }
  bool key(string_t& value) override {
    if (depth_ <= std::max<std::size_t>(event_depth_ + 1, 2)) key_ = value;
    if (depth_ == event_depth_) arguments_ = value == "args";
    if (depth_ == 1) top_key_ = value;
    return true;
  }
  bool end_object() override {
    if (depth_-- == event_depth_ && in_event_) {
      events_.add(event_);
      in_event_ = false;
    }
    return true;
  }
  bool start_array(std::size_t /*elements*/) override {
    ++depth_;
    if (event_depth_ == 0 && (depth_ == 1 || (depth_ == 2 && top_key_ == "traceEvents"))) event_depth_ = depth_ + 1;
    // The sizes of an annotation's tensors: [[2, 1024], ...].
    if (in_dimensions()) event_.tensor_elements.push_back(1.0);
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t /*place*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*e*/) override {
    return false;
  }

 private:
  [[nodiscard]] bool in_arguments() const { return in_event_ && arguments_ && depth_ == event_depth_ + 1; }
  [[nodiscard]] bool in_dimensions() const {
    return in_event_ && arguments_ && key_ == "Input Dims" && depth_ == event_depth_ + 3;
  }
  bool number(double value) {
    if (depth_ == event_depth_ && in_event_) {
      if (key_ == "ts") event_.begin = value;
      if (key_ == "dur") event_.duration = value;
      if (key_ == "tid") event_.thread = value;
    } else if (in_arguments()) {
      if (key_ == "In msg nelems") event_.elements = value;
      if (key_ == "Group size") event_.ranks = value;
      if (key_ == "correlation") event_.correlation = value;
    } else if (in_dimensions() && !event_.tensor_elements.empty()) {  // an object there is no tensor
      event_.tensor_elements.back() *= value;
    } else if (depth_ == 2 && top_key_ == "distributedInfo" && key_ == "world_size") {
      events_.world = value;
    }
    return true;
  }

  Events& events_;
  TraceEvent event_;
  std::string key_, top_key_;  ///< of the event or its arguments, and of the document
  std::size_t depth_ = 0, event_depth_ = 0;
  bool in_event_ = false, arguments_ = false;
};

/// Inflates a file that was compressed by gzip while it is read.
class Inflater final : public std::streambuf {
 public:
  Inflater(std::string& data, std::string path) : path_{std::move(path)} {
    stream_.next_in = reinterpret_cast<Bytef*>(data.data());  // NOLINT: zlib's own type of bytes
    stream_.avail_in = static_cast<uInt>(data.size());
    if (inflateInit2(&stream_, MAX_WBITS + 16) != Z_OK) throw Error{Fault::backend, "zlib cannot be started"};
  }
  ~Inflater() override { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

 protected:
  int_type underflow() override {
    if (ended_) return traits_type::eof();
    stream_.next_out = reinterpret_cast<Bytef*>(block_.data());  // NOLINT: as above
    stream_.avail_out = static_cast<uInt>(block_.size());
    const int status = inflate(&stream_, Z_NO_FLUSH);
    const std::size_t got = block_.size() - stream_.avail_out;
    inflated_ += got;
    if (inflated_ > kMostInflatedBytes)
      throw Error{Fault::data, fmt::format("{} inflates to more than {}", path_, human_bytes(kMostInflatedBytes))};
    if (status == Z_STREAM_END) {
      ended_ = true;
    } else if (status != Z_OK || (got == 0 && stream_.avail_in == 0)) {
      throw Error{Fault::data, fmt::format("{} is damaged or cut short: it does not inflate to its end", path_)};
    }
    setg(block_.data(), block_.data(), block_.data() + got);
    return got == 0 ? underflow() : traits_type::to_int_type(block_.front());
  }

 private:
  std::string path_;
  z_stream stream_ = {};
  std::array<char, 1U << 16> block_ = {};
  std::uint64_t inflated_ = 0;
  bool ended_ = false;
};

Events read_events(const std::string& path) {
  std::string data = read_file(path, kMostTraceBytes);
  Events events;
  EventReader reader{events};
  bool whole = false;
  if (data.starts_with("\x1f\x8b")) {
    Inflater inflater{data, path};
    std::istream stream{&inflater};
    stream.exceptions(std::ios::badbit);  // what Inflater throws goes through
    whole = nlohmann::json::sax_parse(stream, &reader);
  } else {
    whole = nlohmann::json::sax_parse(data, &reader);
  }
  if (!whole || !reader.found_list()) {
    throw Error{Fault::data,
                fmt::format("{} is no trace of a job: {}; valid is what torch.profiler's export_chrome_trace wrote",
                            path, whole ? "it has no list traceEvents" : "it is no whole JSON document")};
  }
  return events;
}

JobTrace read_trace(const std::string& path) {
  Events events = read_events(path);
  if (events.steps.empty()) {
    throw Error{Fault::data, fmt::format("{} marks no steps; call step() of the profiler after every iteration", path)};
  }
  const bool on_gpu = !events.kernels.empty() || !events.sent_by_kernels.empty();
  // Gradients on a GPU can be sent from the host: then no kernel is a collective.
  const Spans sent = merged(events.sent_by_kernels.empty() ? events.sent_by_annotations : events.sent_by_kernels);
  const Spans busy = merged(on_gpu ? events.kernels : events.operators);
  if (sent.empty() && events.calls.annotated())
    throw Error{Fault::data, fmt::format("{} records that collectives were launched on a GPU, and not when they ran; "
                                         "profile the activities CPU and CUDA",
                                         path)};
  if (sent.empty())
    throw Error{Fault::data,
                fmt::format("{} records no collective, so nothing in it says what communication costs", path)};
  JobTrace trace;
  trace.file = path;
  std::vector<double> lengths, exposed, computing;
  for (const Span& step : events.steps) {
    // A mark that was cut off, or behind which nothing was recorded, is no step.
    if (exposed_within(step, {step}, busy) >= step.to - step.from) continue;
    lengths.push_back((step.to - step.from) * 1e-6);
    exposed.push_back(exposed_within(step, sent, busy) * 1e-6);
    computing.push_back(lengths.back() - exposed.back());
  }
  if (lengths.empty()) {
    throw Error{Fault::data, fmt::format("{} records collectives alone, so that what is computed meanwhile is not "
                                         "known; profile the activities CPU and CUDA",
                                         path)};
  }
  trace.steps = lengths.size();
  trace.step_seconds = median(lengths);
  trace.exposed_seconds = median(exposed);
  trace.compute_seconds = median(computing);
  const auto [low, high] = std::minmax_element(computing.begin(), computing.end());
  trace.compute_low = *low;
  trace.compute_high = *high;
  trace.collectives = events.calls.take(events.world);
  return trace;
}

}  // namespace

std::string JobTrace::words() const {
  return fmt::format(
      "Of a step's {} ({}{} in {}) {} are exposed communication: on that job's network no codec can gain more than "
      "{:.2f} times",
      human_seconds(step_seconds), steps == 1 ? "one step" : "median of ",
      steps == 1 ? "" : fmt::format("{} steps", steps), file, human_seconds(exposed_seconds), most_gain());
}

std::string JobTrace::collectives_words() const {
  if (collectives.empty())
    return "The trace does not record how large its collectives are; torch.profiler does with record_shapes=True, "
           "where it is built with Kineto";
  constexpr std::size_t kNamed = 3;
  const std::size_t named = std::min(kNamed, collectives.size());
  const auto guessed = [](const TracedCollective& one) { return !one.group_known && one.ranks > 0; };
  std::string text;
  for (std::size_t i = 0; i < named; ++i) {
    const TracedCollective& one = collectives[i];
    text +=
        fmt::format("{}{} of {}", i == 0 ? "The collectives of the trace: " : ", ", one.name, human_bytes(one.bytes));
    if (one.ranks > 0) text += fmt::format(" among {} ranks", one.ranks);
    text += fmt::format(" takes {}", human_seconds(one.seconds));
    const double bytes = one.ranks > 1 ? bus_bytes(one.name, one.ranks, one.bytes) : 0.0;
    if (bytes > 0.0 && one.seconds > 0.0)
      text += fmt::format(" ({:.3g} GB/s of bus bandwidth)", bytes / one.seconds * 1e-9);
  }
  const std::span<const TracedCollective> shown{collectives.data(), named};
  if (std::any_of(shown.begin(), shown.end(), guessed))
    text += "; it names no process groups, so that all ranks of the job are taken to be in each";
  return text;
}

bool names_traces(const std::string& text) {
  const std::string first = text.substr(0, text.find(','));
  return first.ends_with(".json") || first.ends_with(".json.gz");
}

std::vector<std::string> trace_files(const std::string& text) {
  if (!names_traces(text)) return {};
  const auto files = split(text, ',');
  return {files.begin(), files.end()};
}

JobTrace read_job_traces(const std::string& text) {
  std::vector<JobTrace> ranks;
  for (const std::string& file : trace_files(text)) {
    if (file.empty())
      throw Error{Fault::usage, fmt::format("--compute-ms '{}' has an empty name among its traces", text)};
    ranks.push_back(read_trace(file));
  }
  JobTrace trace = *std::max_element(ranks.begin(), ranks.end(), [](const JobTrace& a, const JobTrace& b) {
    return a.compute_seconds < b.compute_seconds;
  });
  trace.given = text;
  return trace;
}

}  // namespace gradtool
