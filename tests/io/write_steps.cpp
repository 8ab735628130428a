// write_steps PATH STEPS WORKERS DTYPE small|large: a writer to be killed. Says "step <k>" on stdout after each
// end_step, as capture does, and "closed" at the end. Value i of tensor t, worker w, step s is (7 s + 3 w + 5 t + i)
// mod 251 - 125, which all three types hold exactly; second moments are its square, weights its negative.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/io/gradient_file.hpp"

namespace {

using gradtool::Dtype;

Dtype parse_dtype(const std::string& name) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    if (gradtool::name_of(dtype) == name) return dtype;
  }
  throw gradtool::Error{gradtool::Fault::usage, "DTYPE is f32, f16 or bf16"};
}

gradtool::WriterOptions options(std::int64_t workers, Dtype dtype, bool large) {
  gradtool::WriterOptions made;
  made.info.workers = workers;
  made.info.model = "test";
  // Tiny ones that share chunks between steps, middling ones and, where large, one of several chunks.
  std::vector<std::vector<std::int64_t>> shapes{{10}, {16, 3, 3, 3}, {}, {64}, {64, 32, 3, 3}};
  if (large) shapes.push_back({1100, 1000});
  for (std::size_t t = 0; t < shapes.size(); ++t) {
    gradtool::TensorInfo tensor;
    tensor.name = "tensor" + std::to_string(t);
    tensor.shape = shapes[t];
    tensor.dtype = dtype;
    tensor.has_second_moment = t < 3;
    tensor.has_weight = t < 3;
    made.tensors.push_back(tensor);
  }
  return made;
}

void write(const std::string& path, std::size_t steps, std::size_t workers, Dtype dtype, bool large) {
  const auto made = options(static_cast<std::int64_t>(workers), dtype, large);
  gradtool::GradientWriter writer{path, made};
  std::vector<float> values, derived;
  for (std::size_t s = 0; s < steps; ++s) {
    writer.begin_step({.iteration = static_cast<std::int64_t>(10 * s + 1),
                       .epoch = 0.5 * static_cast<double>(s),
                       .learning_rate = 0.1,
                       .loss = std::vector<float>(workers, static_cast<float>(s))});
    for (std::size_t t = 0; t < made.tensors.size(); ++t) {
      std::size_t n = 1;
      for (const auto extent : made.tensors[t].shape) n *= static_cast<std::size_t>(extent);
      values.resize(n), derived.resize(n);
      for (std::size_t w = 0; w < workers; ++w) {
        for (std::size_t i = 0; i < n; ++i) {
          values[i] = static_cast<float>(static_cast<int>((7 * s + 3 * w + 5 * t + i) % 251) - 125);
        }
        writer.put_gradient(t, w, values);
        if (!made.tensors[t].has_second_moment) continue;
        for (std::size_t i = 0; i < n; ++i) derived[i] = values[i] * values[i];
        writer.put_second_moment(t, w, derived);
        for (std::size_t i = 0; i < n; ++i) derived[i] = -values[i];
        if (w == 0) writer.put_weight(t, derived);
      }
    }
    writer.end_step();
    std::printf("step %zu\n", s);
    std::fflush(stdout);
  }
  writer.close();
  std::printf("closed\n");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 6) throw gradtool::Error{gradtool::Fault::usage, "write_steps PATH STEPS WORKERS DTYPE small|large"};
    write(argv[1], std::stoul(argv[2]), std::stoul(argv[3]), parse_dtype(argv[4]), std::string{argv[5]} == "large");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "write_steps: %s\n", error.what());
    return 1;
  }
}
