// Runs every codec between three or four ranks for a few steps on a small model and writes down, as JSON and raw files,
// what each rank put in, said in every collective, and ended with. Read by tests/reduce/check_messages.py.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/codecs/codec_run.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

constexpr int kSteps = 6;

template <class T>
std::string save(const std::filesystem::path& folder, const std::vector<T>& values, int& files) {
  std::string name = std::to_string(files++);
  std::ofstream out{folder / name, std::ios::binary};
  out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(sizeof(T) * values.size()));
  return name;
}

int run(const std::filesystem::path& folder) {
  int files = 0;
  auto manifest = nlohmann::ordered_json::array();
  for (const auto& text : own_specs()) {
    const int ranks = text.find("node=") == std::string::npos ? 3 : 4;  // two levels need ranks that divide
    const ModelSetup setup{.codec = text, .ranks = ranks, .steps = kSteps};
    const auto out = run_model(setup);
    const auto spec = parse_codec(text);
    nlohmann::ordered_json one{
        {"text", text}, {"codec", spec.name()},     {"params", spec.params.text()}, {"ranks", ranks},
        {"seed", 9},    {"ef", spec.error_feedback}};
    for (const auto& tensor : setup.layout.tensors) {
      one["tensors"].push_back({{"name", tensor.name},
                                {"shape", tensor.shape},
                                {"kind", tensor.kind},
                                {"first", tensor.first},
                                {"elements", tensor.elements}});
    }
    one["weight"] = save(folder, model_weight(setup.layout.elements), files);
    for (std::size_t step = 0; step < kSteps; ++step) {
      nlohmann::ordered_json row;
      row["result"] = save(folder, out.results[0][step], files);
      for (std::size_t rank = 0; rank < out.inputs.size(); ++rank) {
        nlohmann::ordered_json said;
        said["input"] = save(folder, out.gradients[rank][step], files);
        said["messages"] = nlohmann::ordered_json::array();
        for (const auto& message : out.messages[rank][step])
          said["messages"].push_back({{"call", message.call}, {"bytes", save(folder, message.bytes, files)}});
        row["ranks"].push_back(said);
      }
      one["steps"].push_back(row);
    }
    manifest.push_back(one);
  }
  std::ofstream{folder / "manifest.json"} << manifest.dump(1);
  return 0;
}

}  // namespace
}  // namespace gradtool::test

int main(int argc, char** argv) {
  return argc == 2 ? gradtool::test::run(argv[1]) : 2;
}
