#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

namespace gradtool {

/// A process that serves the prototype of a file (prototype.py), and memory that it maps too. One call at a time: calls
/// from several threads wait for each other.
class Interpreter {
 public:
  /// Starts GRADTOOL_PYTHON, or python3, for `source`; or connects to the Unix socket that `source` names behind "@".
  /// Throws Fault::unavailable where there is no interpreter or nobody listens.
  explicit Interpreter(std::string source);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// Whether its process has ended, which a request found out.
  [[nodiscard]] bool ended() const { return ended_; }

  /// Holds the interpreter and its memory for one request.
  class Turn {
   public:
    /// `memory`: bytes of shared memory that the request needs; they keep what they hold until the next turn.
    Turn(std::shared_ptr<Interpreter> interpreter, std::size_t memory);
    [[nodiscard]] std::span<std::byte> memory() const { return {interpreter_->memory_, interpreter_->size_}; }
    /// Sends the request and returns the answer. Throws Fault::data with the sentence of a refusal or of an exception
    /// in the user's code, and where the process has ended.
    nlohmann::json ask(nlohmann::json request);

   private:
    std::shared_ptr<Interpreter> interpreter_;
    std::lock_guard<std::mutex> lock_;
  };

 private:
  void start(const std::string& program);
  void connect(const std::string& path);
  std::string answer_to(const std::string& line);
  [[nodiscard]] std::string how_it_ended();
  void end_child();

  std::string source_;
  pid_t child_ = -1;  ///< -1: behind a socket
  int control_ = -1;
  int shared_ = -1;
  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
  std::string received_;
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
};

}  // namespace gradtool
