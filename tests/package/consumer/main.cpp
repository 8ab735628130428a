// A stranger's program: averages four ranks' vectors through a codec, using the installed package.
#include <cstdio>
#include <vector>

#include "lib/codecs/reducer.hpp"
#include "lib/comm/launch.hpp"

int main() {
  using namespace gradtool;
  const CodecSpec spec = parse_codec("qsgd:bits=8");
  double first = 0.0;
  run_threads(4, [&](Communicator<Space::host>& comm) {
    std::vector<float> gradient(1000, static_cast<float>(comm.rank()));
    const Layout layout = Layout::flat(gradient.size());
    auto reducer =
        make_reducer<Space::host>(spec, make_codec<Space::host>(spec, layout), Scheme::automatic, layout, 4, {});
    Arena<Space::host> arena{reducer->workspace_bytes()};
    NoClock<Space::host> clock;
    reducer->reduce(comm, {}, {gradient.data(), gradient.size()}, {}, {}, arena.take_bytes(reducer->workspace_bytes()),
                    clock);
    if (comm.rank() == 0) first = static_cast<double>(gradient[0]);
  });
  std::printf("mean of 0, 1, 2, 3 is %g\n", first);
  return first > 1.49 && first < 1.51 ? 0 : 1;
}
