// libFuzzer target: a whole command. The input decides a command line and the gradient file that it reads; the command
// runs through the function that main calls. Whatever both are, the promises of README.md and SECURITY.md hold: a
// documented exit status, never an internal error; one sentence where it fails; no control characters on a terminal;
// the input file is unchanged; nothing is written but what was asked for, and that is whole.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "apps/program.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/io/gradient_file.hpp"
#include "tests/fuzz/command_line_builder.hpp"
#include "tests/fuzz/damaged_values.hpp"
#include "tests/fuzz/gradient_file_builder.hpp"
#include "tests/fuzz/scratch_file.hpp"

namespace gradtool::fuzz {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int status = 0;
  std::string out, err;
};

/// Redirects the C library's streams to memory. libFuzzer and the sanitizers keep the real standard error.
class CapturedStreams {
 public:
  CapturedStreams() {
    stdout = open_memstream(&out_, &out_size_);
    stderr = open_memstream(&err_, &err_size_);
    std::cout.rdbuf(help_.rdbuf());
  }
  ~CapturedStreams() {
    restore();
    std::free(out_);
    std::free(err_);
  }
  CapturedStreams(const CapturedStreams&) = delete;
  CapturedStreams& operator=(const CapturedStreams&) = delete;

  Outcome finish(int status) {
    restore();
    return {status, std::string{out_, out_size_} + help_.str(), std::string{err_, err_size_}};
  }

 private:
  void restore() {
    if (stdout == real_out_) return;
    std::fclose(stdout);
    std::fclose(stderr);
    stdout = real_out_;
    stderr = real_err_;
    std::cout.rdbuf(real_cout_);
  }

  std::FILE* real_out_ = stdout;
  std::FILE* real_err_ = stderr;
  std::streambuf* real_cout_ = std::cout.rdbuf();
  std::ostringstream help_;
  char* out_ = nullptr;
  char* err_ = nullptr;
  std::size_t out_size_ = 0, err_size_ = 0;
};

/// A command catches SIGINT and SIGTERM, which are libFuzzer's between two commands.
class KeptSignals {
 public:
  KeptSignals() {
    sigaction(SIGINT, nullptr, &interrupt_);
    sigaction(SIGTERM, nullptr, &terminate_);
  }
  ~KeptSignals() {
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
  }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  struct sigaction interrupt_ {
  }, terminate_{};
};

Outcome run(const CommandLine& line) {
  std::vector<std::string> words{"gradtool"};
  words.insert(words.end(), line.arguments.begin(), line.arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const KeptSignals signals;
  CapturedStreams streams;
  const int status = app::run_program(static_cast<int>(words.size()), argv.data());
  return streams.finish(status);
}

std::string content(const std::string& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

class Judge {
 public:
  Judge(const std::string& folder, const CommandLine& line, const Outcome& outcome)
      : folder_{folder}, line_{line}, outcome_{outcome} {}

  void check_status() const {
    const int status = outcome_.status;
    require(status >= 0 && (status <= 4 || status == 77), "an exit status that is not documented");
    for (const char* bug : {"internal error", "unexpected failure", "out of memory"})
      require(outcome_.err.find(bug) == std::string::npos, bug);
    // The machine is sound, so it is to blame for nothing but paths that cannot be written.
    const auto says = [&](const char* words) { return outcome_.err.find(words) != std::string::npos; };
    if (status == 4) {
      require(says("cannot be written") || says("cannot create '") || says("cannot write '"),
              "status 4 without a cause outside");
    }
  }

  void check_sentence() const {
    std::istringstream lines{outcome_.err};
    std::size_t sentences = 0;
    for (std::string text; std::getline(lines, text);) {
      if (text.starts_with("gradtool: ")) {
        ++sentences;
      } else if (outcome_.status >= 2) {
        require(text.starts_with("Try 'gradtool") || text.starts_with("warning: "), "a line beside the sentence");
      }
    }
    if (outcome_.status >= 2) require(sentences == 1, "not exactly one sentence");
    if (outcome_.status == 0) require(sentences == 0, "a sentence, and status 0");
    const auto commands_terminal = [](char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\n'; };
    require(std::none_of(outcome_.err.begin(), outcome_.err.end(), commands_terminal), "control characters on stderr");
    require(std::none_of(outcome_.out.begin(), outcome_.out.end(), commands_terminal), "control characters on stdout");
  }

  /// Nothing but the input and what was asked for, with its parent folders.
  void check_files() const {
    for (const auto& entry : fs::recursive_directory_iterator{folder_}) {
      const std::string path = entry.path().string();
      const auto covers = [&](const std::string& asked) {
        const std::string wanted = fs::path{asked}.lexically_normal().string();
        return path == wanted || path.starts_with(wanted + "/") || wanted.starts_with(path + "/");
      };
      const bool asked = path == folder_ + "/in.h5" || path == folder_ + "/new" ||
                         std::any_of(line_.outputs.begin(), line_.outputs.end(), covers);
      require(asked, ("a file that nobody asked for: " + path).c_str());
      if (entry.is_regular_file() && path != folder_ + "/in.h5") check_whole(path);
    }
  }

 private:
  void check_whole(const std::string& path) const {
    const std::string name = fs::path{path}.filename().string();
    if (name == "json") require(nlohmann::json::accept(content(path)), "a JSON file that is not JSON");
    if (name.ends_with("csv")) require(content(path).ends_with('\n'), "a CSV file whose last line is cut");
    if (name == "reconstruction") static_cast<void>(GradientReader{path});
  }

  void require(bool condition, const char* what) const {
    if (condition) return;
    std::fprintf(stderr, "%s\nstatus %d of:", what, outcome_.status);
    for (const auto& argument : line_.arguments) std::fprintf(stderr, " '%s'", argument.c_str());
    std::fprintf(stderr, "\nstdout: %s\nstderr: %s\n", outcome_.out.c_str(), outcome_.err.c_str());
    std::abort();
  }

  const std::string& folder_;
  const CommandLine& line_;
  const Outcome& outcome_;
};

}  // namespace
}  // namespace gradtool::fuzz

// In the place of lib/bench/copy_rate.hpp's functions, see CMakeLists.txt. NOLINTBEGIN: the linker gives the names.
extern "C" double __real__ZN8gradtool17measure_copy_rateENS_5QueueILNS_5SpaceE0EEEm(
    gradtool::Queue<gradtool::Space::host> queue, std::size_t bytes);
extern "C" double __wrap__ZN8gradtool17measure_copy_rateENS_5QueueILNS_5SpaceE0EEEm(
    gradtool::Queue<gradtool::Space::host> queue, std::size_t bytes) {
  constexpr std::size_t kMostBytes = 64U << 10;
  return __real__ZN8gradtool17measure_copy_rateENS_5QueueILNS_5SpaceE0EEEm(queue, std::min(bytes, kMostBytes));
}
extern "C" double __wrap__ZN8gradtool20measure_thread_bytesERNS_8TaskPoolE(gradtool::TaskPool& /*pool*/) {
  return 1e5;
}
// NOLINTEND

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradtool::fuzz;
  static const ScratchFolder scratch;
  scratch.clear();
  const std::string& folder = scratch.path();
  const std::string input = folder + "/in.h5";
  Choices choices{{data, size}};
  const CommandLine line = build_command_line(folder, choices);
  build_gradient_file(input, choices);
  damage_values(input, choices);
  const std::string before = content(input);
  const Outcome outcome = run(line);
  const Judge judge{folder, line, outcome};
  judge.check_status();
  judge.check_sentence();
  judge.check_files();
  if (content(input) != before) {
    std::fprintf(stderr, "the input file has changed\n");
    std::abort();
  }
  return 0;
}
