#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "lib/comm/launch.hpp"

namespace gradtool {
namespace {

std::optional<int> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  const std::string_view digits{text};
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

}  // namespace

MpiPlace mpi_place() {
  // What each launcher sets: Open MPI, MPICH and Intel MPI (PMI), MVAPICH2, Slurm's srun. SLURM_NTASKS would not do: it
  // is also set in a batch script that no launcher started, while SLURM_STEP_NUM_TASKS belongs to a step of srun.
  constexpr const char* kVariables[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                           {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  for (const auto& [rank_name, size_name] : kVariables) {
    const auto rank = number_in(rank_name);
    const auto size = number_in(size_name);
    if (rank && size && *rank >= 0 && *rank < *size) return {*rank, *size};
  }
  return {};
}

}  // namespace gradtool
