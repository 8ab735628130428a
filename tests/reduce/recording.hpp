#pragma once

#include <string>
#include <vector>

#include "lib/comm/recording.hpp"

namespace gradtool::test {

/// One collective as one rank entered it: its name, and the bytes that this rank put in.
struct Message {
  std::string call;
  std::vector<std::byte> bytes;
};

[[nodiscard]] inline RecordingCommunicator<Space::host>::Sink keep_in(std::vector<Message>& messages) {
  return [&messages](const RecordingCommunicator<Space::host>::Call& call) {
    messages.push_back({std::string{call.name}, {call.bytes.data(), call.bytes.data() + call.bytes.size()}});
  };
}

}  // namespace gradtool::test
