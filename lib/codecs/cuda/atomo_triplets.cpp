#include "lib/codecs/cuda/atomo_triplets.hpp"

#include <algorithm>

#include "kernels/cuda/scratch_pieces.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kWidenBytes = std::size_t{16} << 20;  ///< of a matrix in float64 at a time

/// Of the longer side that is widened at a time.
std::size_t width_of(std::size_t order, std::size_t length) {
  return std::min(length, std::max<std::size_t>(64, kWidenBytes / (8 * order)));
}

}  // namespace

/// Pieces of the scratch.
struct AtomoTriplets::Work {
  Work(const AtomoTriplets& of, const Libraries& with, View<std::byte, Space::cuda> scratch) {
    cuda::ScratchPieces pieces{scratch};
    pieces.take(widened, of.widened_);
    eigen = pieces.take(with.eigen_bytes);
    blas = pieces.take(with.blas_bytes);
    bytes = pieces.bytes();
  }
  double* widened;
  View<std::byte, Space::cuda> eigen, blas;
  std::size_t bytes;
};

AtomoTriplets::AtomoTriplets(const AtomoParts& format) {
  for (const AtomoTensor& part : format.parts) {
    if (!part.factored()) continue;
    values_ += part.order();
    vectors_ += part.order() * part.order();
    orders_.push_back(part.order());
    widened_ = std::max(widened_, part.order() * width_of(part.order(), std::max(part.rows, part.columns)));
  }
}

void AtomoTriplets::make() const {
  libraries_.make([this] {
    Libraries with{.blas = cuda::Blas::of_this_thread(), .eigen = cuda::DeviceEigen::of_this_thread()};
    with.blas_bytes = with.blas->work_bytes();
    for (const std::size_t order : orders_)
      with.eigen_bytes = std::max(with.eigen_bytes, with.eigen->work_bytes(order));
    return with;
  });
}

std::size_t AtomoTriplets::scratch_bytes() const {
  return Work{*this, libraries_.get(), {}}.bytes;
}

void AtomoTriplets::decompose(Queue<Space::cuda> queue, const cuda::AtomoPart& part, const float* gradient,
                              const cuda::AtomoRoom& room, int* solved, View<std::byte, Space::cuda> scratch) const {
  const Libraries& with = libraries_.get();
  const Work at{*this, with, scratch};
  const std::size_t order = std::min(part.rows, part.columns);
  const std::size_t length = std::max(part.rows, part.columns);
  const std::size_t most = width_of(order, length);
  double* gram = room.vectors + part.vectors_at;
  for (std::size_t first = 0; first < length; first += most) {
    const std::size_t width = std::min(most, length - first);
    cuda::widen(queue, part, gradient, first, width, at.widened);
    with.blas->multiply(queue, at.blas, order, order, width, 1.0, {at.widened, width, true}, {at.widened, width},
                        first == 0 ? 0.0 : 1.0, gram, order);
  }
  cuda::guard_gram(queue, gram, order, room.failed + part.factored);
  with.eigen->solve(queue, order, gram, room.eigenvalues + part.values_at, solved + part.factored, at.eigen);
}

}  // namespace gradtool
