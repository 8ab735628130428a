#include "lib/codecs/payload.hpp"

#include "lib/core/throw_error.hpp"

namespace gradtool {

void expect_length(std::string_view codec, std::size_t bytes, std::size_t expected) {
  if (bytes == expected) return;
  throw_error(Fault::data, "{} payload: {} bytes, but this many elements make {}", codec, bytes, expected);
}

void expect_room(std::string_view codec, std::size_t bytes, std::size_t least, std::size_t bound) {
  if (bytes >= least && bytes <= bound) return;
  throw_error(Fault::data, "{} payload: {} bytes, but this many elements make {} to {}", codec, bytes, least, bound);
}

}  // namespace gradtool
