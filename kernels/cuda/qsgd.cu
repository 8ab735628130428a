#include "kernels/cuda/qsgd.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/qsgd_bits.hpp"
#include "kernels/cuda/unit_launch.hpp"
#include "kernels/schedule/qsgd_bucket.hpp"

namespace gradtool::cuda {
namespace {

constexpr unsigned kWarps = kThreads / schedule::kLanes;

using Piece = schedule::QsgdPiece;

__global__ void norm_kernel(law::QsgdLayout layout, const float* gradient, bool l2, bool aligned, float* norms) {
  const DeviceWarp warp;
  for (std::size_t b = warp_in_grid(); b < layout.buckets(); b += warps_in_grid()) {
    const std::size_t first = b * layout.bucket;
    const std::size_t count = layout.n - first < layout.bucket ? layout.n - first : layout.bucket;
    const float norm = schedule::bucket_norm(warp, gradient + first, count, l2, aligned);
    warp.each([&](std::uint32_t lane) {
      if (lane == 0) norms[b] = norm;
    });
  }
}

std::size_t blocks_for_pieces(const law::QsgdLayout& layout) {
  return blocks_for(Piece::pieces(layout), kWarps);
}

GT_HD constexpr law::QsgdLayout with_elements(law::QsgdLayout layout, std::size_t n) {
  layout.n = n;
  return layout;
}

/// `Whole`: a bucket is one piece, and its norm is found here, while the bucket is in the cache; or in registers, if it
/// has the usual size.
template <std::uint32_t Bits, bool Whole>
struct Encode {
  static constexpr unsigned kResident = 2;

  law::QsgdLayout like;
  bool l2;
  law::DrawKey key;

  std::size_t blocks(std::size_t n) const { return blocks_for_pieces(with_elements(like, n)); }
  __device__ void run(const Unit& unit, std::uint32_t index, const Place& place) const {
    __shared__ __align__(16) std::uint32_t codes[kWarps][schedule::kWindow];
    const DeviceWarp warp;
    const law::QsgdLayout layout = with_elements(like, unit.n);
    const auto* gradient = static_cast<const float*>(unit.from);
    const bool aligned = aligned_to(gradient, 16);
    auto* norms = static_cast<float*>(unit.to);
    auto* words = reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(unit.to) + layout.codes_offset());
    law::DrawKey mine = key;
    mine.tensor += index;
    std::uint32_t* room = codes[threadIdx.x / schedule::kLanes];
    const std::size_t pieces = Piece::pieces(layout);
    for (std::size_t p = place.warp(); p < pieces; p += place.warps()) {
      const Piece piece{layout, p};
      const float* x = gradient + piece.first;
      float norm;
      if constexpr (Whole) {
        if (aligned && piece.count == schedule::kHeldBucket) {
          const auto held = schedule::load_windows<schedule::kHeldBucket / schedule::kWindow>(warp, x);
          norm = schedule::bucket_norm(warp, held, l2, room);
          warp.each([&](std::uint32_t lane) {
            if (lane == 0) norms[piece.bucket] = norm;
          });
          schedule::encode_held<law::QsgdElement<Bits>, true>(warp, held, piece.first,
                                                              law::Qsgd::with_bits(Bits).encode_factor(norm), mine,
                                                              room, words + piece.first_word);
          continue;
        }
        norm = schedule::bucket_norm(warp, x, piece.count, l2, aligned);
        warp.each([&](std::uint32_t lane) {
          if (lane == 0) norms[piece.bucket] = norm;
        });
      } else {
        norm = norms[piece.bucket];
      }
      schedule::encode_elements<law::QsgdElement<Bits>, true>(warp, x, piece.first, piece.count, aligned,
                                                              law::Qsgd::with_bits(Bits).encode_factor(norm), mine,
                                                              room, words + piece.first_word);
    }
  }
};

template <std::uint32_t Bits>
struct Decode {
  law::QsgdLayout like;
  float weight;

  std::size_t blocks(std::size_t n) const { return blocks_for_pieces(with_elements(like, n)); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    const DeviceWarp warp;
    const law::QsgdLayout layout = with_elements(like, unit.n);
    const auto* norms = static_cast<const float*>(unit.from);
    const auto* words =
        reinterpret_cast<const std::uint32_t*>(static_cast<const std::byte*>(unit.from) + layout.codes_offset());
    auto* out = static_cast<float*>(unit.to);
    const std::size_t pieces = Piece::pieces(layout);
    for (std::size_t p = place.warp(); p < pieces; p += place.warps()) {
      const Piece piece{layout, p};
      const float scale = law::Qsgd::with_bits(Bits).decode_factor(norms[piece.bucket]);
      schedule::decode_elements<law::QsgdElement<Bits>>(
          warp, words + piece.first_word, piece.count, [scale](std::size_t) { return scale; }, weight,
          out + piece.first, aligned_to(out, 16));
    }
  }
};

/// Elements are their lane's for every payload, so nobody waits in between.
template <std::uint32_t Bits>
__global__ void decode_kernel(law::QsgdLayout layout, const __grid_constant__ Payloads payloads, float weight,
                              float* out, bool aligned) {
  const DeviceWarp warp;
  const std::size_t pieces = Piece::pieces(layout);
  for (std::size_t p = warp_in_grid(); p < pieces; p += warps_in_grid()) {
    const Piece piece{layout, p};
    for (std::size_t at = 0; at < piece.count; at += kAddedAtOnce) {
      const std::size_t left = piece.count - at;
      const std::size_t word = piece.first_word + at / law::kPackGroup * Bits;
      for (unsigned i = 0; i < payloads.count; ++i) {
        const auto* norms = reinterpret_cast<const float*>(payloads.at[i]);
        const auto* words = reinterpret_cast<const std::uint32_t*>(payloads.at[i] + layout.codes_offset());
        const float unit = law::Qsgd::with_bits(Bits).decode_factor(norms[piece.bucket]);
        schedule::decode_elements<law::QsgdElement<Bits>>(
            warp, words + word, left < kAddedAtOnce ? left : kAddedAtOnce, [unit](std::size_t) { return unit; }, weight,
            out + piece.first + at, aligned);
      }
    }
  }
}

}  // namespace

void qsgd_norms(Queue<Space::cuda> queue, const law::QsgdLayout& layout, const float* gradient, bool l2, float* norms) {
  launch(queue, "qsgd norm", norm_kernel, blocks_for(layout.buckets(), kWarps), layout, gradient, l2,
         aligned_to(gradient, 16), norms);
}

bool qsgd_by_pieces(const law::QsgdLayout& like) {
  return Piece::per_bucket(like) > 1;
}

void qsgd_encode(Queue<Space::cuda> queue, const law::QsgdLayout& like, std::span<const Unit> units, bool l2,
                 const law::DrawKey& key) {
  const bool whole = !qsgd_by_pieces(like);
  if (!whole && !units.empty() && units.front().n > 0) {
    expects(units.size() == 1, "buckets of several pieces are encoded unit by unit");
    const Unit& unit = units.front();
    qsgd_norms(queue, with_elements(like, unit.n), static_cast<const float*>(unit.from), l2,
               static_cast<float*>(unit.to));
  }
  with_bits(like.bits, [&]<std::uint32_t Bits>() {
    if (whole)
      launch_units(queue, "qsgd encode", Encode<Bits, true>{like, l2, key}, units);
    else
      launch_units(queue, "qsgd encode", Encode<Bits, false>{like, l2, key}, units);
  });
}

void qsgd_decode_add(Queue<Space::cuda> queue, const law::QsgdLayout& like, std::span<const Unit> units, float weight) {
  with_bits(like.bits, [&]<std::uint32_t Bits>() {
    launch_units(queue, "qsgd decode", Decode<Bits>{like, weight}, units);
  });
}

void qsgd_decode_add(Queue<Space::cuda> queue, const law::QsgdLayout& layout, const Payloads& payloads, float weight,
                     float* out) {
  if (layout.n == 0) return;
  with_bits(layout.bits, [&]<std::uint32_t Bits>() {
    launch(queue, "qsgd decode", decode_kernel<Bits>, static_cast<unsigned>(blocks_for_pieces(layout)), layout,
           payloads, weight, out, aligned_to(out, 16));
  });
}

}  // namespace gradtool::cuda
