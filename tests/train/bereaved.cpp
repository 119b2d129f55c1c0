// A rank of a training whose ranks are killed during their backward passes: tests/train/bereaved.py kills them and
// reads the survivors' output. The rank prints "trains" when it trains. When another rank has failed it prints "alone
// KIND same" if its state is the state after the last committed step, else "alone KIND changed".
#include <muster/muster.hpp>

#include <cstdio>

namespace {

void print_line(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context& context) -> int {
    auto& world = context.world();
    constexpr std::size_t layers = 40, width = 20000;
    std::vector<muster::tensor_shape> shapes;
    for (std::size_t k = 0; k < layers; ++k) shapes.push_back({"layer " + std::to_string(k), {width}});
    muster::arena arena(context, shapes);
    muster::gradient_sync sync(arena, {.bucket = 256u << 10});
    muster::sgd optimizer(arena, {.momentum = 0.5f});
    std::vector<float> statistics(100);
    muster::state state{arena, optimizer, muster::restored_values{"statistics", std::span(statistics)}};
    auto session = muster::fixed_session(world);
    std::uint64_t committed = state.digest();
    try {
      for (std::uint64_t step = 1;; ++step) {
        session.run(state,
                    [&](muster::step& current) {
                      auto backward = sync.begin(current.group());
                      backward.add_samples(1);
                      for (std::size_t tensor = layers; tensor-- > 0;) {
                        const auto gradient = backward.gradient(tensor);
                        const auto parameter = backward.parameter(tensor);
                        for (std::size_t i = 0; i < gradient.size(); ++i)
                          gradient[i] =
                              parameter[i] - static_cast<float>(i % 7 + static_cast<std::size_t>(world.rank()));
                        statistics[tensor] += 1.0f;
                        backward.ready(tensor);
                      }
                      backward.wait();
                      optimizer.apply(0.01);
                    },
                    {.steps = step});
        committed = state.digest();
        if (step == 3) print_line("trains");
      }
    } catch (const muster::error& failure) {
      const bool of_peer = failure.kind() == muster::error_kind::peer_failure;
      print_line(std::string("alone ") + (of_peer ? "peer_failure" : failure.what()) +
                 (state.digest() == committed ? " same" : " changed"));
      throw;
    }
  });
}
