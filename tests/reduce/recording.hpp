#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "lib/comm/recording.hpp"

namespace gradtool::test {

/// One collective as one rank entered it: its name, and the bytes that this rank put in.
struct Message {
  std::string call;
  std::vector<std::byte> bytes;
};

/// The bytes of a message, read as float32.
[[nodiscard]] inline std::vector<float> floats_of(const Message& message) {
  std::vector<float> values(message.bytes.size() / sizeof(float));
  std::memcpy(values.data(), message.bytes.data(), message.bytes.size());
  return values;
}

[[nodiscard]] inline RecordingCommunicator<Space::host>::Sink keep_in(std::vector<Message>& messages) {
  return [&messages](const RecordingCommunicator<Space::host>::Call& call) {
    messages.push_back({std::string{call.name}, {call.bytes.data(), call.bytes.data() + call.bytes.size()}});
  };
}

}  // namespace gradtool::test
