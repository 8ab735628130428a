#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "lib/comm/communicator.hpp"

namespace gradtool::test {

/// One collective as one rank entered it: its name, and the bytes that this rank put in.
struct Message {
  std::string call;
  std::vector<std::byte> bytes;
};

/// Passes every call on and keeps what this rank put in, so that a test, or a decoder in another language, can follow
/// a reducer of several collectives.
class Recording final : public Communicator<Space::host> {
 public:
  explicit Recording(Communicator<Space::host>& inner) : inner_{inner} {}

  std::vector<Message> messages;

  [[nodiscard]] int rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept override { return inner_.size(); }
  [[nodiscard]] std::string_view name() const noexcept override { return inner_.name(); }

  void exchange(Queue<Space::host> queue, int to, HostView<const std::byte> out, int from,
                HostView<std::byte> in) override {
    keep("exchange", out);
    inner_.exchange(queue, to, out, from, in);
  }
  void all_reduce_sum(Queue<Space::host> queue, HostView<std::byte> inout, Dtype dtype,
                      HostView<std::byte> scratch) override {
    keep(std::string{"all_reduce_"} + std::string{gradtool::name_of(dtype)}, inout);
    inner_.all_reduce_sum(queue, inout, dtype, scratch);
  }
  void all_gather(Queue<Space::host> queue, HostView<const std::byte> mine, HostView<std::byte> all) override {
    keep("all_gather", mine);
    inner_.all_gather(queue, mine, all);
  }
  void all_gather_v(Queue<Space::host> queue, HostView<const std::byte> mine, std::span<const std::uint64_t> sizes,
                    std::span<const std::uint64_t> offsets, HostView<std::byte> all) override {
    keep("all_gather_v", mine);
    inner_.all_gather_v(queue, mine, sizes, offsets, all);
  }
  void broadcast(Queue<Space::host> queue, HostView<std::byte> view, int root) override {
    keep("broadcast", root == rank() ? HostView<const std::byte>{view} : HostView<const std::byte>{});
    inner_.broadcast(queue, view, root);
  }
  [[nodiscard]] std::size_t scratch_bytes(std::size_t bytes) const override { return inner_.scratch_bytes(bytes); }
  void barrier(Queue<Space::host> queue) override { inner_.barrier(queue); }
  void agree_max(std::span<double> values) override { inner_.agree_max(values); }

 private:
  void keep(std::string call, HostView<const std::byte> bytes) {
    messages.push_back({std::move(call), {bytes.data(), bytes.data() + bytes.size()}});
  }

  Communicator<Space::host>& inner_;
};

}  // namespace gradtool::test
