#include "tests/fuzz/read_anything.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "lib/core/error.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool::fuzz {
namespace {

void require(bool condition, const char* what, const std::string& detail) {
  if (condition) return;
  std::fprintf(stderr, "%s: %s\n", what, detail.c_str());
  std::abort();
}

void read_all(const GradientReader& reader) {
  require(!reader.steps().empty() && !reader.tensors().empty() && reader.workers() >= 1, "accepted, but empty", "");
  std::uint64_t elements = 0;
  for (const TensorInfo& tensor : reader.tensors()) {
    std::uint64_t product = 1;
    for (const auto extent : tensor.shape) product *= static_cast<std::uint64_t>(extent);
    require(product == tensor.elements && product >= 1, "accepted with a wrong shape", tensor.name);
    elements += tensor.elements;
  }
  require(elements == reader.elements(), "wrong number of elements", std::to_string(elements));
  for (const NonFinite& entry : find_non_finite(reader)) {
    require(entry.count >= 1 && entry.first_step < reader.steps().size() && entry.first_worker < reader.workers(),
            "impossible place of a non-finite value", std::to_string(entry.first_step));
  }
  static_cast<void>(count_non_finite_state(reader));
}

}  // namespace

Answer read_anything(const std::string& path) {
  try {
    read_all(GradientReader{path});
    return Answer::accepted;
  } catch (const Error& error) {
    const std::string text = error.what();
    require(error.fault() == Fault::data, "refused with another fault than data", text);
    require(text.starts_with(path) && text.find('\n') == std::string::npos, "refused without naming the file", text);
    return Answer::refused;
  } catch (const std::exception& error) {
    require(false, "an exception of another type", error.what());
  }
  return Answer::refused;
}

}  // namespace gradtool::fuzz
