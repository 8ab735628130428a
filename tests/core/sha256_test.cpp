#include "lib/core/sha256.hpp"

#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "tests/core/fault.hpp"

namespace gradtool::test {
namespace {

std::string hash_of(std::string_view text) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span{text.data(), text.size()}));
  return hash.hex();
}

// The examples of FIPS 180-4 and of NIST's page of test vectors.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(Sha256{}.hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash_of(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Lengths around 55, 56 and 64 bytes, where the padding just fits into the last block or needs another one. The
// expected values are those of sha256sum.
TEST(Sha256, PadsAtTheEdgesOfABlock) {
  EXPECT_EQ(hash_of(std::string(55, 'a')), "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(hash_of(std::string(56, 'a')), "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  EXPECT_EQ(hash_of(std::string(63, 'a')), "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
  EXPECT_EQ(hash_of(std::string(64, 'a')), "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
  EXPECT_EQ(hash_of(std::string(65, 'a')), "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0");
}

TEST(Sha256, DoesNotDependOnHowTheInputIsCut) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i);
  const std::string whole = hash_of(text);
  for (const std::size_t first : {0, 1, 55, 56, 63, 64, 65, 127, 128, 129, 200}) {
    for (const std::size_t second : {0, 1, 63, 64, 65}) {
      const auto bytes = std::as_bytes(std::span{text.data(), text.size()});
      const std::size_t middle = std::min(second, bytes.size() - first);
      Sha256 hash;
      hash.update(bytes.first(first));
      hash.update(bytes.subspan(first, middle));
      hash.update(bytes.subspan(first + middle));
      EXPECT_EQ(hash.hex(), whole) << first << " + " << second;
    }
  }
  Sha256 by_byte;
  for (const char c : text) by_byte.update(std::as_bytes(std::span{&c, 1}));
  EXPECT_EQ(by_byte.hex(), whole);
}

TEST(Sha256, IsTheSameByTheInstructionsOfTheProcessor) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < 300; ++i) bytes.push_back(static_cast<std::byte>(i * i + (i >> 3)));
  for (std::size_t length = 0; length <= bytes.size(); ++length) {
    Sha256 one, other{true};
    for (auto* hash : {&one, &other}) hash->update(std::span{bytes}.first(length));
    EXPECT_EQ(one.hex(), other.hex()) << length;
  }
}

TEST(Sha256, HashesAFile) {
  const auto path = std::filesystem::temp_directory_path() / ("gradtool-sha256-" + std::to_string(::getpid()));
  // Larger than the part that is read at a time.
  std::ofstream{path, std::ios::binary} << std::string(3'000'001, 'x');
  EXPECT_EQ(sha256_of_file(path.string()), hash_of(std::string(3'000'001, 'x')));
  std::filesystem::remove(path);
  EXPECT_EQ(message_of(Fault::data, [&] { static_cast<void>(sha256_of_file(path.string())); }),
            path.string() + ": cannot be opened");
}

}  // namespace
}  // namespace gradtool::test
