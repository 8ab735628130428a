// libFuzzer target: what arrives on the transport's sockets. The first bytes choose a plan; the rest are datagrams, as
// they are or with a right tag, and then a stream of control frames. Nothing may be written outside of the destination,
// and what a message says of itself must stay true.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "lib/comm/udp/control.hpp"
#include "lib/comm/udp/message.hpp"

namespace {

using namespace gradtool::udp;

constexpr JobKey kKey{3, 4};
constexpr std::size_t kGuard = 64;

void check(bool holds) {
  if (!holds) std::abort();
}

void take_datagrams(std::span<const std::byte>& data) {
  std::array<std::uint8_t, 8> choices{};
  std::memcpy(choices.data(), data.data(), choices.size());
  data = data.subspan(choices.size());
  const std::vector<TensorPart> parts{
      {.bytes = choices[0] * 3U, .loss = choices[1] / 255.0, .loss_important = choices[2] / 255.0},
      {.bytes = choices[3]},
      {.bytes = choices[4] * 7U, .loss = choices[5] / 255.0}};
  const Plan plan{parts, 4U + 4U * (choices[6] % 16U)};
  std::vector<std::byte> memory(plan.bytes() + 2 * kGuard, std::byte{0xee});
  Inbound in{plan, std::span{memory}.subspan(kGuard, plan.bytes()), 1, 2, 0x1'0000'0005};
  std::size_t placed = 0;
  while (data.size() > sizeof(PacketHeader)) {
    PacketHeader header;
    std::memcpy(&header, data.data(), sizeof(header));
    data = data.subspan(sizeof(header));
    const auto rest = data.first(std::min<std::size_t>(data.size(), header.flags));
    data = data.subspan(rest.size());
    if (header.sent_us % 2 == 0) {  // as a rank of the job would send it
      header.from = 1;
      header.to = 2;
      header.bytes = static_cast<std::uint16_t>(rest.size());
      header.tensor %= 3;
      header.packets = static_cast<std::uint32_t>(plan.packets_of(header.tensor));
      seal(header, kKey, 0x1'0000'0005, rest);
    }
    const std::size_t before = in.missing_bytes();
    const Arrival arrival = in.take(header, rest, kKey);
    check(in.missing_bytes() == before - (arrival == Arrival::placed ? rest.size() : 0));
    placed += arrival == Arrival::placed ? rest.size() : 0;
    if (arrival == Arrival::placed) check(is_sealed(header, kKey, 0x1'0000'0005, rest));
    if (choices[7] % 8 == 0) in.set_important(Bits(bit_words(plan.packets()), 0x5555555555555555U));
  }
  check(placed + in.missing_bytes() == plan.bytes());
  check(in.complete() == (in.missing_bytes() == 0));
  if (in.satisfied()) check(in.least_delivered() >= 1.0 - std::max(parts[0].loss, parts[2].loss));
  in.fill_missing();
  for (std::size_t i = 0; i < kGuard; ++i)
    check(memory[i] == std::byte{0xee} && memory[memory.size() - 1 - i] == std::byte{0xee});
}

void take_frames(std::span<const std::byte> data) {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return;
  const Socket other{ends[1]};
  ControlLine line{Socket{ends[0]}};
  for (std::size_t first = 0; first < data.size(); first += 1000) {
    const auto piece = data.subspan(first, std::min<std::size_t>(1000, data.size() - first));
    if (::send(other.fd(), piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;
    line.read();
    while (const auto frame = line.next()) check(frame->body.size() <= ControlLine::kMostBytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 8) return 0;
  std::span<const std::byte> rest{reinterpret_cast<const std::byte*>(data), size};
  take_datagrams(rest);
  take_frames(rest);
  take_frames({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
