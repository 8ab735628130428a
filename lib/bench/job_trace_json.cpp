#include <nlohmann/json.hpp>

#include "lib/bench/job_trace.hpp"

namespace gradtool {

nlohmann::ordered_json to_json(const JobTrace& trace) {
  nlohmann::ordered_json out{{"files", trace.given},
                             {"file", trace.file},
                             {"steps", trace.steps},
                             {"step_ms", trace.step_seconds * 1e3},
                             {"exposed_ms", trace.exposed_seconds * 1e3},
                             {"compute_ms", trace.compute_seconds * 1e3},
                             {"compute_low_ms", trace.compute_low * 1e3},
                             {"compute_high_ms", trace.compute_high * 1e3},
                             {"most_gain", trace.most_gain()}};
  auto& collectives = out["collectives"] = nlohmann::ordered_json::array();
  for (const TracedCollective& one : trace.collectives) {
    collectives.push_back({{"name", one.name},
                           {"ranks", one.ranks},
                           {"group_known", one.group_known},
                           {"bytes", one.bytes},
                           {"calls", one.calls},
                           {"ms", one.seconds * 1e3}});
  }
  return out;
}

JobTrace job_trace_of(const nlohmann::ordered_json& json) {
  const auto seconds = [&](const char* name) { return json.at(name).get<double>() * 1e-3; };
  JobTrace trace{.given = json.at("files").get<std::string>(),
                 .file = json.at("file").get<std::string>(),
                 .steps = json.at("steps").get<std::size_t>(),
                 .step_seconds = seconds("step_ms"),
                 .exposed_seconds = seconds("exposed_ms"),
                 .compute_seconds = seconds("compute_ms"),
                 .compute_low = seconds("compute_low_ms"),
                 .compute_high = seconds("compute_high_ms"),
                 .collectives = {}};
  for (const auto& one : json.at("collectives")) {
    trace.collectives.push_back({.name = one.at("name").get<std::string>(),
                                 .ranks = one.at("ranks").get<int>(),
                                 .group_known = one.at("group_known").get<bool>(),
                                 .bytes = one.at("bytes").get<double>(),
                                 .calls = one.at("calls").get<std::size_t>(),
                                 .seconds = one.at("ms").get<double>() * 1e-3});
  }
  return trace;
}

}  // namespace gradtool
