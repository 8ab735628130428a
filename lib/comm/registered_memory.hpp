#pragma once

#include <utility>

#include "lib/comm/communicator.hpp"

namespace gradtool {

/// Memory that a communicator knows of for as long as this lives: declare it after what owns the memory.
template <Space S>
class RegisteredMemory {
 public:
  RegisteredMemory() = default;
  RegisteredMemory(Communicator<S>& comm, View<std::byte, S> memory) : comm_{&comm} { comm.register_memory(memory); }
  RegisteredMemory(RegisteredMemory&& other) noexcept : comm_{std::exchange(other.comm_, nullptr)} {}
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  ~RegisteredMemory() {
    if (comm_ != nullptr) comm_->release_memory();
  }

 private:
  Communicator<S>* comm_ = nullptr;
};

}  // namespace gradtool
