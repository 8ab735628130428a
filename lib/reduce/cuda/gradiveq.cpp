// GradiVeQ on a GPU: projections by cuBLAS, bases by cuSOLVER.
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/device_eigen.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/slices.hpp"
#include "kernels/host/slice_basis.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/gradiveq_reducer.hpp"

namespace gradtool {
namespace {

using gradiveq::Layer;

constexpr std::size_t kFitBytes = std::size_t{16} << 20;  ///< of centred samples in float64 at a time

constexpr std::size_t padded(std::size_t bytes) {
  return Arena<Space::cuda>::padded_size(bytes);
}

/// As gradiveq::Compressor. A basis is stored component after component. Fitting waits for the GPU, twice a layer: how
/// many components there are decides how long messages are.
class CudaCompressor {
 public:
  using Queue = gradtool::Queue<Space::cuda>;
  using Bytes = View<std::byte, Space::cuda>;

  CudaCompressor(std::vector<Layer> layers, const Params& params, Queue /*queue*/)
      : layers_{std::move(layers)},
        samples_{static_cast<std::size_t>(params.integer("lt"))},
        lambda_{params.real("lambda")},
        min_ratio_{params.real("min_ratio")},
        shared_mean_{params.is("mean", "shared")},
        blas_{cuda::Blas::of_this_thread()},
        eigen_{cuda::DeviceEigen::of_this_thread()},
        components_(layers_.size(), 0),
        values_(samples_ + 2, 0.0),
        arena_{capacity()} {
    for (const Layer& layer : layers_) {
      const std::size_t k = layer.coordinates();
      longest_ = std::max(longest_, k);
      sliced_ += layer.sliced();
      rows_.push_back(arena_.take<float>(samples_ * k));
      bases_.push_back(arena_.take<float>(k * most_components(layer)));
    }
    means_ = arena_.take<float>(sliced_);
    width_ = std::min(longest_, std::max<std::size_t>(256, kFitBytes / (8 * samples_)));
  }

  [[nodiscard]] std::span<const Layer> layers() const { return layers_; }
  [[nodiscard]] std::size_t sliced() const { return sliced_; }
  [[nodiscard]] std::size_t components(std::size_t layer) const { return components_[layer]; }

  [[nodiscard]] std::size_t scratch_bytes() const {
    const std::size_t norms = 2 * padded(8 * cuda::kNorms * layers_.size());
    return padded(blas_->work_bytes()) + std::max({norms, fit_bytes(), padded(8 * layers_.size())}) + padded(64);
  }

  void sample(Queue queue, const float* slices, std::size_t index) {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const std::size_t k = layers_[l].coordinates();
      copy(queue, slices + layers_[l].sliced_at, k, rows_[l].data() + index * k);
    }
    if (index == 0)
      copy(queue, slices, sliced_, means_.data());
    else
      add(queue, {slices, sliced_}, means_);
  }

  void fit(Queue queue, Bytes scratch) {
    for (std::size_t l = 0; l < layers_.size(); ++l) components_[l] = fit_layer(queue, l, scratch);
  }

  /// A sum over words, each with its place: one launch for a layer, in any order.
  [[nodiscard]] std::uint64_t digest(Queue queue) {
    const auto sum = View<std::uint64_t, Space::cuda>{reinterpret_cast<std::uint64_t*>(digest_.bytes().data()), 1};
    cuda::fill(queue, as_writable_bytes(sum), 0);
    std::uint64_t at = 0;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      at += components_[l] + 1;  // so that equal bits of other shapes differ
      cuda::add_digest(queue, basis(l), at, sum.data());
      at += basis(l).size();
    }
    cuda::add_digest(queue, means_, at, sum.data());
    std::uint64_t digest = 0;
    read_back(queue, as_bytes(sum), &digest);
    return digest;
  }

  template <class F>
  void share(Queue queue, Bytes scratch, F&& broadcast) {
    const auto counts = scratch.first(8 * components_.size());
    const HostView<std::byte> here{reinterpret_cast<std::byte*>(components_.data()), counts.size()};
    cuda::copy(queue, counts, HostView<const std::byte>{here});
    broadcast(counts);
    read_back(queue, counts, here.data());
    for (std::size_t l = 0; l < layers_.size(); ++l) broadcast(as_writable_bytes(basis(l)));
    broadcast(as_writable_bytes(means_));
  }

  void project(Queue queue, const float* gradient, std::span<float* const> y, float* slices, Bytes scratch,
               View<float, Space::cuda> vote, double worst) const {
    const auto work = scratch.first(blas_->work_bytes());
    auto* norms = reinterpret_cast<double*>(scratch.data() + padded(work.size()));
    double* norms_of_y = norms + cuda::kNorms * layers_.size();
    std::size_t compressed = 0;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      const std::size_t d = components_[l];
      const std::size_t k = layer.coordinates();
      if (d == 0) continue;
      float* x = slices + layer.sliced_at;
      cuda::gather_taps(queue, shape(layer), gradient, 0, layer.slices * layer.slice_taps, means_of(layer), x);
      blas_->multiply(queue, work, d, layer.slices, k, 1.0F, {bases_[l].data(), k, true}, {x, k}, 0.0F, y[l], d);
      if (vote.empty()) continue;
      cuda::sum_norms(queue, {x, layer.sliced()}, means_of(layer), norms + cuda::kNorms * compressed);
      cuda::sum_norms(queue, {y[l], layer.slices * d}, {}, norms_of_y + cuda::kNorms * compressed);
      ++compressed;
    }
    if (!vote.empty()) cuda::vote_on_loss(queue, norms, norms_of_y, compressed, worst, vote.data());
  }

  void rebuild(Queue queue, std::span<float* const> y, float* slices, Bytes scratch, float* gradient) const {
    const auto work = scratch.first(blas_->work_bytes());
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      const std::size_t d = components_[l];
      const std::size_t k = layer.coordinates();
      if (d == 0) continue;
      float* x = slices + layer.sliced_at;
      blas_->multiply(queue, work, k, layer.slices, d, 1.0F, {bases_[l].data(), k}, {y[l], d}, 0.0F, x, k);
      cuda::scatter_taps(queue, shape(layer), x, 0, layer.slices * layer.slice_taps, 1.0F, means_of(layer), gradient);
    }
  }

  static void gather(Queue queue, const Layer& layer, const float* gradient, std::size_t first_tap,
                     std::size_t last_tap, float* out) {
    cuda::gather_taps(queue, shape(layer), gradient, first_tap, last_tap, {}, out);
  }
  static void scatter(Queue queue, const Layer& layer, const float* in, std::size_t first_tap, std::size_t last_tap,
                      float* gradient) {
    cuda::scatter_taps(queue, shape(layer), in, first_tap, last_tap, 1.0F, {}, gradient);
  }
  static void copy(Queue queue, const float* from, std::size_t count, float* to) {
    cuda::copy_elements(queue, View<float, Space::cuda>{to, count}, View<const float, Space::cuda>{from, count});
  }

 private:
  /// Where fitting works, behind what cuBLAS works in.
  struct FitRoom {
    double *gram, *weights, *values, *centred, *product, *energies, *report;
    int *odd, *info;
    Bytes eigen;
  };

  static cuda::ConvLayer shape(const Layer& layer) { return {layer.first, layer.filters, layer.taps}; }
  [[nodiscard]] cuda::SliceMeans means_of(const Layer& layer) const {
    return {means_.data() + layer.sliced_at, shared_mean_ ? layer.coordinates() : 0};
  }
  [[nodiscard]] std::size_t most_components(const Layer& layer) const {
    return std::min(samples_ - 1, layer.coordinates());
  }
  [[nodiscard]] View<float, Space::cuda> basis(std::size_t layer) const {
    return bases_[layer].first(layers_[layer].coordinates() * components_[layer]);
  }
  [[nodiscard]] std::size_t capacity() const {
    std::size_t bytes = 0;
    std::size_t sliced = 0;
    for (const Layer& layer : layers_) {
      bytes += padded(4 * samples_ * layer.coordinates()) + padded(4 * layer.coordinates() * most_components(layer));
      sliced += layer.sliced();
    }
    return bytes + padded(4 * sliced);
  }
  [[nodiscard]] std::size_t most_blocks() const {
    return longest_ / width_ * cuda::centre_blocks(width_) + cuda::centre_blocks(width_);
  }
  [[nodiscard]] std::size_t fit_bytes() const {
    if (layers_.empty()) return 0;
    return 2 * padded(8 * samples_ * samples_) + padded(8 * samples_) + 2 * padded(8 * samples_ * width_) +
           padded(8 * most_blocks()) + 3 * padded(16) + padded(eigen_->work_bytes(samples_));
  }
  [[nodiscard]] FitRoom fit_room(Bytes scratch) const {
    Carver<Space::cuda> carve{scratch};
    static_cast<void>(carve.take(blas_->work_bytes()));
    FitRoom room{};
    room.gram = take<double>(carve, samples_ * samples_).data();
    room.weights = take<double>(carve, samples_ * samples_).data();
    room.values = take<double>(carve, samples_).data();
    room.centred = take<double>(carve, samples_ * width_).data();
    room.product = take<double>(carve, samples_ * width_).data();
    room.energies = take<double>(carve, most_blocks()).data();
    room.report = take<double>(carve, 2).data();
    room.odd = take<int>(carve, 1).data();
    room.info = take<int>(carve, 1).data();
    room.eigen = carve.take(eigen_->work_bytes(samples_));
    return room;
  }

  /// As host::BasisFit::fit. Returns d.
  std::size_t fit_layer(Queue queue, std::size_t index, Bytes scratch) {
    const Layer& layer = layers_[index];
    const std::size_t n = samples_;
    const std::size_t k = layer.coordinates();
    const float* rows = rows_[index].data();
    const auto work = scratch.first(blas_->work_bytes());
    const FitRoom room = fit_room(scratch);
    cuda::fill(queue, {reinterpret_cast<std::byte*>(room.odd), sizeof(int)}, 0);
    cuda::divide(queue, means_.part(layer.sliced_at, layer.sliced()), static_cast<float>(n), room.odd);
    std::size_t blocks = 0;
    for (std::size_t first = 0; first < k; first += width_) {
      const std::size_t width = std::min(width_, k - first);
      cuda::centre(queue, rows, n, k, first, width, room.centred, room.energies + blocks);
      blas_->multiply(queue, work, n, n, width, 1.0, {room.centred, width, true}, {room.centred, width},
                      first == 0 ? 0.0 : 1.0, room.gram, n);
      blocks += cuda::centre_blocks(width);
    }
    cuda::report_variance(queue, room.gram, n, room.energies, blocks, room.report);
    double report[2] = {};
    int odd = 0;
    read_back(queue, bytes_of(room.report, 2), report);
    read_back(queue, bytes_of(room.odd, 1), &odd);
    if (odd != 0 || !host::has_variance(report[0], report[1])) return 0;

    int info = 0;
    eigen_->solve(queue, n, room.gram, room.values, room.info, room.eigen);
    read_back(queue, bytes_of(room.info, 1), &info);
    read_back(queue, bytes_of(room.values, n), values_.data());
    const std::size_t d = info == 0 ? host::components_for({values_.data(), n}, k, lambda_) : 0;
    if (d == 0 || static_cast<double>(k) < min_ratio_ * static_cast<double>(d)) return 0;
    cuda::scale_vectors(queue, room.gram, room.values, n, d, room.weights);
    for (std::size_t first = 0; first < k; first += width_) {
      const std::size_t width = std::min(width_, k - first);
      cuda::centre(queue, rows, n, k, first, width, room.centred, room.energies);
      blas_->multiply(queue, work, width, d, n, 1.0, {room.centred, width}, {room.weights, n}, 0.0, room.product,
                      width);
      cuda::narrow_rows(queue, room.product, d, width, bases_[index].data() + first, k);
    }
    return d;
  }
  template <class T>
  static View<const std::byte, Space::cuda> bytes_of(const T* data, std::size_t count) {
    return as_bytes(View<const T, Space::cuda>{data, count});
  }

  std::vector<Layer> layers_;
  std::size_t samples_;  ///< L_t
  double lambda_;
  double min_ratio_;
  bool shared_mean_;
  std::size_t sliced_ = 0, longest_ = 0, width_ = 1;
  std::shared_ptr<cuda::Blas> blas_;
  std::shared_ptr<cuda::DeviceEigen> eigen_;
  std::vector<std::uint64_t> components_;
  std::vector<double> values_;
  Arena<Space::cuda> arena_;
  std::vector<View<float, Space::cuda>> rows_, bases_;
  View<float, Space::cuda> means_;  ///< during the samples: their sum
  cuda::DeviceBuffer digest_{8};
};

}  // namespace

std::unique_ptr<Reducer<Space::cuda>> make_cuda_gradiveq(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<GradiVeqReducer<Space::cuda, CudaCompressor>>(setup);
}

}  // namespace gradtool
