#include "kernels/cuda/atomo.hpp"

#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/device_eigen.hpp"
#include "lib/codecs/atomo_parts.hpp"
#include "lib/codecs/cuda/device_table.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kWidenBytes = std::size_t{16} << 20;  ///< of a matrix in float64 at a time

/// Gram matrices by cuBLAS, their vectors by cuSOLVER, all else by kernels/cuda/atomo.hpp.
class CudaAtomo final : public CudaTwin {
 public:
  CudaAtomo(const Params& params, const Layout& layout)
      : CudaTwin{"atomo", params, layout},
        budget_{static_cast<double>(params.integer("s"))},
        format_{params, layout},
        parts_{rows_of(format_)},
        tiles_{tiles_of(format_)} {
    for (const AtomoTensor& part : format_.parts) {
      if (!part.factored()) continue;
      values_ += part.order();
      vectors_ += part.order() * part.order();
      orders_.push_back(part.order());
      widened_ = std::max(widened_, part.order() * width_of(part.order(), std::max(part.rows, part.columns)));
    }
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == format_.elements, "codec atomo works on the layout that it was made for");
    parts_.make();
    tiles_.make();
    return {.payload_bytes = format_.header() + 4 * format_.most_floats,
            .scratch_bytes = Room{*this, make_libraries()}.bytes,
            .exact = format_.matrices == 0};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    if (format_.elements == 0) return;
    const Libraries& with = libraries();
    const Room at{*this, with};
    const cuda::AtomoRoom room = at.in(scratch);
    auto* solved = reinterpret_cast<int*>(scratch.data() + at.solved);
    for (const AtomoTensor& tensor : format_.parts) {
      if (!tensor.factored()) continue;
      const cuda::AtomoPart& part = parts_.rows()[static_cast<std::size_t>(&tensor - format_.parts.data())];
      decompose(queue, part, gradient.data(), with, at, scratch);
    }
    const auto table = this->table();
    cuda::choose_atoms(queue, table, room, solved, budget_, context.key, payload.data());
    cuda::copy_tensors(queue, table, room, gradient.data(), payload.data());
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const cuda::AtomoPart& part = parts_.rows()[p];
      if (part.rows > 0) cuda::write_atoms(queue, table, p, part, room, gradient.data(), payload.data());
    }
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    expects(out.size() == format_.elements, "codec atomo works on the layout that it was made for");
    const std::size_t most = format_.header() + 4 * format_.most_floats;
    const std::size_t least = format_.matrices == 0 ? most : format_.header();
    if (payload.size() < least || payload.size() > most) expect_length("atomo", payload.size(), most);
    if (format_.elements == 0) return;
    cuda::add_atoms(queue, table(), payload, weight, out.data(), reinterpret_cast<std::uint64_t*>(scratch.data()));
  }

 private:
  struct Libraries {
    std::shared_ptr<cuda::Blas> blas;
    std::shared_ptr<cuda::DeviceEigen> eigen;
    std::size_t blas_bytes = 0;  ///< of work areas, asked for once: asking takes the library's time
    std::size_t eigen_bytes = 0;
  };

  /// Where things lie in the scratch; `places` first, for decoding too.
  struct Room {
    Room(const CudaAtomo& codec, const Libraries& with) : blas_bytes{with.blas_bytes}, eigen_bytes{with.eigen_bytes} {
      places = take(8 * (codec.parts_.size() + 2));
      if (codec.orders_.empty()) return;
      vectors = take(8 * codec.vectors_);
      eigenvalues = take(8 * codec.values_);
      values = take(8 * codec.values_);
      probabilities = take(8 * codec.values_);
      kept = take(4 * codec.values_);
      norms = take(8 * codec.values_ * cuda::kAtomoChunks);
      failed = take(4 * codec.orders_.size());
      solved = take(4 * codec.orders_.size());
      counts = take(4 * codec.orders_.size());
      widened = take(8 * codec.widened_);
      eigen = take(eigen_bytes);
      blas = take(blas_bytes);
    }
    [[nodiscard]] cuda::AtomoRoom in(View<std::byte, Space::cuda> scratch) const {
      const auto doubles = [&](std::size_t at) { return reinterpret_cast<double*>(scratch.data() + at); };
      return {.vectors = doubles(vectors),
              .eigenvalues = doubles(eigenvalues),
              .values = doubles(values),
              .probabilities = doubles(probabilities),
              .kept = reinterpret_cast<std::uint32_t*>(scratch.data() + kept),
              .failed = reinterpret_cast<int*>(scratch.data() + failed),
              .counts = reinterpret_cast<std::uint32_t*>(scratch.data() + counts),
              .places = reinterpret_cast<std::uint64_t*>(scratch.data() + places),
              .norms = doubles(norms)};
    }
    std::size_t take(std::size_t size) { return std::exchange(bytes, bytes + Arena<Space::cuda>::padded_size(size)); }

    std::size_t places = 0, vectors = 0, eigenvalues = 0, values = 0, probabilities = 0, kept = 0, norms = 0,
                failed = 0, solved = 0, counts = 0, widened = 0, eigen = 0, blas = 0, bytes = 0;
    std::size_t blas_bytes = 0, eigen_bytes = 0;
  };

  /// Of the longer side that is widened at a time.
  static std::size_t width_of(std::size_t order, std::size_t length) {
    return std::min(length, std::max<std::size_t>(64, kWidenBytes / (8 * order)));
  }
  static std::vector<cuda::AtomoPart> rows_of(const AtomoParts& format) {
    std::vector<cuda::AtomoPart> rows;
    std::size_t values = 0;
    std::size_t vectors = 0;
    for (const AtomoTensor& part : format.parts) {
      rows.push_back({.first = part.first,
                      .elements = part.elements,
                      .rows = part.rows,
                      .columns = part.columns,
                      .draw = part.draw,
                      .factored = part.count,
                      .values_at = values,
                      .vectors_at = vectors});
      values += part.factored() ? part.order() : 0;
      vectors += part.factored() ? part.order() * part.order() : 0;
    }
    return rows;
  }
  static std::vector<cuda::AtomoTile> tiles_of(const AtomoParts& format) {
    std::vector<cuda::AtomoTile> tiles;
    for (std::size_t p = 0; p < format.parts.size(); ++p) {
      const std::size_t elements = format.parts[p].elements;
      expects(elements <= 0xffffffff, "a tensor is too large for codec atomo on a GPU");
      for (std::size_t first = 0; first < elements; first += cuda::kAtomoTile)
        tiles.push_back({p, first, std::min(cuda::kAtomoTile, elements - first)});
    }
    return tiles;
  }

  /// Eigenvectors and eigenvalues of the Gram matrix of the shorter side.
  void decompose(Queue<Space::cuda> queue, const cuda::AtomoPart& part, const float* gradient, const Libraries& with,
                 const Room& at, View<std::byte, Space::cuda> scratch) const {
    const cuda::AtomoRoom room = at.in(scratch);
    const std::size_t order = std::min(part.rows, part.columns);
    const std::size_t length = std::max(part.rows, part.columns);
    const std::size_t most = width_of(order, length);
    double* gram = room.vectors + part.vectors_at;
    auto* widened = reinterpret_cast<double*>(scratch.data() + at.widened);
    const auto blas_work = scratch.part(at.blas, at.blas_bytes);
    for (std::size_t first = 0; first < length; first += most) {
      const std::size_t width = std::min(most, length - first);
      cuda::widen(queue, part, gradient, first, width, widened);
      with.blas->multiply(queue, blas_work, order, order, width, 1.0, {widened, width, true}, {widened, width},
                          first == 0 ? 0.0 : 1.0, gram, order);
    }
    cuda::guard_gram(queue, gram, order, room.failed + part.factored);
    with.eigen->solve(queue, order, gram, room.eigenvalues + part.values_at,
                      reinterpret_cast<int*>(scratch.data() + at.solved) + part.factored,
                      scratch.part(at.eigen, at.eigen_bytes));
  }

  [[nodiscard]] cuda::AtomoTable table() const {
    return {parts_.get(), parts_.size(), tiles_.get(), tiles_.size(), orders_.size()};
  }

  /// One set for a GPU, whichever thread plans first.
  const Libraries& make_libraries() const {
    const int device = cuda::current_device();
    const std::unique_lock lock{mutex_};
    const auto [found, added] = libraries_.try_emplace(device);
    if (!added) return found->second;
    Libraries& with = found->second;
    with.blas = cuda::Blas::of_this_thread();
    with.eigen = cuda::DeviceEigen::of_this_thread();
    with.blas_bytes = with.blas->work_bytes();
    for (const std::size_t order : orders_)
      with.eigen_bytes = std::max(with.eigen_bytes, with.eigen->work_bytes(order));
    return with;
  }
  [[nodiscard]] const Libraries& libraries() const {
    const std::shared_lock lock{mutex_};
    const auto found = libraries_.find(cuda::current_device());
    expects(found != libraries_.end(), "a codec encodes or decodes before plan");
    return found->second;
  }

  double budget_;  ///< s
  AtomoParts format_;
  DeviceTable<cuda::AtomoPart> parts_;
  DeviceTable<cuda::AtomoTile> tiles_;
  std::vector<std::size_t> orders_;
  std::size_t values_ = 0, vectors_ = 0, widened_ = 0;
  mutable std::shared_mutex mutex_;
  mutable std::map<int, Libraries> libraries_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_atomo(const Params& params, const Layout& layout) {
  return std::make_unique<CudaAtomo>(params, layout);
}

}  // namespace gradtool
