#include "lib/reduce/signsgd.hpp"

#include "kernels/cuda/vote.hpp"
#include "lib/reduce/cuda_reducers.hpp"

namespace gradtool {

void move_momentum(Queue<Space::cuda> queue, View<const float, Space::cuda> g, float beta, View<float, Space::cuda> m) {
  cuda::move_momentum(queue, g, beta, m);
}
void vote(Queue<Space::cuda> queue, const law::Votes& votes) {
  cuda::vote(queue, votes);
}
void divide(Queue<Space::cuda> queue, View<float, Space::cuda> view, float by) {
  cuda::divide(queue, view, by);
}

std::unique_ptr<Reducer<Space::cuda>> make_cuda_signsgd_reducer(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<SignSgdReducer<Space::cuda>>(setup);
}

}  // namespace gradtool
