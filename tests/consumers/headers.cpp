// A program that compiles muster itself: it needs only -I and threads. It fits a line to points in memory or in a
// source, with the number of ranks and the launch mode of its flags:
//   headers [SOURCE [FOLDER OF CHECKPOINTS [EPOCHS]]]
//   headers store HOST:PORT                             serves the store of an elastic job until a signal ends it
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/muster.hpp>

namespace {

muster::data::any_record_source points_in_memory() {
  auto points = muster::data::dataset_builder::dense("points", 1000, 1);
  for (std::size_t k = 0; k < 1000; ++k) {
    points.row(k)[0] = static_cast<float>(k) / 500 - 1;
    points.labels()[k] = 2 * points.row(k)[0] - 1;
  }
  return points.finish();
}

void copy(std::span<const float> from, std::span<float> to) { to[0] = from[0]; }

bool is_near(float a, float b) { return a > b - 0.01f && a < b + 0.01f; }

void fit(muster::context& context, muster::group& world, const char* source, const char* folder, std::uint64_t epochs) {
  auto loader = (source == nullptr ? points_in_memory() : muster::open_source(source)) | muster::shuffle(1) |
                muster::batch(20) | muster::map(muster::each<float, float>({1}, copy)) |
                muster::cache({.memory = 1 << 20}) | muster::prefetch(2);
  muster::arena arena(context, {{"slope", {1}}, {"offset", {1}}});
  const auto slope = arena.parameter(0), offset = arena.parameter(1);
  auto optimizer = muster::make_optimizer(arena, context.configuration());
  muster::training training(context, arena, optimizer, loader);
  bool has_begun = false;
  training.run({.epochs = epochs, .checkpoint = folder, .log = nullptr}, [&](muster::training_step& step) {
    if (!std::exchange(has_begun, true)) std::printf("begun\n"), std::fflush(stdout);
    step.backward(step.next(loader), [&](const muster::minibatch& part, muster::backward_pass& pass) {
      pass.clear();
      for (std::size_t k = 0; k < part.samples.size(); ++k) {
        const float x = part.values<float>()[k], error = slope[0] * x + offset[0] - part.labels[k];
        pass.gradient(0)[0] += error * x;
        pass.gradient(1)[0] += error;
      }
    });
    step.update(optimizer, 0.1);
  });
  if (!training.is_root()) return;
  if (!is_near(slope[0], 2) || !is_near(offset[0], -1))
    throw muster::error(muster::error_kind::other, "it has not learnt the line");
  std::printf("%d ranks over %s have learnt the line\n", world.size(), context.transport_name().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && argv[1] == std::string_view("store")) {
    const muster::store_server server(argv[2], "");
    for (;;) ::pause();
  }
  const auto body = [&](muster::context& context, muster::group& world) {
    fit(context, world, argc > 1 ? argv[1] : nullptr, argc > 2 ? argv[2] : "",
        argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 10);
  };
  return muster::run_main(argc, argv, body, {.help = [] { return "headers [SOURCE [FOLDER [EPOCHS]]]\n"; }});
}
