#include "lib/codecs/interpreter.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "lib/core/interrupt.hpp"
#include "lib/core/throw_error.hpp"
#include "prototype_server.hpp"

namespace gradtool {
namespace {

constexpr int kControlOfChild = 3;  ///< prototype.py finds the socket there,
constexpr int kMemoryOfChild = 4;   ///< and the memory here

[[noreturn]] void throw_system(const std::string& what) {
  throw_error(Fault::backend, "{}: {}", what, std::strerror(errno));
}

/// The environment of an interpreter: one thread for linear algebra, unless the user says otherwise, because every rank
/// has an interpreter.
std::vector<std::string> environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
    if (std::getenv(name) == nullptr) variables.push_back(fmt::format("{}=1", name));
  }
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  all.reserve(texts.size() + 1);
  for (auto& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace

Interpreter::Interpreter(std::string source) : source_{std::move(source)} {
  shared_ = memfd_create("gradtool-prototype", MFD_CLOEXEC);
  if (shared_ < 0) throw_system("memory for a prototype");
  if (source_.starts_with('@')) {
    connect(source_.substr(1));
  } else {
    const char* named = std::getenv("GRADTOOL_PYTHON");
    start(named != nullptr && *named != '\0' ? named : "python3");
  }
}

Interpreter::~Interpreter() {
  if (control_ >= 0) close(control_);  // the server ends when nobody asks any more
  if (memory_ != nullptr) munmap(memory_, size_);
  close(shared_);
  if (child_ > 0) end_child();
}

void Interpreter::end_child() {
  constexpr int kPatienceMs = 1000;  // code that never leaves a call of C is ended
  for (int waited = 0; waitpid(child_, nullptr, WNOHANG) == 0; waited += 10) {
    if (waited >= kPatienceMs) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  }
}

void Interpreter::start(const std::string& program) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw_system("a socket for a prototype");
  control_ = ends[0];
  // Both are moved above the places of the child, so that neither dup2 closes the other, nor does nothing and leaves
  // the descriptor to be closed by exec.
  const int theirs = fcntl(ends[1], F_DUPFD_CLOEXEC, kMemoryOfChild + 1);
  const int memory = fcntl(shared_, F_DUPFD_CLOEXEC, kMemoryOfChild + 1);
  close(ends[1]);
  if (theirs < 0 || memory < 0) throw_system("descriptors for a prototype");
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);  // the program's output is a table
  posix_spawn_file_actions_adddup2(&files, theirs, kControlOfChild);
  posix_spawn_file_actions_adddup2(&files, memory, kMemoryOfChild);
  std::vector<std::string> arguments{program, "-c", std::string{kPrototypeServer}, source_};
  std::vector<std::string> variables = environment();
  const int failed =
      posix_spawnp(&child_, program.c_str(), &files, nullptr, pointers(arguments).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&files);
  close(theirs);
  close(memory);
  if (failed != 0) {
    close(std::exchange(control_, -1));
    close(shared_);
    throw_error(Fault::unavailable,
                "python:{} needs a Python interpreter with NumPy, and '{}' cannot be "
                "started: {}; name one in GRADTOOL_PYTHON",
                source_, program, std::strerror(failed));
  }
}

void Interpreter::connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  control_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool connected = control_ >= 0 && path.size() < sizeof address.sun_path;
  if (connected) {
    std::copy(path.begin(), path.end(), address.sun_path);
    connected = ::connect(control_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  // The memory travels as a path that the other side opens: it is a process of the same user on this machine.
  const std::string memory = fmt::format("/proc/{}/fd/{}\n", getpid(), shared_);
  if (!connected || send(control_, memory.data(), memory.size(), MSG_NOSIGNAL) < 0) {
    if (control_ >= 0) close(std::exchange(control_, -1));
    close(shared_);
    throw_error(Fault::unavailable, "python:{}: nobody serves a prototype there", source_);
  }
}

std::string Interpreter::how_it_ended() {
  int status = 0;
  if (child_ <= 0 || waitpid(std::exchange(child_, -1), &status, 0) <= 0) return "its process has ended";
  return WIFSIGNALED(status) ? fmt::format("its interpreter was ended by signal {}", WTERMSIG(status))
                             : fmt::format("its interpreter ended with status {}", WEXITSTATUS(status));
}

std::string Interpreter::answer_to(const std::string& line) {
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t now = send(control_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return {};
    sent += static_cast<std::size_t>(now);
  }
  int unanswered = 0;  ///< tenths of a second since somebody asked to stop
  while (received_.find('\n') == std::string::npos) {
    // Code that may never return gets two seconds more when somebody asks to stop.
    pollfd answer{control_, POLLIN, 0};
    if (poll(&answer, 1, 100) <= 0) {
      if (!interrupted() || ++unanswered < 20) continue;
      if (child_ > 0) kill(child_, SIGKILL);
      return {};
    }
    char buffer[4096];
    const ssize_t now = recv(control_, buffer, sizeof buffer, 0);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return {};
    received_.append(buffer, static_cast<std::size_t>(now));
  }
  const std::size_t end = received_.find('\n') + 1;
  std::string answer = received_.substr(0, end);
  received_.erase(0, end);
  return answer;
}

Interpreter::Turn::Turn(std::shared_ptr<Interpreter> interpreter, std::size_t memory)
    : interpreter_{std::move(interpreter)}, lock_{interpreter_->mutex_} {
  if (memory <= interpreter_->size_) return;
  if (interpreter_->memory_ != nullptr) munmap(std::exchange(interpreter_->memory_, nullptr), interpreter_->size_);
  interpreter_->size_ = 0;
  void* mapped = MAP_FAILED;
  if (ftruncate(interpreter_->shared_, static_cast<off_t>(memory)) == 0)
    mapped = mmap(nullptr, memory, PROT_READ | PROT_WRITE, MAP_SHARED, interpreter_->shared_, 0);
  if (mapped == MAP_FAILED)
    throw_system(fmt::format("python:{} needs {} bytes of memory", interpreter_->source_, memory));
  interpreter_->memory_ = static_cast<std::byte*>(mapped);
  interpreter_->size_ = memory;
}

nlohmann::json Interpreter::Turn::ask(nlohmann::json request) {
  if (interpreter_->size_ > 0) request["memory"] = interpreter_->size_;
  const std::string answer =
      interpreter_->answer_to(request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  if (answer.empty()) {
    interpreter_->ended_ = true;
    throw_error(Fault::data, "python:{}: {} while it was asked to {}", interpreter_->source_,
                interpreter_->how_it_ended(), request["do"].get<std::string>());
  }
  nlohmann::json said = nlohmann::json::parse(answer);
  if (said.contains("error")) {
    throw Error{said.value("missing", false) ? Fault::unavailable : Fault::data,
                fmt::format("python:{}: {}", interpreter_->source_, said["error"].get<std::string>())};
  }
  return said;
}

}  // namespace gradtool
