#include "lib/core/state.hpp"

#include <cstdint>
#include <cstring>
#include <string>

namespace gradtool {
namespace {

void append(std::vector<std::byte>& out, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  out.insert(out.end(), from, from + bytes);
}

[[noreturn]] void differs(std::string_view name) {
  throw Error{Fault::data,
              "saved state: '" + std::string{name} + "' is not what was saved there; it belongs to something else"};
}

}  // namespace

void StateSaver::block(std::string_view name, HostView<std::byte> bytes) {
  const std::uint64_t sizes[2] = {name.size(), bytes.size()};
  append(out_, &sizes[0], 8);
  append(out_, name.data(), name.size());
  append(out_, &sizes[1], 8);
  if (!bytes.empty()) append(out_, bytes.data(), bytes.size());
}

std::span<const std::byte> StateLoader::take(std::size_t count) {
  if (count > left_.size()) throw Error{Fault::data, "saved state: it ends too early"};
  const auto taken = left_.first(count);
  left_ = left_.subspan(count);
  return taken;
}

void StateLoader::block(std::string_view name, HostView<std::byte> bytes) {
  std::uint64_t size = 0;
  std::memcpy(&size, take(8).data(), 8);
  const auto saved_name = take(size);
  if (std::string_view{reinterpret_cast<const char*>(saved_name.data()), saved_name.size()} != name) differs(name);
  std::memcpy(&size, take(8).data(), 8);
  if (size != bytes.size()) differs(name);
  if (!bytes.empty()) std::memcpy(bytes.data(), take(bytes.size()).data(), bytes.size());
}

void StateLoader::finish() const {
  if (!left_.empty()) throw Error{Fault::data, "saved state: more was saved than is kept here"};
}

}  // namespace gradtool
