// read_values FILE: everything that GradientReader hands out, as raw float32 on stdout. For each tensor and step: for
// each worker the gradient and, where there is one, the second moment; then the weight, where there is one.
#include <cstdio>
#include <exception>
#include <vector>

#include "lib/io/gradient_file.hpp"

int main(int argc, char** argv) {
  try {
    const gradtool::GradientReader reader{argc > 1 ? argv[1] : ""};
    std::vector<float> values;
    const auto put = [&] { std::fwrite(values.data(), sizeof(float), values.size(), stdout); };
    for (std::size_t t = 0; t < reader.tensors().size(); ++t) {
      const auto& tensor = reader.tensors()[t];
      values.resize(tensor.elements);
      for (std::size_t s = 0; s < reader.steps().size(); ++s) {
        for (std::size_t w = 0; w < reader.workers(); ++w) {
          reader.read_gradient(t, s, w, values), put();
          if (tensor.has_second_moment) reader.read_second_moment(t, s, w, values), put();
        }
        if (tensor.has_weight) reader.read_weight(t, s, values), put();
      }
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "read_values: %s\n", error.what());
    return 1;
  }
}
