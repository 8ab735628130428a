#include "lib/core/device.hpp"

#include <charconv>
#include <string>

#include "lib/core/error.hpp"

namespace gradtool {

DeviceChoice parse_device(std::string_view text) {
  if (text == "cpu") return {};
  DeviceChoice device{.cuda = true};
  if (text == "cuda") return device;
  device.index = -1;
  if (text.starts_with("cuda:")) std::from_chars(text.data() + 5, text.data() + text.size(), device.index);
  if (device.index < 0 || text != "cuda:" + std::to_string(device.index)) {
    throw Error{Fault::usage, "--device '" + std::string{text} + "' is not valid; write cpu, cuda or cuda:INDEX"};
  }
  return device;
}

}  // namespace gradtool
