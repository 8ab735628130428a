#include "lib/import/path_pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "lib/core/throw_error.hpp"
#include "lib/core/utf8.hpp"

namespace gradtool {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "{step}", kWorker = "{worker}";

/// The digits that stand for {step} and {worker} in a path.
struct Digits {
  std::optional<std::string> step, worker;
};

/// Matches the names of one folder with one component of the pattern.
bool match(std::string_view pattern, std::string_view name, Digits& digits) {
  while (!pattern.empty()) {
    const bool step = pattern.starts_with(kStep), worker = pattern.starts_with(kWorker);
    if (!step && !worker) {
      if (name.empty() || name.front() != pattern.front()) return false;
      pattern.remove_prefix(1), name.remove_prefix(1);
      continue;
    }
    pattern.remove_prefix(step ? kStep.size() : kWorker.size());
    // All digits that follow: a number ends where they do.
    const std::size_t count = std::min(name.find_first_not_of("0123456789"), name.size());
    if (count == 0 || count > 18) return false;
    const std::string text{name.substr(0, count)};
    auto& known = step ? digits.step : digits.worker;
    if (known && *known != text) return false;
    known = text;
    name.remove_prefix(count);
  }
  return name.empty();
}

std::int64_t value_of(const std::optional<std::string>& digits) {
  std::int64_t value = 0;
  if (digits) std::from_chars(digits->data(), digits->data() + digits->size(), value);
  return value;
}

class Search {
 public:
  explicit Search(std::vector<std::string> components) : components_{std::move(components)} {}

  struct Found {
    std::string path;
    Digits digits;
  };
  std::vector<Found> run(const fs::path& root) {
    look(root, 0, {});
    return std::move(found_);
  }

 private:
  void look(const fs::path& folder, std::size_t depth, const Digits& digits) {
    const std::string& component = components_[depth];
    const bool last = depth + 1 == components_.size();
    const auto go_on = [&](const fs::path& path, const Digits& now) {
      std::error_code error;
      if (last) {
        if (!fs::is_directory(path, error)) found_.push_back({path.string(), now});
      } else {
        look(path, depth + 1, now);
      }
    };
    if (component.find('{') == std::string::npos) {
      std::error_code error;
      if (fs::exists(folder / component, error)) go_on(folder / component, digits);
      return;
    }
    std::error_code error;
    for (fs::directory_iterator entry{folder.empty() ? "." : folder, error}, end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      Digits now = digits;
      if (match(component, name, now)) go_on(folder / name, now);
    }
  }

  std::vector<std::string> components_;
  std::vector<Found> found_;
};

std::string with_digits(std::string pattern, const std::string& step, const std::string& worker) {
  for (const auto& [name, digits] : {std::pair{kStep, &step}, std::pair{kWorker, &worker}}) {
    for (std::size_t at = pattern.find(name); at != std::string::npos; at = pattern.find(name, at)) {
      pattern.replace(at, name.size(), *digits);
      at += digits->size();
    }
  }
  return pattern;
}

void check_braces(const std::string& pattern) {
  for (std::size_t at = pattern.find_first_of("{}"); at != std::string::npos; at = pattern.find_first_of("{}", at)) {
    const std::string_view rest = std::string_view{pattern}.substr(at);
    const bool step = rest.starts_with(kStep), worker = rest.starts_with(kWorker);
    if (!step && !worker)
      throw_error(Fault::usage, "'{}' is not valid; in braces stand {{step}} and {{worker}} alone", printable(pattern));
    at += step ? kStep.size() : kWorker.size();
    if (pattern.compare(at, 1, "{") == 0) {
      throw_error(Fault::usage, "'{}' is not valid; two numbers need something between them that is no digit",
                  printable(pattern));
    }
  }
}

}  // namespace

MatchedFiles match_files(const std::string& pattern) {
  check_braces(pattern);
  if (pattern.find('{') == std::string::npos) return {{0}, {{pattern}}};
  const fs::path path{pattern};
  std::vector<std::string> components;
  for (const auto& component : path.relative_path()) components.push_back(component.string());
  if (components.back().empty()) throw_error(Fault::usage, "'{}' names a folder, not files", pattern);
  const auto found = Search{components}.run(path.root_path());
  if (found.empty()) throw_error(Fault::data, "{}: there is no such file", printable(pattern));

  std::map<std::pair<std::int64_t, std::int64_t>, std::string> files;
  std::map<std::int64_t, std::string> steps, workers;  // the numbers, and how they are written
  for (const auto& file : found) {
    const std::int64_t step = value_of(file.digits.step), worker = value_of(file.digits.worker);
    const auto [place, inserted] = files.emplace(std::pair{step, worker}, file.path);
    if (!inserted) {
      throw_error(Fault::data, "{} and {} are both of step {} and worker {}", printable(place->second),
                  printable(file.path), step, worker);
    }
    steps.emplace(step, file.digits.step.value_or(""));
    workers.emplace(worker, file.digits.worker.value_or(""));
  }
  MatchedFiles matched;
  const auto missing = [&](const std::string& step, const std::string& worker, const std::string& why) {
    throw_error(Fault::data, "{} is missing: {}", printable(with_digits(pattern, step, worker)), why);
  };
  std::int64_t last = workers.begin()->first - 1;
  for (const auto& [worker, digits] : workers) {
    if (worker != last + 1) {
      // Missing steps are named with the width of the present ones, in case zeros stand in front of these.
      const std::size_t width = digits.size();
      missing(steps.begin()->second, fmt::format("{:0{}}", last + 1, digits.front() == '0' ? width : 1),
              fmt::format("there are workers {} and {}, but not those between them", last, worker));
    }
    last = worker;
  }
  for (const auto& [step, step_digits] : steps) {
    matched.steps.push_back(step);
    auto& paths = matched.by_worker.emplace_back();
    for (const auto& [worker, worker_digits] : workers) {
      const auto file = files.find({step, worker});
      if (file == files.end()) missing(step_digits, worker_digits, "each step needs the file of each worker");
      paths.push_back(file->second);
    }
  }
  return matched;
}

}  // namespace gradtool
