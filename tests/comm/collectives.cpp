#include "tests/comm/collectives.hpp"

#include "tests/comm/all_to_all_cases.hpp"
#include "tests/comm/contract_cases.hpp"
#include "tests/comm/move_cases.hpp"
#include "tests/comm/reduce_cases.hpp"
#include "tests/comm/sum_cases.hpp"

namespace gradtool::test {

#define GT_CASE(name) \
  { #name, name < S> }
template <Space S>
std::vector<Case<S>> collective_cases() {
  return {GT_CASE(sums_alike_on_every_path),
          GT_CASE(agrees_in_every_bit_on_every_path),
          GT_CASE(scatters_the_bits_of_the_ring),
          GT_CASE(doubles_in_the_stated_order),
          GT_CASE(concentrates_in_the_stated_order),
          GT_CASE(counts_every_path_by_its_formula),
          GT_CASE(rounds_at_every_hop),
          GT_CASE(lets_infinities_and_nans_through),
          GT_CASE(gathers_equal_parts),
          GT_CASE(gathers_at_every_root),
          GT_CASE(gathers_unequal_parts),
          GT_CASE(broadcasts_from_every_root),
          GT_CASE(exchanges_one_sided_and_with_itself),
          GT_CASE(exchanges_all_to_all),
          GT_CASE(exchanges_unequal_parts_all_to_all),
          GT_CASE(sends_to_every_other_rank),
          GT_CASE(survives_random_patterns),
          GT_CASE(agrees_on_maxima),
          GT_CASE(counts_bytes_by_the_formulas),
          GT_CASE(counts_unequal_gathers_and_exchanges),
          GT_CASE(works_on_levels),
          GT_CASE(refuses_what_breaks_the_contract)};
}

template std::vector<Case<Space::host>> collective_cases<Space::host>();
#ifdef GT_WITH_CUDA
template std::vector<Case<Space::cuda>> collective_cases<Space::cuda>();
#endif

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& one : collective_cases<Space::host>()) names.emplace_back(one.name);
  return names;
}

}  // namespace gradtool::test
