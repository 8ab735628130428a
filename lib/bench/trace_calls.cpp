#include "lib/bench/trace_calls.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <tuple>

#include "lib/core/median.hpp"

namespace gradtool {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// Bytes of an element by the names that PyTorch's types have in traces; 0 for one that is not known.
double bytes_of_type(const std::string& name) {
  static const std::map<std::string, double> known{
      {"float", 4.0},         {"double", 8.0},      {"half", 2.0}, {"c10::half", 2.0},     {"bfloat16", 2.0},
      {"c10::bfloat16", 2.0}, {"int", 4.0},         {"long", 8.0}, {"long int", 8.0},      {"short", 2.0},
      {"char", 1.0},          {"signed char", 1.0}, {"byte", 1.0}, {"unsigned char", 1.0}, {"bool", 1.0}};
  const auto found = known.find(lower(name));
  return found == known.end() ? 0.0 : found->second;
}

/// A group's size as a whole number, whatever the trace claims.
int whole_ranks(double ranks) {
  return static_cast<int>(std::clamp(ranks, 0.0, 1e9));
}

}  // namespace

double TraceEvent::bytes() const {
  double sum = std::max(0.0, elements) * bytes_of_type(dtype);
  for (std::size_t i = 0; elements < 0.0 && i < std::min(tensor_elements.size(), tensor_types.size()); ++i)
    sum += tensor_elements[i] * bytes_of_type(tensor_types[i]);
  return std::isfinite(sum) ? sum : 0.0;
}

void TraceCalls::add(const TraceEvent& event, const std::string& name) {
  if (const double bytes = event.bytes(); !name.empty() && bytes > 0.0)
    calls_.push_back({name, whole_ranks(event.ranks), bytes, event.duration * 1e-6});
}

void TraceCalls::add_kernel(const TraceEvent& event) {
  if (!event.collective.empty() && event.bytes() > 0.0)
    add(event, event.collective);
  else if (event.correlation >= 0.0)
    kernels_.push_back({event.correlation, event.begin, event.end()});
}

void TraceCalls::add_launch(const TraceEvent& event) {
  if (event.correlation >= 0.0) launches_.push_back({event.correlation, event.thread, event.begin});
}

void TraceCalls::add_annotation(const TraceEvent& event) {
  const std::string name =
      event.collective.empty() ? event.name.substr(event.name.find(':') + 1) : event.collective;  // "nccl:all_reduce"
  annotations_.push_back({.name = name,
                          .thread = event.thread,
                          .begin = event.begin,
                          .end = event.end(),
                          .bytes = event.bytes(),
                          .ranks = whole_ranks(event.ranks)});
}

void TraceCalls::pair_kernels() {
  // record_param_comms, which knows the group, encloses the annotation of the same collective, which does not.
  const auto knows_group = [](const Annotation& a) { return a.ranks > 0 && a.bytes > 0.0; };
  const bool groups = std::any_of(annotations_.begin(), annotations_.end(), knows_group);
  std::erase_if(annotations_, [&](const Annotation& a) { return groups ? !knows_group(a) : a.bytes <= 0.0; });
  const auto order = [](const Annotation& a, const Annotation& b) {
    return std::tie(a.thread, a.begin) < std::tie(b.thread, b.begin);
  };
  std::sort(annotations_.begin(), annotations_.end(), order);
  const auto by_correlation = [](const auto& a, const auto& b) { return a.correlation < b.correlation; };
  std::sort(launches_.begin(), launches_.end(), by_correlation);
  std::sort(kernels_.begin(), kernels_.end(), by_correlation);
  auto launch = launches_.begin();
  for (const Kernel& kernel : kernels_) {
    while (launch != launches_.end() && launch->correlation < kernel.correlation) ++launch;
    if (launch == launches_.end()) break;
    if (launch->correlation != kernel.correlation) continue;
    Annotation at;
    at.thread = launch->thread;
    at.begin = launch->begin;
    const auto next = std::upper_bound(annotations_.begin(), annotations_.end(), at, order);
    if (next == annotations_.begin()) continue;
    Annotation& around = *std::prev(next);
    if (around.thread != launch->thread || around.end < launch->begin) continue;
    const bool first = around.last_kernel < 0.0;
    around.first_kernel = first ? kernel.begin : std::min(around.first_kernel, kernel.begin);
    around.last_kernel = std::max(around.last_kernel, kernel.end);
  }
  for (const Annotation& a : annotations_) {
    if (a.last_kernel >= 0.0) calls_.push_back({a.name, a.ranks, a.bytes, (a.last_kernel - a.first_kernel) * 1e-6});
  }
}

std::vector<TracedCollective> TraceCalls::take(double world) {
  pair_kernels();
  std::map<std::tuple<std::string, int, double>, std::vector<double>> seconds;
  for (const Call& call : calls_) seconds[{call.name, call.ranks, call.bytes}].push_back(call.seconds);
  std::vector<TracedCollective> out;
  for (const auto& [kind, times] : seconds) {
    const auto& [name, ranks, bytes] = kind;
    out.push_back({.name = name,
                   .ranks = ranks > 0 ? ranks : whole_ranks(world),
                   .group_known = ranks > 0,
                   .bytes = bytes,
                   .calls = times.size(),
                   .seconds = median_of_known(times).value_or(0.0)});
  }
  const auto whole = [](const TracedCollective& c) { return static_cast<double>(c.calls) * c.seconds; };
  std::stable_sort(out.begin(), out.end(), [&](const auto& a, const auto& b) { return whole(a) > whole(b); });
  return out;
}

double bus_bytes(const std::string& name, int ranks, double bytes) {
  std::string plain = lower(name);
  std::erase(plain, '_');
  const auto has = [&](const char* word) { return plain.find(word) != std::string::npos; };
  const double p = ranks;
  if (has("allreduce")) return 2.0 * (p - 1.0) / p * bytes;
  if (has("reducescatter") || has("alltoall")) return (p - 1.0) / p * bytes;
  if (has("allgather")) return (p - 1.0) * bytes;  // a rank hands in one part of p
  return has("broadcast") || has("reduce") ? bytes : 0.0;
}

}  // namespace gradtool
