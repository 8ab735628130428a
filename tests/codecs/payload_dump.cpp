// Writes what every codec makes of a few inputs into a folder: manifest.json, and for each case its input, payload and
// decoded values. tests/codecs/check_payloads.py reads them with decoders that share no code with this.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

template <class T>
void save(const std::filesystem::path& path, const std::vector<T>& values) {
  std::ofstream out{path, std::ios::binary};
  out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(sizeof(T) * values.size()));
}

std::vector<float> input(std::size_t n) {
  auto x = gradient_like(n, static_cast<std::uint32_t>(n) + 40);
  if (n > 600) {  // what decoders may get wrong: zeros, subnormals, an outlier
    x[5] = 0.0F;
    x[6] = -0.0F;
    x[7] = 1e-41F;
    x[n / 2] = 3.5F;
    std::fill(x.begin() + 256, x.begin() + 320, 0.0F);
  }
  return x;
}

nlohmann::ordered_json tensors_of(const Layout& layout) {
  auto rows = nlohmann::ordered_json::array();
  for (const auto& tensor : layout.tensors) {
    rows.push_back(
        {{"shape", tensor.shape}, {"kind", tensor.kind}, {"first", tensor.first}, {"elements", tensor.elements}});
  }
  return rows;
}

int run(const std::filesystem::path& folder) {
  auto manifest = nlohmann::ordered_json::array();
  const auto dump = [&](const std::string& text, const Layout& layout, bool flat) {
    CodecRun codec{text, layout};
    const auto x = input(layout.elements);
    const EncodeContext context{
        .key = {.seed = 42, .step = 3, .rank = 1, .tensor = 9}, .iteration = 3, .learning_rate_ratio = 0.5};
    const auto payload = codec.encode(x, context);
    const std::string stem = std::to_string(manifest.size());
    save(folder / (stem + ".input"), x);
    save(folder / (stem + ".payload"), payload);
    save(folder / (stem + ".decoded"), codec.decode(payload));
    const auto& spec = codec.spec();
    nlohmann::ordered_json row{
        {"codec", spec.name()}, {"params", spec.params.text()}, {"n", layout.elements}, {"stem", stem}, {"text", text}};
    if (!flat) row["tensors"] = tensors_of(layout);
    manifest.push_back(row);
  };
  for (const auto& text : specs_to_test()) {
    for (const std::size_t n : {1U, 33U, 1025U, 5000U}) dump(text, Layout::flat(n), true);
    if (parse_codec(text).descriptor->by_layout) dump(text, several_tensors(), false);
  }
  std::ofstream{folder / "manifest.json"} << manifest.dump(1);
  return 0;
}

}  // namespace
}  // namespace gradtool::test

int main(int argc, char** argv) {
  return argc == 2 ? gradtool::test::run(argv[1]) : 2;
}
