// run_corpus FOLDER: a fuzz target over every file of a corpus, without libFuzzer, so that each build keeps what
// fuzzing found once. Also runs a thousand inputs of its own.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "run_corpus FOLDER\n"), 2;
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator{argv[1]}) {
    std::ifstream in{entry.path(), std::ios::binary};
    const std::vector<char> bytes{std::istreambuf_iterator<char>{in}, {}};
    std::printf("%s\n", entry.path().filename().c_str());
    std::fflush(stdout);  // the last line names the culprit
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    ++files;
  }
  std::mt19937 random{1};
  for (int i = 0; i < 1000; ++i) {
    std::vector<std::uint8_t> bytes(random() % 300);
    // Mostly zeros, the ordinary way: one byte in 2 to 33 is anything.
    const unsigned rarity = 2 + random() % 32;
    for (auto& byte : bytes) byte = random() % rarity == 0 ? static_cast<std::uint8_t>(random()) : std::uint8_t{0};
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%zu corpus files and 1000 random inputs\n", files);
  return files > 0 ? 0 : 1;
}
