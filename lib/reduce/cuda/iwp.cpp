#include "kernels/cuda/iwp.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda/marks.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/sparse.hpp"
#include "lib/codecs/index_code.hpp"
#include "lib/reduce/cuda/importance_mask.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/iwp_roots.hpp"
#include "lib/reduce/marks.hpp"

namespace gradtool {
namespace {

using Device = Arena<Space::cuda>;
using Bytes = View<std::byte, Space::cuda>;
template <class T>
using DeviceView = View<T, Space::cuda>;

/// lib/reduce/iwp.cpp on the GPU. Two numbers decide what is sent next and come to the host: the sizes of the masks,
/// and how many elements they have together.
class CudaIwp final : public CountingReducer<Space::cuda> {
 public:
  explicit CudaIwp(const ReducerSetup<Space::cuda>& setup)
      : CountingReducer{setup.layout.elements, setup.ranks},
        mask_{setup.spec.params, setup.layout, setup.queue},
        mu_{static_cast<float>(setup.spec.params.real("mu"))},
        masking_{setup.spec.params.is("masking", "on")},
        clip_{setup.spec.params.real("clip")},
        coding_{setup.spec.params.word("mask")},
        shape_{.n = n_, .most = n_, .automatic = coding_.automatic(), .fixed = coding_.fixed(), .value_bits = 0},
        roots_{static_cast<std::size_t>(setup.spec.params.integer("roots")), ranks_},
        sizes_(ranks_),
        offsets_(ranks_),
        headers_(roots_.count()),
        numbers_{2 * roots_.count() + mask_.layers()},
        total_{1},
        state_{2 * padded(4 * n_) + padded(4 * mark_words(n_))},
        held_{state_.take<float>(n_)},
        momentum_{state_.take<float>(mu_ > 0.0F ? n_ : 0)},
        dense_{state_.take<std::uint32_t>(mark_words(n_))},
        mark_bytes_{cuda::mark_scratch_bytes(n_)},
        sparse_bytes_{cuda::sparse_scratch_bytes(shape_)} {
    const auto dense = mask_.dense_marks(n_);
    cuda::copy_elements(setup.queue, dense_, HostView<const std::uint32_t>{dense.data(), dense.size()});
    CudaIwp::reset(setup.queue);
  }

  [[nodiscard]] Pattern pattern() const override { return {.shards = true, .ring = false}; }
  void reset(Queue<Space::cuda> queue) override {
    fill_zero(queue, held_);
    fill_zero(queue, momentum_);
    mask_.reset(queue);
  }
  [[nodiscard]] DeviceView<const float> residual() const override { return held_; }
  [[nodiscard]] std::string note() const override {
    return without_weight_ ? "no weights of some tensors or all: importance is the accumulated magnitude" : "";
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return 3 * padded(4 * n_) + 2 * padded(4 * mark_words(n_)) + roots_.count() * slot_bytes() +
           padded(sizeof(cuda::MaskHeader) * roots_.count()) + padded(8 * mask_.layers()) +
           padded(mask_.scratch_bytes()) + padded(sparse_bytes_) + padded(mark_bytes_) +
           padded(sizeof(double) * cuda::moment_sums(n_)) + 1024;
  }

  void reduce(Communicator<Space::cuda>& comm, Queue<Space::cuda> queue, DeviceView<float> gradient,
              const SideInputs<Space::cuda>& side, const EncodeContext& context, Bytes workspace,
              PhaseClock<Space::cuda>& clock) override {
    Carver<Space::cuda> carve{workspace};
    const auto values = take<float>(carve, n_);  // importances, then the values that travel
    const auto positions = take<std::uint32_t>(carve, n_);
    const auto mine = take<std::uint32_t>(carve, mark_words(n_));
    const auto marks = take<std::uint32_t>(carve, mark_words(n_));
    const auto masks = carve.take(roots_.count() * slot_bytes());
    const auto headers = take<cuda::MaskHeader>(carve, roots_.count());
    const auto positive = take<std::uint64_t>(carve, mask_.layers());
    const auto work = carve.take(mask_.scratch_bytes());
    const auto sparse = carve.take(sparse_bytes_);
    const auto scan = carve.take(mark_bytes_);
    const auto sums = take<double>(carve, cuda::moment_sums(n_));
    const auto count_at = take<std::uint32_t>(carve, 1);
    const auto factor = take<float>(carve, 1);
    const auto segment = carve.take(comm.scratch_bytes(4 * n_));

    const auto me = static_cast<std::size_t>(comm.rank());
    roots_.draw(context);
    const std::size_t slot = roots_.slot_of(me);
    const bool marks_for_all = slot < roots_.count();
    without_weight_ = side.weight.empty() && n_ > 0;

    in_phase(clock, Phase::encode, queue, [&] {
      hold(queue, gradient, sums.data(), factor.data());
      if (!marks_for_all) return;
      mask_.mark(queue, held_, side.weight, context, values, mine, positive, work);
      const Bytes own = masks.part(slot * slot_bytes(), slot_bytes());
      if (n_ == 0) {
        cuda::write_empty_sparse(queue, shape_, own.data());
      } else {
        cuda::mark_positions(queue, cuda::scan_marks(queue, mine, n_, scan), positions.data(), count_at.data());
        cuda::write_sparse(queue, shape_, positions.data(), count_at.data(), own.data(), sparse);
      }
      cuda::header_of_mask(queue, own.data(), headers.data() + slot);
    });

    in_phase(clock, Phase::communicate, queue, [&] {
      gather_masks(comm, queue, headers, masks, marks_for_all ? positive : DeviceView<std::uint64_t>{});
    });

    std::size_t count = 0;
    cuda::MarkScan all;
    in_phase(clock, Phase::encode, queue, [&] {
      if (n_ == 0) return;
      cuda::copy_elements(queue, marks, DeviceView<const std::uint32_t>{dense_});
      for (std::size_t r = 0; r < roots_.count(); ++r) {
        const Bytes in = masks.part(r * slot_bytes(), sizeof(SparseHeader) + headers_[r].bytes);
        cuda::header_of_slot(queue, headers.data() + r, in.data());
        cuda::mark_sparse(queue, shape_, in, marks.data(), sparse);
      }
      all = cuda::scan_marks(queue, marks, n_, scan);
      cuda::take_marked(queue, all, held_.data(), momentum_.empty() || !masking_ ? nullptr : momentum_.data(),
                        dense_.data(), values.data());
      total_.fetch(queue, {reinterpret_cast<const std::byte*>(all.total()), sizeof(std::uint64_t)});
      count = static_cast<std::size_t>(total_.wait(queue)[0]);
    });
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_sum(queue, as_writable_bytes(values.first(count)), Dtype::f32, segment); });
    in_phase(clock, Phase::decode, queue, [&] {
      const float share = 1.0F / static_cast<float>(comm.size());
      if (n_ > 0) cuda::place_marked(queue, all, values.data(), share, gradient.data());
    });
    payload_bytes_ = 4 * count + (marks_for_all ? sizeof(cuda::MaskHeader) + headers_[slot].bytes : 0);
    values_sent_ = count;
    mask_.next_step();
  }

 private:
  [[nodiscard]] std::size_t slot_bytes() const { return padded(sizeof(SparseHeader) + coding_.bound(n_, n_)); }

  /// The local part of every step: clipping, momentum correction, accumulation.
  void hold(Queue<Space::cuda> queue, DeviceView<const float> gradient, double* sums, float* factor) {
    const bool clips = clip_ > 0.0;
    if (clips) {
      cuda::moments_of_chunks(queue, gradient, sums);
      cuda::clip_factor(queue, sums, n_, clip_ / std::sqrt(static_cast<double>(ranks_)), factor);
    }
    cuda::accumulate(queue, gradient.data(), clips ? factor : nullptr, mu_,
                     momentum_.empty() ? nullptr : momentum_.data(), held_.data(), n_);
  }

  /// Headers, then masks, from the roots to all. The other ranks put in nothing.
  void gather_masks(Communicator<Space::cuda>& comm, Queue<Space::cuda> queue, DeviceView<cuda::MaskHeader> headers,
                    Bytes masks, DeviceView<const std::uint64_t> positive) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto gather = [&](Bytes all) {
      comm.all_gather_v(queue, all.part(offsets_[me], sizes_[me]), sizes_, offsets_, all);
    };
    std::fill(sizes_.begin(), sizes_.end(), 0U);
    std::fill(offsets_.begin(), offsets_.end(), 0U);
    for (std::size_t r = 0; r < roots_.count(); ++r) {
      sizes_[roots_.rank_of(r)] = sizeof(cuda::MaskHeader);
      offsets_[roots_.rank_of(r)] = r * sizeof(cuda::MaskHeader);
    }
    gather(as_writable_bytes(headers));
    numbers_.fetch(queue, as_bytes(headers));
    if (!positive.empty()) numbers_.fetch(queue, as_bytes(positive), 2 * roots_.count());
    const auto numbers = numbers_.wait(queue);
    for (std::size_t r = 0; r < roots_.count(); ++r) {
      headers_[r] = {numbers[2 * r], static_cast<std::uint32_t>(numbers[2 * r + 1]),
                     static_cast<std::uint32_t>(numbers[2 * r + 1] >> 32)};
      if (headers_[r].bytes > slot_bytes() - sizeof(SparseHeader) || headers_[r].count > n_ || headers_[r].code > 2)
        throw Error{Fault::data, "iwp: a rank states a mask that cannot be one"};
      sizes_[roots_.rank_of(r)] = headers_[r].bytes;
      offsets_[roots_.rank_of(r)] = r * slot_bytes() + sizeof(SparseHeader);
    }
    if (!positive.empty()) mask_.learn(numbers.subspan(2 * roots_.count(), mask_.layers()));
    gather(masks);
  }

  CudaImportanceMask mask_;
  float mu_;
  bool masking_;
  double clip_;
  IndexCoding coding_;
  cuda::SparseShape shape_;
  IwpRoots roots_;
  std::vector<std::uint64_t> sizes_, offsets_;
  std::vector<cuda::MaskHeader> headers_;
  ReadBack<Space::cuda> numbers_, total_;
  Device state_;
  DeviceView<float> held_, momentum_;
  DeviceView<std::uint32_t> dense_;
  std::size_t mark_bytes_, sparse_bytes_;
  bool without_weight_ = false;
};

}  // namespace

std::unique_ptr<Reducer<Space::cuda>> make_cuda_iwp(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<CudaIwp>(setup);
}

}  // namespace gradtool
