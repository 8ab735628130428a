#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/marks.hpp"
#include "kernels/select.hpp"
#include "kernels/sparse.hpp"
#include "lib/methods/iwp/chunk_moments.hpp"
#include "lib/methods/iwp/reducer.hpp"

namespace gradtool {
namespace cuda {
namespace {

/// The inputs of a mask. Most layers are small, so kernels take all layers at a time: blocks (x, layer).
struct Layers {
  IwpLayer* layers = nullptr;  ///< on the device
  std::size_t count = 0;
  std::size_t largest = 0;  ///< elements of the largest layer
  const float* accumulated = nullptr;
  const float* weight = nullptr;  ///< null: the importance is the accumulated magnitude
};

/// sums[c] and sums[count + c] := the sum and the sum of squares of chunk c. A warp takes a chunk.
__device__ void add_chunks(const float* values, std::size_t n, double* sums) {
  alignas(16) __shared__ float tile[kChunkWarps][kTileRoom];
  const unsigned lane = lane_in_warp();
  const format::SumCut cut = format::sum_cut(n);
  for (std::size_t c = warp_in_grid(); c < cut.count; c += warps_in_grid()) {
    const std::size_t left = n - c * cut.chunk;
    const int count = static_cast<int>(left < cut.chunk ? left : cut.chunk);
    const double sum = chunk_moments(values + c * cut.chunk, count, tile[threadIdx.x / kWarpSize], [](float /*x*/) {});
    if (lane % format::kSumLanes == 0) sums[lane == 0 ? c : cut.count + c] = sum;
  }
}

__global__ void moments_kernel(const float* values, std::size_t n, double* sums) {
  add_chunks(values, n, sums);
}
__global__ void layer_moments_kernel(Layers layers, const float* values, double* sums) {
  const IwpLayer& layer = layers.layers[blockIdx.y];
  add_chunks(values + layer.first, layer.elements, sums + 2 * layer.chunk);
}

/// The sums over all chunks of n values, in every thread of a block of kThreads.
struct Totals {
  double sum, squares;
};
__device__ Totals add_up(const double* sums, std::size_t n) {
  __shared__ ChunkSumsShared<2> room;
  const std::size_t chunks = format::sum_cut(n).count;
  double total[2];
  sums_of_chunks<2>(sums, chunks, 0, chunks, room, total);
  return {total[0], total[1]};
}

__global__ void clip_kernel(const double* sums, std::size_t n, double largest_norm, float* factor) {
  const Totals totals = add_up(sums, n);
  if (threadIdx.x == 0) *factor = format::clip_factor(totals.squares, largest_norm);
}

/// One block per layer: its floor, from the sums of its weights, and the threshold that this step's mask takes unless a
/// later kernel finds another one.
__global__ void prepare_kernel(Layers layers, format::ThresholdPolicy policy, double eps, const double* sums) {
  IwpLayer& layer = layers.layers[blockIdx.x];
  if (layer.elements == 0) return;
  Totals totals{};
  if (layers.weight != nullptr) totals = add_up(sums + 2 * layer.chunk, layer.elements);
  if (threadIdx.x != 0) return;
  if (layers.weight != nullptr)
    layer.floor = format::importance_floor(totals.squares, eps, static_cast<double>(layer.elements));
  layer.used = policy.kind == format::ThresholdPolicy::Kind::fixed ? format::importance_threshold(policy, 0, 0, 1, 0)
                                                                   : layer.threshold;
}

/// Takes the float with the pattern *quantile as this step's threshold, or -1, which every importance exceeds, where
/// `quantile` is null. `keep`: also for the steps to come.
__global__ void quantile_kernel(const std::uint32_t* quantile, bool keep, IwpLayer* layer) {
  if (threadIdx.x != 0) return;
  layer->used = quantile == nullptr ? -1.0f : __uint_as_float(*quantile & 0x7fffffffu);
  if (keep) layer->threshold = layer->used;
}

/// One block per layer: this step's threshold from the sums of the layer's importances.
__global__ void policy_kernel(Layers layers, format::ThresholdPolicy policy, const double* sums) {
  IwpLayer& layer = layers.layers[blockIdx.x];
  if (layer.elements == 0) return;
  const Totals totals = add_up(sums + 2 * layer.chunk, layer.elements);
  if (threadIdx.x != 0) return;
  layer.used =
      format::importance_threshold(policy, totals.sum, totals.squares, static_cast<double>(layer.elements), layer.k);
}

/// One thread per layer moves its threshold by how many elements were marked, unless `still`, and counts from 0 again.
__global__ void steer_kernel(Layers layers, format::ThresholdPolicy policy, bool still, std::uint64_t* positive) {
  for (std::size_t l = thread_in_grid(); l < layers.count; l += threads_in_grid()) {
    IwpLayer& layer = layers.layers[l];
    positive[l] = 0;
    if (layer.elements == 0) continue;
    const double reached = static_cast<double>(layer.marked) / static_cast<double>(layer.elements);
    if (!still) format::steer_threshold(policy, reached, layer.threshold, layer.k);
    layer.marked = 0;
    positive[l] = layer.threshold > 0.0f ? 1 : 0;
  }
}

__device__ float accumulated(float g, float c, float mu, float* u, float a) {
  float step = c * g;
  if (u != nullptr) {
    step = mu * *u + step;
    *u = step;
  }
  return a + step;
}

/// Takes the first 4 * fours elements by fours, the rest one by one. Without clipping `factor` is null, without
/// momentum u is.
__global__ void accumulate_kernel(const float* g, const float* factor, float mu, float* u, float* a, std::size_t n,
                                  std::size_t fours) {
  const float c = factor == nullptr ? 1.0f : *factor;
  for (std::size_t i = thread_in_grid(); i < fours; i += threads_in_grid()) {
    const Four<float> gs = reinterpret_cast<const Four<float>*>(g)[i];
    Four<float> as = reinterpret_cast<Four<float>*>(a)[i];
    Four<float> us{};
    if (u != nullptr) us = reinterpret_cast<Four<float>*>(u)[i];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      as.value[k] = accumulated(gs.value[k], c, mu, u == nullptr ? nullptr : &us.value[k], as.value[k]);
    reinterpret_cast<Four<float>*>(a)[i] = as;
    if (u != nullptr) reinterpret_cast<Four<float>*>(u)[i] = us;
  }
  for (std::size_t i = 4 * fours + thread_in_grid(); i < n; i += threads_in_grid())
    a[i] = accumulated(g[i], c, mu, u == nullptr ? nullptr : u + i, a[i]);
}

__device__ float importance_of(const Layers& layers, const IwpLayer& layer, std::size_t i) {
  return layers.weight == nullptr ? format::importance(layers.accumulated[i], 0.0f, 1.0f)
                                  : format::importance(layers.accumulated[i], layers.weight[i], layer.floor);
}
/// Writes the importances of every layer, each from out[its first element] on.
__global__ void importances_kernel(Layers layers, float* out) {
  const IwpLayer layer = layers.layers[blockIdx.y];
  for (std::size_t i = layer.first + thread_in_grid(); i < layer.first + layer.elements; i += threads_in_grid())
    out[i] = importance_of(layers, layer, i);
}

/// Marks the important elements of all layers in `words`, which are 0 before, and counts them by layer. A warp takes a
/// word at a time. A word that two layers share is updated atomically.
__global__ void mark_kernel(Layers layers, float bernoulli, format::DrawKey key, std::uint32_t* words) {
  const IwpLayer layer = layers.layers[blockIdx.y];
  const std::size_t first = layer.first, last = first + layer.elements;
  const unsigned lane = lane_in_warp();
  std::uint32_t marked = 0;
  for (std::size_t word = first / 32 + warp_in_grid(); layer.elements > 0 && 32 * word < last;
       word += warps_in_grid()) {
    const std::size_t i = 32 * word + lane;
    bool important = false;
    if (i >= first && i < last) {
      const float importance = importance_of(layers, layer, i);
      important = format::is_important(importance, layer.used);
      if (!important && bernoulli > 0.0f) {
        const float draw = format::uniform(format::draw4(key, i / 4).bits[i % 4]);
        important = draw * layer.used < bernoulli * importance;
      }
    }
    const std::uint32_t bits = __ballot_sync(kAllLanes, important);
    if (lane != 0 || bits == 0) continue;
    marked += static_cast<std::uint32_t>(__popc(bits));
    if (32 * word >= first && 32 * word + 32 <= last)
      words[word] = bits;
    else
      atomicOr(&words[word], bits);
  }
  if (marked != 0) atomicAdd(&layers.layers[blockIdx.y].marked, marked);
}

/// A slot begins with the header of a sparse payload without values, whose size counts itself; a MaskHeader has the
/// size of the mask alone.
__global__ void mask_header_kernel(const SparseHeader* slot, MaskHeader* header) {
  if (threadIdx.x == 0) *header = {slot->bytes - sizeof(SparseHeader), slot->count, slot->code};
}
__global__ void slot_header_kernel(const MaskHeader* header, SparseHeader* slot) {
  if (threadIdx.x == 0) *slot = {header->bytes + sizeof(SparseHeader), header->count, header->code};
}

/// For kernels in which one thread works.
Grid one_warp() {
  return {1, kWarpSize};
}

Grid chunk_blocks(std::size_t n) {
  return {blocks_for(format::sum_cut(n).count, kChunkWarps), kChunkThreads};
}

/// Blocks (x, layer) that take `elements` elements each at a time.
Grid layer_blocks(const Layers& layers, std::size_t elements) {
  const std::size_t most_per_layer = 4096 / layers.count + 64;  // because most layers are small
  Grid grid{blocks_for(layers.largest + 31, elements, most_per_layer)};
  grid.y = static_cast<unsigned>(layers.count);
  return grid;
}

void moments_of_layers(Queue<Space::cuda> queue, const Layers& layers, const float* values, double* sums) {
  Grid grid = chunk_blocks(layers.largest);
  grid.y = static_cast<unsigned>(layers.count);
  launch(queue, "moments of layers", layer_moments_kernel, grid, layers, values, sums);
}

}  // namespace

void moments_of_chunks(Queue<Space::cuda> queue, View<const float, Space::cuda> values, double* sums) {
  launch(queue, "moments of chunks", moments_kernel, chunk_blocks(values.size()), values.data(), values.size(), sums);
}
void clip_factor(Queue<Space::cuda> queue, const double* sums, std::size_t n, double largest_norm, float* factor) {
  launch(queue, "clip", clip_kernel, 1, sums, n, largest_norm, factor);
}

}  // namespace cuda

namespace {

/// The steps of IwpReducer on a GPU. Thresholds live on the device; the host knows only whether they are positive.
class GpuSteps {
  using Queue = gradtool::Queue<Space::cuda>;
  template <class T>
  using DeviceView = View<T, Space::cuda>;
  using Floats = DeviceView<float>;
  using Bitmap = DeviceView<std::uint32_t>;

 public:
  struct Workspace {
    Workspace(const GpuSteps& steps, Scratch<Space::cuda>& scratch)
        : select{scratch.take_bytes(steps.select_bytes_)},
          layer_sums{scratch.take<double>(steps.layer_sums_)},
          sparse{scratch.take_bytes(steps.sparse_bytes_)},
          scan{scratch.take_bytes(steps.scan_bytes_)},
          gradient_sums{scratch.take<double>(cuda::moment_sums(steps.shape_.n))},
          count{scratch.take<std::uint32_t>(1)},
          clip_factor{scratch.take<float>(1)} {}
    DeviceView<std::byte> select;      ///< of cuda::Select
    DeviceView<double> layer_sums;     ///< cuda::moment_sums of every layer
    DeviceView<std::byte> sparse;      ///< of cuda::write_sparse and mark_sparse
    DeviceView<std::byte> scan;        ///< of cuda::scan_marks
    DeviceView<double> gradient_sums;  ///< cuda::moment_sums of the gradient
    DeviceView<std::uint32_t> count;   ///< elements of this rank's mask
    DeviceView<float> clip_factor;
  };

  GpuSteps(const MaskPolicy& policy, std::vector<IwpLayer> layers, const IndexCoding& coding, std::size_t n)
      : policy_{policy},
        fresh_{std::move(layers)},
        layers_{fresh_.size() * sizeof(IwpLayer)},
        needs_quantile_(fresh_.size()),
        shape_{.n = n, .most = n, .automatic = coding.automatic(), .fixed = coding.fixed(), .value_bits = 0},
        sparse_bytes_{cuda::sparse_scratch_bytes(shape_)},
        scan_bytes_{cuda::mark_scratch_bytes(n)} {
    expect_valid(fresh_.size() < 65536, "iwp: a unit of more than 65535 tensors");
    for (const IwpLayer& layer : fresh_) {
      if (layer.elements == 0) continue;
      largest_ = std::max<std::size_t>(largest_, layer.elements);
      select_bytes_ = std::max(select_bytes_, cuda::Select::scratch_bytes(layer.elements));
      layer_sums_ += cuda::moment_sums(layer.elements);
    }
  }

  void reset(Queue queue) {
    cuda::copy_elements(queue, layers_.as<IwpLayer>(), HostView<const IwpLayer>{fresh_.data(), fresh_.size()});
    for (std::size_t l = 0; l < fresh_.size(); ++l) needs_quantile_[l] = fresh_[l].elements > 0;
  }
  void upload(Queue queue, HostView<const std::uint32_t> words, Bitmap out) const {
    cuda::copy_elements(queue, out, words);
  }
  void copy(Queue queue, DeviceView<const std::uint32_t> words, Bitmap out) const {
    cuda::copy_elements(queue, out, words);
  }

  void accumulate(Queue queue, DeviceView<const float> gradient, double largest_norm, float mu, Floats u, Floats a,
                  const Workspace& work) const {
    const std::size_t n = gradient.size();
    float* factor = nullptr;
    if (largest_norm > 0.0) {
      factor = work.clip_factor.data();
      cuda::moments_of_chunks(queue, gradient, work.gradient_sums.data());
      cuda::clip_factor(queue, work.gradient_sums.data(), n, largest_norm, factor);
    }
    if (n == 0) return;
    float* momentum = u.empty() ? nullptr : u.data();
    const bool aligned =
        cuda::aligned_to(gradient.data(), 16) && cuda::aligned_to(a.data(), 16) && cuda::aligned_to(momentum, 16);
    cuda::launch(queue, "accumulate", cuda::accumulate_kernel, cuda::blocks_for(n, 4 * cuda::kThreads), gradient.data(),
                 factor, mu, momentum, a.data(), n, aligned ? n / 4 : 0);
  }

  void mark(Queue queue, const MaskInput<Space::cuda>& input, Floats importances, Bitmap mask,
            DeviceView<std::uint64_t> positive, const Workspace& work) const {
    cuda::fill(queue, as_writable_bytes(mask), 0);
    const std::size_t count = fresh_.size();
    if (count == 0) return;
    const cuda::Layers layers{layers_.as<IwpLayer>().data(), count, largest_, input.accumulated.data(),
                              input.weight.empty() ? nullptr : input.weight.data()};
    const auto blocks = static_cast<unsigned>(count);
    double* sums = work.layer_sums.data();
    if (layers.weight != nullptr) cuda::moments_of_layers(queue, layers, layers.weight, sums);
    cuda::launch(queue, "floors", cuda::prepare_kernel, blocks, layers, policy_.threshold, policy_.eps, sums);
    if (largest_ > 0) {
      find_thresholds(queue, layers, input.warmup_density, importances, work);
      cuda::launch(queue, "mark", cuda::mark_kernel, cuda::layer_blocks(layers, 4 * cuda::kThreads), layers,
                   policy_.bernoulli, input.key, mask.data());
    }
    cuda::launch(queue, "steer", cuda::steer_kernel, cuda::blocks_for(count, cuda::kThreads), layers, policy_.threshold,
                 input.warmup_density > 0.0, positive.data());
  }
  void learn(std::span<const std::uint64_t> positive) {
    for (std::size_t l = 0; l < fresh_.size(); ++l) needs_quantile_[l] = fresh_[l].elements > 0 && positive[l] == 0;
  }

  void encode_mask(Queue queue, Bitmap mask, DeviceView<std::uint32_t> positions, DeviceView<std::byte> slot,
                   DeviceView<MaskHeader> header, const Workspace& work) const {
    if (shape_.n == 0) {
      cuda::write_empty_sparse(queue, shape_, slot.data());
    } else {
      cuda::mark_positions(queue, cuda::scan_marks(queue, mask, shape_.n, work.scan), positions.data(),
                           work.count.data());
      cuda::write_sparse(queue, shape_, positions.data(), work.count.data(), slot.data(), work.sparse);
    }
    cuda::launch(queue, "header of a mask", cuda::mask_header_kernel, cuda::one_warp(),
                 reinterpret_cast<const SparseHeader*>(slot.data()), header.data());
  }
  void merge_mask(Queue queue, const MaskHeader& header, DeviceView<const MaskHeader> device_header,
                  DeviceView<std::byte> slot, DeviceView<std::uint32_t> /*positions*/, Bitmap marks,
                  const Workspace& work) const {
    if (shape_.n == 0) return;
    cuda::launch(queue, "header of a slot", cuda::slot_header_kernel, cuda::one_warp(), device_header.data(),
                 reinterpret_cast<SparseHeader*>(slot.data()));
    cuda::mark_sparse(queue, shape_, slot.first(sizeof(SparseHeader) + header.bytes), marks.data(), work.sparse);
  }

  std::size_t take_marked(Queue queue, Bitmap marks, DeviceView<const std::uint32_t> dense, Floats a, Floats u,
                          Floats values, const Workspace& work) {
    if (shape_.n == 0) return 0;
    scanned_ = cuda::scan_marks(queue, marks, shape_.n, work.scan);
    cuda::take_marked(queue, scanned_, a.data(), u.empty() ? nullptr : u.data(), dense.data(), values.data());
    total_.fetch(queue, as_bytes(DeviceView<const std::uint64_t>{scanned_.total(), 1}));
    return static_cast<std::size_t>(total_.wait(queue)[0]);
  }
  void place_marked(Queue queue, Bitmap /*marks*/, DeviceView<const float> values, float factor, Floats out,
                    const Workspace& /*work*/) const {
    if (shape_.n > 0) cuda::place_marked(queue, scanned_, values.data(), factor, out.data());
  }

 private:
  /// Sets IwpLayer::used where it is not the threshold that was kept.
  void find_thresholds(Queue queue, const cuda::Layers& layers, double warmup_density, Floats importances,
                       const Workspace& work) const {
    const MaskPolicy::Source source = policy_.source(warmup_density);
    const bool keep = source == MaskPolicy::Source::kept_or_quantile;
    if (source == MaskPolicy::Source::constant) return;
    if (keep && std::find(needs_quantile_.begin(), needs_quantile_.end(), true) == needs_quantile_.end()) return;
    cuda::launch(queue, "importances", cuda::importances_kernel, cuda::layer_blocks(layers, 4 * cuda::kThreads), layers,
                 importances.data());
    if (source == MaskPolicy::Source::sums) {
      cuda::moments_of_layers(queue, layers, importances.data(), work.layer_sums.data());
      cuda::launch(queue, "thresholds", cuda::policy_kernel, static_cast<unsigned>(layers.count), layers,
                   policy_.threshold, work.layer_sums.data());
      return;
    }
    const double density = keep ? policy_.threshold.density : warmup_density;
    for (std::size_t l = 0; l < fresh_.size(); ++l) {
      const IwpLayer& layer = fresh_[l];
      if (layer.elements == 0 || (keep && !needs_quantile_[l])) continue;
      const DeviceView<const float> own = importances.part(layer.first, layer.elements);
      const cuda::Select select{queue, own, work.select};
      const std::size_t k = MaskPolicy::elements_at(density, layer.elements);
      if (k > 0) select.largest(k + 1);
      cuda::launch(queue, "quantile", cuda::quantile_kernel, cuda::one_warp(), k > 0 ? select.threshold() : nullptr,
                   keep, layers.layers + l);
    }
  }

  const MaskPolicy& policy_;
  std::vector<IwpLayer> fresh_;  ///< as before the first step
  cuda::DeviceBuffer layers_;
  std::vector<bool> needs_quantile_;  ///< per layer: it has a mask, but no positive threshold to keep
  cuda::SparseShape shape_;
  std::size_t sparse_bytes_, scan_bytes_;
  std::size_t select_bytes_ = 0, layer_sums_ = 0, largest_ = 0;
  ReadBack<Space::cuda> total_{1};
  cuda::MarkScan scanned_;  ///< of what is sent in this step; it lies in the workspace
};

}  // namespace

extern constinit const GpuFactories iwp_gpu{.reducer =
                                                make_method_reducer<Space::cuda, IwpReducer<Space::cuda, GpuSteps>>};

}  // namespace gradtool
