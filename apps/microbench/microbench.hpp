#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {

/// The inputs of one encode of the micro-benchmark. Side inputs are empty where there are none.
struct Feed {
  std::vector<float> gradient, second_moment, weight;
};

/// Heavy-tailed values of both signs, about 1e-3: the product of a bell and a lognormal, like a real gradient; with
/// second moments as of four micro-batches that differ. `turn` chooses the random draws.
[[nodiscard]] Feed synthetic_feed(std::size_t n, std::uint32_t turn);

/// The gradients of a capture, worker after worker, step after step from `turn` on, repeated until n are there; with
/// second moments and weights where the file has them for every tensor.
[[nodiscard]] Feed captured_feed(const std::string& path, std::size_t n, std::size_t turn);

/// Tensors to benchmark on: those of a capture, or the convolutions of ResNet-20 (CIFAR-10) with their norms, again and
/// again while they fit into n elements. What is left is one more tensor, of one dimension.
[[nodiscard]] Layout benchmark_layout(const std::string& file, std::size_t n);

/// "codec" or "codec:key=value,...", as benchmarks are named.
[[nodiscard]] std::string full_name(const CodecSpec& spec);

/// The bytes that the codec must read and write to encode n elements, as it declares (MemoryPasses), where no cache
/// holds the gradient and the side inputs are there; `residual`: with error feedback around it, as in a reducer.
[[nodiscard]] double encode_floor(const CodecSpec& spec, std::size_t n, double payload, bool residual = false);
/// The bytes that Codec::decode_add must read and write; 0 for a codec whose decoding touches the output only where
/// there are values, because that depends on where they lie.
[[nodiscard]] double decode_floor(const CodecSpec& spec, std::size_t n, double payload);

/// Options of the benchmarks on the CPU. Benchmarks keep references to it.
struct HostSetting {
  std::string file;          ///< capture to take gradients and tensors from; empty: synthetic ones
  std::size_t elements = 0;  ///< of the gradient
  const Layout& layout;      ///< of the same size
  TaskPool& pool;            ///< that codecs compute on
  double copy_rate = 0.0;    ///< bytes a second of memcpy, with the same threads and as many bytes
  std::size_t settling = 0;  ///< steps that a method between ranks makes before the first that is measured
};

/// Registers <codec>/encode and <codec>/decode for every codec of `specs`. For a method that only exists between ranks
/// they are its phases of a reduce on one rank; with gradiveq come the same products by BLAS alone,
/// gradiveq_products_by_blas/encode and /decode, and with fft FFTW alone, fftw/forward+inverse. Counters: raw = raw
/// fp32 bytes a second; of_memcpy = raw over memcpy's bytes a second; of_floor = what the codec's least traffic
/// (encode_floor, decode_floor) would take at the rate of memcpy, over what it took (copying B bytes moves 2 B).
void register_host(const std::vector<CodecSpec>& specs, const HostSetting& setting);

/// Registers fftw/forward+inverse: FFTW alone, there and back, on chunks of 65536 as the fft codec cuts them, with
/// plans that FFTW measured (FFTW_MEASURE; the planning is not timed). `count` sets the counters of a state. Only in
/// builds with FFTW.
void register_fftw(const std::vector<float>& x, TaskPool& pool, const std::function<void(benchmark::State&)>& count);

// The following need a build with CUDA, and throw Fault::unavailable without a GPU. Times are those of CUDA events
// (device_timer.hpp); counter spread is that of five batches.

/// Registers encode and decode of every codec of `specs` that has a CUDA version, on GPU 0 and `elements` synthetic
/// elements. Two inputs take turns. Counters:
/// raw = raw fp32 bytes a second; of_copy = what the codec's least traffic would take at the rate of a
/// device-to-device copy, over what it took (copying B bytes moves 2 B). Returns the copy's rate, bytes a second.
double register_cuda(const std::vector<CodecSpec>& specs, std::size_t elements);

/// Registers the copy rate once more, so that who registers it last sees whether the card slowed down: its raw is the
/// rate.
void register_device_copy(std::size_t elements);

/// Registers, on GPU 0 and some `elements` synthetic elements: whole steps of the methods of `specs` that exist between
/// ranks, of one rank alone (on one square matrix, gradiveq on 3 x 3 convolutions of 256 by 256), and for powersgd and
/// gradiveq their matrix products alone by cuBLAS; for fft, cuFFT's transforms there and back alone. The quotient of
/// the two is what such a method takes over its library. Counter of_copy as register_cuda, of the `copy_rate` that it
/// returned.
void register_cuda_products(const std::vector<CodecSpec>& specs, std::size_t elements, double copy_rate);

/// Registers encode and decode of the 161 tensors of a ResNet-50 on GPU 0: one by one, in batches
/// (Codec::encode_each) and fused into one, for the codecs of `specs` whose CUDA version treats tensors alike. Counter
/// times_fused: over the median of the fused form, measured beside it.
void register_cuda_tensors(const std::vector<CodecSpec>& specs);

}  // namespace gradtool
