#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/runtime.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool::test {

/// Device memory of exactly `size` bytes between two guards, which must stay as they are. Starts at a 256-byte border,
/// `shift` bytes behind it.
class Guarded {
 public:
  Guarded(Queue<Space::cuda> queue, std::size_t size, std::size_t shift = 0)
      : queue_{queue}, size_{size}, shift_{shift}, buffer_{size + shift + 2 * kGuard} {
    cuda::fill(queue_, buffer_.bytes(), kPattern);
  }
  Guarded(Queue<Space::cuda> queue, std::span<const std::byte> content, std::size_t shift = 0)
      : Guarded{queue, content.size(), shift} {
    upload(content);
  }

  [[nodiscard]] View<std::byte, Space::cuda> bytes() const { return buffer_.bytes().part(kGuard + shift_, size_); }
  template <class T>
  [[nodiscard]] View<T, Space::cuda> as() const {
    return {reinterpret_cast<T*>(bytes().data()), size_ / sizeof(T)};
  }
  void upload(std::span<const std::byte> content) const {
    cuda::copy(queue_, bytes(), HostView<const std::byte>{content.data(), content.size()});
    cuda::synchronize(queue_);
  }
  void poison(std::uint8_t value) const { cuda::fill(queue_, bytes(), value); }

  /// Waits for the stream. Fails the test when a guard was written to.
  [[nodiscard]] std::vector<std::byte> download() const {
    std::vector<std::byte> all(buffer_.size());
    cuda::copy(queue_, HostView<std::byte>{all.data(), all.size()}, buffer_.bytes());
    cuda::synchronize(queue_);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool inside = i >= kGuard + shift_ && i < kGuard + shift_ + size_;
      if (!inside && all[i] != std::byte{kPattern}) {
        ADD_FAILURE() << "written outside of a view of " << size_ << " bytes, at byte "
                      << static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(kGuard + shift_);
        break;
      }
    }
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(kGuard + shift_);
    return {first, first + static_cast<std::ptrdiff_t>(size_)};
  }
  [[nodiscard]] std::vector<float> download_floats() const {
    const auto raw = download();
    std::vector<float> values(size_ / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), raw.data(), values.size() * sizeof(float));
    return values;
  }

 private:
  static constexpr std::size_t kGuard = 1024;
  static constexpr std::uint8_t kPattern = 0xC3;
  Queue<Space::cuda> queue_;
  std::size_t size_, shift_;
  cuda::DeviceBuffer buffer_;
};

inline std::span<const std::byte> bytes_of(std::span<const float> x) {
  return std::as_bytes(x);
}

/// The CUDA side of CodecRun: a codec with guarded buffers for n elements on a stream of its own.
class CudaRun {
 public:
  CudaRun(const std::string& spec, std::size_t n) : CudaRun{spec, Layout::flat(n)} {}
  CudaRun(const std::string& spec, const Layout& layout)
      : spec_{parse_codec(spec)},
        codec_{spec_.descriptor->gpu.codec(spec_.params, layout)},
        footprint_{codec_->plan(layout.elements)},
        n_{layout.elements},
        payload_{stream_.queue(), footprint_.payload_bytes},
        scratch_{stream_.queue(), footprint_.scratch_bytes} {}

  /// The payload's bytes, as long as they are. The gradient starts `shift` bytes behind a 256-byte border.
  std::vector<std::byte> encode(std::span<const float> x, const EncodeContext& context = {}, std::uint8_t poison = 0xA5,
                                std::size_t shift = 0) {
    const Guarded gradient{queue(), bytes_of(x), shift};
    payload_.poison(poison);
    scratch_.poison(poison);
    codec_->encode(queue(), gradient.as<float>(), context, payload_.bytes(), scratch_.bytes());
    auto bytes = payload_.download();
    static_cast<void>(scratch_.download());
    const auto after = gradient.download();
    EXPECT_TRUE(std::ranges::equal(after, bytes_of(x))) << "the gradient was changed";
    if (!footprint_.exact && bytes.size() >= 8) {
      std::uint64_t stated = 0;
      std::memcpy(&stated, bytes.data(), sizeof stated);
      EXPECT_LE(stated, bytes.size());
      bytes.resize(std::min<std::size_t>(stated, bytes.size()));
    }
    return bytes;
  }

  /// `payload` in an allocation of exactly its size.
  void decode_add(std::span<const std::byte> payload, float weight, std::span<float> out, std::size_t shift = 0) {
    const Guarded source{queue(), payload};
    const Guarded target{queue(), bytes_of(out), shift};
    scratch_.poison(0x5A);
    codec_->decode_add(queue(), source.bytes(), weight, target.as<float>(), scratch_.bytes());
    const auto result = target.download_floats();
    std::copy(result.begin(), result.end(), out.begin());
    static_cast<void>(scratch_.download());
  }
  std::vector<float> decode(std::span<const std::byte> payload) {
    std::vector<float> out(n_, 0.0F);
    decode_add(payload, 1.0F, out);
    return out;
  }

  [[nodiscard]] const Codec<Space::cuda>& codec() const { return *codec_; }
  [[nodiscard]] const Footprint& footprint() const { return footprint_; }
  [[nodiscard]] Queue<Space::cuda> queue() const { return stream_.queue(); }
  [[nodiscard]] const Guarded& payload() const { return payload_; }
  [[nodiscard]] const Guarded& scratch() const { return scratch_; }
  [[nodiscard]] bool same_bytes() const { return spec_.descriptor->determinism == Determinism::cross_backend; }

 private:
  CodecSpec spec_;
  std::unique_ptr<Codec<Space::cuda>> codec_;
  Footprint footprint_;
  std::size_t n_;
  cuda::Stream stream_;
  Guarded payload_, scratch_;
};

/// Every test here needs a GPU, and says so where there is none.
template <class Base>
class NeedsGpu : public Base {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "needs a CUDA GPU: " << cuda::no_device_reason();
  }
};

}  // namespace gradtool::test
