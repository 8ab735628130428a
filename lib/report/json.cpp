#include "lib/report/json.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "gradtool_version.hpp"

namespace gradtool {
namespace {

/// The value of `key : value` in /proc/cpuinfo or /proc/meminfo, empty where there is none.
std::string proc_value(const char* file, std::string_view key) {
  std::ifstream in{file};
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const auto colon = line.find(':');
    if (colon == std::string::npos) return {};
    const auto first = line.find_first_not_of(" \t", colon + 1);
    return first == std::string::npos ? std::string{} : line.substr(first);
  }
  return {};
}

}  // namespace

nlohmann::ordered_json parse_json(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') ++i;
    if (c == '"') in_string = !in_string;
    if (in_string) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kMostJsonDepth) return nlohmann::ordered_json(nlohmann::ordered_json::value_t::discarded);
  }
  return nlohmann::ordered_json::parse(text, nullptr, false);
}

std::string json_text(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json to_json(const Cell& cell) {
  struct Converter {
    nlohmann::ordered_json operator()(std::monostate) const { return nullptr; }
    nlohmann::ordered_json operator()(double value) const {
      if (std::isfinite(value)) return value;
      return std::isnan(value) ? "nan" : fmt::format("{}", value);  // the sign of NaN says nothing
    }
    nlohmann::ordered_json operator()(bool value) const { return value; }
    nlohmann::ordered_json operator()(std::int64_t value) const { return value; }
    nlohmann::ordered_json operator()(const Text& value) const { return value.str(); }
  };
  return std::visit(Converter{}, cell);
}

nlohmann::ordered_json to_json(const Table& table) {
  auto rows = nlohmann::ordered_json::array();
  for (const auto& row : table.rows()) {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < row.size(); ++i) object[table.columns()[i].name] = to_json(row[i]);
    rows.push_back(std::move(object));
  }
  return rows;
}

std::string processor_name() {
  return proc_value("/proc/cpuinfo", "model name");
}

nlohmann::ordered_json provenance() {
  nlohmann::ordered_json out;
  out["gradtool_version"] = GRADTOOL_VERSION;
  out["commit"] = GRADTOOL_COMMIT;
  out["build_type"] = GRADTOOL_BUILD_TYPE;
  out["compiler"] = GRADTOOL_COMPILER;
  if (!std::string_view{GRADTOOL_CUDA_COMPILER}.empty()) out["cuda_compiler"] = GRADTOOL_CUDA_COMPILER;
  out["created"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  out["cpu"] = processor_name();
  out["cores"] = std::thread::hardware_concurrency();
  out["memory"] = proc_value("/proc/meminfo", "MemTotal");
  auto environment = nlohmann::ordered_json::object();
  constexpr std::array kAllowed{"OMP_NUM_THREADS",      "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
                                "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "NCCL_ALGO",
                                "NCCL_PROTO",           "NCCL_DEBUG",           "NCCL_P2P_DISABLE",
                                "NCCL_IB_DISABLE",      "SLURM_NTASKS",         "OMPI_COMM_WORLD_SIZE"};
  for (const char* name : kAllowed) {
    if (const char* value = std::getenv(name)) environment[name] = value;
  }
  out["environment"] = std::move(environment);
  return out;
}

}  // namespace gradtool
