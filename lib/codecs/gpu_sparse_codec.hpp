#pragma once

#include <string_view>

#include "kernels/select.hpp"
#include "kernels/sparse.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

/// The GPU side of a SparseCodec, which writes the same bytes. A method derives from it, and its `encode` is a call of
/// `send` with the rule that chooses. The GPU alone knows how many elements are chosen.
class GpuSparseCodec : public GpuCodec {
 public:
  [[nodiscard]] Footprint plan(std::size_t n) const final {
    return {.payload_bytes = payload_bound(n), .scratch_bytes = planned<Workspace>(*this, n), .exact = false};
  }
  void decode_add(Queue<Space::cuda> queue, ConstBytes payload, float weight, Floats out, Bytes scratch) const final {
    expect_room(name_, payload.size(), sizeof(SparseHeader), payload_bound(out.size()));
    const Workspace work{*this, out.size(), Scratch<Space::cuda>{scratch}};
    cuda::add_sparse(queue, shape(out.size()), payload, weight, out.data(), work.sparse);
  }

  void decode_add_each(Queue<Space::cuda> queue, std::span<const ConstBytes> payloads, float weight,
                       std::span<const Floats> outs, Bytes scratch) const final {
    cuda::AddedBatch batch{queue, shape(0), weight, scratch};
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      const std::size_t n = outs[i].size();
      expect_room(name_, payloads[i].size(), sizeof(SparseHeader), payload_bound(n));
      batch.add(payloads[i], values_sent(n), outs[i]);
    }
    batch.flush();
  }

 protected:
  /// `name` and `params` as for GpuCodec; `params` has kIndexParam.
  GpuSparseCodec(std::string_view name, const Params& params)
      : GpuCodec{name, params}, name_{name}, coding_{params.word("index")} {}

  /// Bytes of scratch that the rule needs for n elements, besides those of cuda::Select.
  [[nodiscard]] virtual std::size_t rule_bytes(std::size_t /*n*/) const { return 0; }
  /// The rule's part of the codec's scratch, aligned to 256 bytes.
  [[nodiscard]] Bytes rule_scratch(std::size_t n, Bytes scratch) const {
    return Workspace{*this, n, Scratch<Space::cuda>{scratch}}.rule;
  }

  /// Enqueues the payload of what choose(select) chooses of `numbers`; without any, it is not called. The elements that
  /// are sent become 0 in `kept`, unless that is null. `payload` and `scratch` are those of Codec::encode.
  template <class Choose>
  void send(Queue<Space::cuda> queue, ConstFloats numbers, Bytes payload, Bytes scratch, const Choose& choose,
            float* kept = nullptr) const {
    const std::size_t n = numbers.size();
    if (n == 0) return cuda::write_empty_sparse(queue, shape(0), payload.data());
    const Workspace work{*this, n, Scratch<Space::cuda>{scratch}};
    const cuda::Select select{queue, numbers, work.selection};
    choose(select);
    select.write(work.positions.data(), sparse_values(payload, values_sent(n)).data());
    if (kept != nullptr) cuda::zero_at(queue, work.positions.data(), select.count(), values_sent(n), kept);
    cuda::write_sparse(queue, shape(n), work.positions.data(), select.count(), payload.data(), work.sparse);
  }

  /// Enqueues a payload of the largest values_sent elements of each gradient. Those of no elements, and of so many that
  /// a sample pays, are for encode.
  void send_largest_each(Queue<Space::cuda> queue, std::span<const ConstFloats> gradients, const EncodeContext& context,
                         std::span<const Bytes> payloads, Bytes scratch) const {
    cuda::LargestBatch batch{queue, shape(0), scratch};
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const std::size_t n = gradients[i].size();
      if (n == 0 || n >= cuda::Select::kMany) {
        batch.flush();  // which uses the same scratch
        encode(queue, gradients[i], context, payloads[i], scratch);
      } else {
        batch.add(gradients[i], values_sent(n), payloads[i].data());
      }
    }
    batch.flush();
  }

 private:
  struct Workspace {
    Workspace(const GpuSparseCodec& codec, std::size_t n, Scratch<Space::cuda> scratch)
        : positions{scratch.take<std::uint32_t>(codec.values_sent(n))},
          selection{scratch.take_bytes(cuda::Select::scratch_bytes(n))},
          sparse{scratch.take_bytes(cuda::sparse_scratch_bytes(codec.shape(n)))},
          rule{scratch.take_bytes(codec.rule_bytes(n))} {}
    View<std::uint32_t, Space::cuda> positions;  ///< of what is sent
    Bytes selection, sparse, rule;
  };
  [[nodiscard]] cuda::SparseShape shape(std::size_t n) const { return sparse_shape(coding_, values_sent(n), n); }
  [[nodiscard]] std::size_t payload_bound(std::size_t n) const { return sparse_bound(coding_, values_sent(n), n); }

  std::string_view name_;
  IndexCoding coding_;
};

}  // namespace gradtool
