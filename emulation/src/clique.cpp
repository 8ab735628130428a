#include "src/clique.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/float_bits.hpp"

namespace emulation {
namespace {

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
      return 4;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}

[[noreturn]] void wrong(const char* what) {
  std::fprintf(stderr, "emulated NCCL: %s\n", what);
  std::abort();
}

template <class T, class Add>
void add_each(std::byte* sum, const std::byte* addend, std::size_t count, Add add) {
  for (std::size_t i = 0; i < count; ++i) {
    T a;
    T b;
    std::memcpy(&a, sum + i * sizeof(T), sizeof(T));
    std::memcpy(&b, addend + i * sizeof(T), sizeof(T));
    a = add(a, b);
    std::memcpy(sum + i * sizeof(T), &a, sizeof(T));
  }
}
void add(std::byte* sum, const std::byte* addend, std::size_t count, ncclDataType_t type) {
  namespace format = gradtool::format;
  switch (type) {
    case ncclFloat32:
      return add_each<float>(sum, addend, count, [](float a, float b) { return a + b; });
    case ncclFloat64:
      return add_each<double>(sum, addend, count, [](double a, double b) { return a + b; });
    case ncclInt32:
      return add_each<int>(sum, addend, count, [](int a, int b) { return a + b; });
    case ncclFloat16:
      return add_each<std::uint16_t>(sum, addend, count, [](std::uint16_t a, std::uint16_t b) {
        return format::f16_from_f32(format::f32_from_f16(a) + format::f32_from_f16(b));
      });
    case ncclBfloat16:
      return add_each<std::uint16_t>(sum, addend, count, [](std::uint16_t a, std::uint16_t b) {
        return format::bf16_from_f32(format::f32_from_bf16(a) + format::f32_from_bf16(b));
      });
    default:
      wrong("a sum of a type that it cannot add");
  }
}

}  // namespace

void Clique::post(int rank, Call& call) {
  if (call.kind == Call::Kind::send || call.kind == Call::Kind::receive) {
    const bool sends = call.kind == Call::Kind::send;
    const std::pair pair = sends ? std::pair{rank, call.peer} : std::pair{call.peer, rank};
    (sends ? sends_ : receives_)[pair].push_back(&call);
    auto& from = sends_[pair];
    auto& to = receives_[pair];
    if (from.empty() || to.empty()) return;
    if (from.front()->count != to.front()->count || from.front()->type != to.front()->type)
      wrong("a receive of another size than its send");
    std::memmove(to.front()->in, from.front()->out, to.front()->count * size_of(call.type));
    from.front()->done = to.front()->done = true;
    from.pop_front();
    to.pop_front();
    return;
  }
  collectives_[static_cast<std::size_t>(rank)].push_back(&call);
  if (std::ranges::none_of(collectives_, [](const auto& calls) { return calls.empty(); })) collective();
}

void Clique::collective() {
  std::vector<Call*> calls;
  for (auto& of_rank : collectives_) {
    calls.push_back(of_rank.front());
    of_rank.pop_front();
  }
  const Call& first = *calls.front();
  for (const Call* call : calls) {
    if (call->kind != first.kind || call->count != first.count || call->type != first.type || call->peer != first.peer)
      wrong("ranks call different collectives");
  }
  const std::size_t bytes = first.count * size_of(first.type);
  const std::size_t ranks = calls.size();
  // All results are computed before any is written, because a rank may send and receive in the same memory.
  std::vector<std::byte> result;
  switch (first.kind) {
    case Call::Kind::all_gather:
      for (const Call* call : calls) result.insert(result.end(), call->out, call->out + bytes);
      for (const Call* call : calls) std::copy(result.begin(), result.end(), call->in);
      break;
    case Call::Kind::broadcast: {
      const Call& root = *calls[static_cast<std::size_t>(first.peer)];
      result.assign(root.out, root.out + bytes);
      for (const Call* call : calls) std::copy(result.begin(), result.end(), call->in);
      break;
    }
    default: {
      const std::size_t all = first.kind == Call::Kind::reduce_scatter ? ranks * first.count : first.count;
      const std::size_t all_bytes = all * size_of(first.type);
      result.assign(first.out, first.out + all_bytes);
      for (std::size_t r = 1; r < ranks; ++r) add(result.data(), calls[r]->out, all, first.type);
      for (std::size_t r = 0; r < ranks; ++r) {
        const auto* part = result.data() + (first.kind == Call::Kind::reduce_scatter ? r * bytes : 0);
        if (first.kind != Call::Kind::reduce || static_cast<int>(r) == first.peer)
          std::copy(part, part + bytes, calls[r]->in);
      }
    }
  }
  for (Call* call : calls) call->done = true;
}

}  // namespace emulation
