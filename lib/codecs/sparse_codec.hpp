#pragma once

#include <string_view>

#include "kernels/sparse.hpp"
#include "lib/codecs/codec.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

/// A codec that sends chosen elements of a gradient, their values and their positions, as kernels/sparse.hpp writes
/// them. A method derives from it and says which elements: its `encode` is a call of `send` with the rule that chooses.
/// It overrides values_sent where fewer than all elements can be chosen, and rule_bytes where the rule needs scratch.
class SparseCodec : public Codec<Space::host> {
 public:
  [[nodiscard]] Footprint plan(std::size_t n) const final {
    return {.payload_bytes = sparse_bound(coding_, values_sent(n), n),
            .scratch_bytes = planned<Selection>(*this, n),
            .exact = false};
  }
  /// Throws Fault::data for more than values_sent(out.size()) values, and as add_sparse does.
  void decode_add(Queue<Space::host> /*queue*/, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    add_sparse(name_, payload, weight, out, Selection{*this, out.size(), Scratch<Space::host>{scratch}}.positions);
  }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t n) const final {
    return read_sparse_header(name_, payload, n, 32).count;
  }

 protected:
  /// `name` is what a refused payload is reported under; `params` has kIndexParam.
  SparseCodec(std::string_view name, const Params& params) : name_{name}, coding_{params.word("index")} {}

  /// The memory of a rule. It writes the positions of the elements that it chooses, ascending, and their values.
  struct Selection {
    Selection(const SparseCodec& codec, std::size_t n, Scratch<Space::host> from)
        : positions{from.take<std::uint32_t>(codec.values_sent(n))}, scratch{from.take_bytes(codec.rule_bytes(n))} {}
    HostView<std::uint32_t> positions;
    HostView<float> values{};     ///< in the payload; as many as positions
    HostView<std::byte> scratch;  ///< rule_bytes(n), aligned to 256 bytes
  };
  /// Bytes of scratch that the rule needs for n elements.
  [[nodiscard]] virtual std::size_t rule_bytes(std::size_t /*n*/) const { return 0; }

  /// Writes the payload of what choose(selection) chooses of n elements; it returns how many it has chosen. Returns
  /// their positions, which lie in `scratch`. `payload` and `scratch` are those of Codec::encode.
  template <class Choose>
  HostView<const std::uint32_t> send(Queue<Space::host> queue, std::size_t n, HostView<std::byte> payload,
                                     HostView<std::byte> scratch, const Choose& choose) const {
    Selection selection{*this, n, Scratch<Space::host>{scratch}};
    selection.values = sparse_values(payload, selection.positions.size());
    const std::size_t count = choose(selection);
    const HostView<const std::uint32_t> positions = selection.positions.first(count);
    write_sparse(queue, coding_, positions, selection.values.first(count), n, payload);
    return positions;
  }

 private:
  std::string_view name_;
  IndexCoding coding_;
};

}  // namespace gradtool
