// bench --baseline: this program and another one bench the same by turns, and their runs are compared.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/subcommands.hpp"
#include "lib/compare/compare.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/report/csv.hpp"
#include "lib/report/json.hpp"

namespace gradtool::app {
namespace {

namespace fs = std::filesystem;

/// A folder that ends with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "gradtool-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw_error(Fault::backend, "no folder can be made in {}", fs::temp_directory_path().string());
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

/// The arguments of this process behind its name, but for --markdown and the options, each with a value, `left_out`.
std::vector<std::string> own_arguments(const std::vector<std::string>& left_out) {
  std::ifstream in{"/proc/self/cmdline", std::ios::binary};
  const std::string text{std::istreambuf_iterator<char>{in}, {}};
  auto arguments = split(text, '\0');
  if (!arguments.empty()) arguments.pop_back();  // behind the last, which ends by a zero, too
  const std::vector<std::string> all{arguments.begin(), arguments.end()};
  std::vector<std::string> kept;
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (all[i] == "--markdown") continue;
    const auto named = [&](const std::string& option) { return all[i] == option || all[i].starts_with(option + "="); };
    const auto option = std::find_if(left_out.begin(), left_out.end(), named);
    if (option == left_out.end())
      kept.push_back(all[i]);
    else if (all[i] == *option)
      ++i;  // its value
  }
  return kept;
}

/// Runs the program with its standard output thrown away and its standard error in `messages`. Throws Fault::backend
/// with its last line when it fails, unless that is because the user has interrupted it as well.
void run_program(const std::string& program, const std::vector<std::string>& arguments, const std::string& messages) {
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, messages.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, program.c_str(), &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0) {
    throw_error(Fault::usage, "--baseline '{}' cannot be run: {}; give another gradtool program", program,
                std::error_code{failed, std::generic_category()}.message());
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (interrupted() || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return;
  std::ifstream in{messages};
  std::string line, last;
  while (std::getline(in, line)) {
    if (!line.empty() && !line.starts_with("Try ")) last = line;
  }
  throw_error(Fault::backend, "{} ended with status {}{}{}", program,
              WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), last.empty() ? "" : ": ", last);
}

/// The samples of `more` behind those of `run`, which is empty before its first turn, as rounds of their own.
void append(BenchRun& run, BenchRun more) {
  if (run.samples.empty()) {
    run.path = more.path;
    run.table = more.table;
    run.samples.resize(more.samples.size());
  }
  if (run.samples.size() != more.samples.size())
    throw_error(Fault::backend, "{}: two turns of one program wrote other rows", run.path);
  for (std::size_t row = 0; row < run.samples.size(); ++row) {
    for (std::size_t phase = 0; phase < run.samples[row].size(); ++phase) {
      auto& to = run.samples[row][phase];
      const auto& from = more.samples[row][phase];
      to.seconds.insert(to.seconds.end(), from.seconds.begin(), from.seconds.end());
      // A version that does not tell rounds apart: a turn is one.
      if (from.rounds.empty()) to.rounds.push_back(from.seconds.size());
      to.rounds.insert(to.rounds.end(), from.rounds.begin(), from.rounds.end());
    }
  }
}

}  // namespace

int bench_against(const std::string& baseline, int cycles, const std::string& json, bool markdown) {
  const TemporaryFolder folder;
  auto arguments = own_arguments({"--baseline", "--cycles", "--json"});
  arguments.insert(arguments.end(), {"--json", folder.file("run.json")});
  std::array<BenchRun, 2> runs;
  const std::array<std::string, 2> programs{baseline, fs::read_symlink("/proc/self/exe").string()};
  const int turns = 4 * cycles;
  for (int turn = 0; turn < turns; ++turn) {
    const std::size_t which = turn % 4 == 1 || turn % 4 == 2 ? 1 : 0;  // A B B A: what drifts hits both alike
    fmt::print(stderr, "turn {} of {}: {}\n", turn + 1, turns, programs[which]);
    std::error_code none;
    fs::remove(folder.file("run.json"), none);  // or a program that writes nothing would be given the other's run
    run_program(programs[which], arguments, folder.file("messages"));
    if (interrupted()) return kInterrupted;
    if (!fs::exists(folder.file("run.json")))
      throw_error(Fault::usage, "--baseline '{}' wrote no record; give another gradtool program", programs[which]);
    append(runs[which], read_bench_run(folder.file("run.json")));
  }
  const CompareOptions options;
  const Comparison comparison = compare_runs(runs[0], runs[1], options);
  if (!json.empty()) save_text(json, json_text(to_json(comparison, options), 1) + "\n");
  if (json == "-") return comparison.regression() ? static_cast<int>(Fault::check) : 0;
  if (markdown)
    fmt::print("A: `{}`, B: `{}`\n\n{}", programs[0], programs[1], to_markdown(comparison, false));
  else
    fmt::print("A: {}\nB: {}\n{}", programs[0], programs[1], to_text(comparison, false));
  return comparison.regression() ? static_cast<int>(Fault::check) : 0;
}

}  // namespace gradtool::app
