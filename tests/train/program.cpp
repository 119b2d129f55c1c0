// A complete program on one page, which muster must make easy to write, under any launcher and without one. Its model
// is small and its images are generated here. All other parts are as in a real program.
#include <muster/muster.hpp>

#include <cstdio>
#include <cstdlib>

#include "../data/files.hpp"
#include "train/small_model.hpp"

namespace {

using namespace muster::literals;

// Writes files in the format of CIFAR-10, whose classes differ in the colours and places of bright pixels.
void draw_images(const temporary_folder& folder, std::size_t records) {
  muster::random_stream random(4);
  for (const char* const name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                                 "data_batch_5.bin", "test_batch.bin"}) {
    std::string text;
    for (std::size_t k = 0; k < records; ++k) {
      const auto label = random.below(10);
      text += static_cast<char>(label);
      for (std::uint64_t at = 0; at < 3072; ++at) {
        const auto channel = at / 1024;
        const bool bright = (label >> channel & 1) != 0 || (channel == 0 && label >= 8 && at % 1024 >= 512);
        const auto light = bright ? 150u : 40u;
        text += static_cast<char>(light + random.below(40));
      }
    }
    folder.write(name, text);
  }
}

struct outcome {
  double accuracy = 0;
  std::uint64_t digest = 0;
};

outcome train(muster::context& context, const std::string& dir, const std::string& checkpoints, std::uint64_t epochs) {
  muster::timeline timeline(context);
  auto loader = muster::data::open_cifar10(dir) | muster::shuffle(1) | muster::batch(64) |
                muster::augment(muster::crop_flip) | muster::prefetch(4);  // 64 is the global batch
  test::small_model model(20, 3072, 10);
  muster::arena arena(context, model.shapes());
  model.initialise(arena, 7);
  muster::sgd optimizer(arena, {.momentum = 0.9f, .nesterov = true, .decay = 1e-4f});
  muster::tracker tracker(context.world(), {.goal = {"accuracy", 0.80}});
  const muster::schedule rate = muster::parse_schedule("step:0.002,epochs=4,factor=0.5,warmup=1,scale=2");
  muster::training training(context, {.bucket = 64_KiB}, arena, optimizer, loader, model.batch_norm(), tracker);
  training.run({.epochs = epochs, .checkpoint = checkpoints, .log = nullptr}, [&](muster::training_step& step) {
    const auto batch = step.next(loader);
    step.backward(batch, [&](const auto& part, auto& pass) { model.forward_backward(part, pass); });
    step.update(optimizer, rate);
    if (std::getenv("STEPS_CHANGE_PARAMETERS") != nullptr) arena.parameters()[0] += 1;
    const auto samples = static_cast<double>(batch.samples.size());
    step.report("loss", model.loss() / samples, samples);
    step.report("val_accuracy", model.hits() / samples, samples);
  });
  training.evaluate([&](muster::step& current) { timeline.write(current.group()); });
  return {tracker.epochs().back().metrics.val_accuracy,
          muster::digest()  // of everything but the times in the tracker
              .add(training.state().steps())
              .add(loader.cursor().position)
              .add(std::as_bytes(arena.parameters()))
              .add(std::as_bytes(arena.state("velocity")))
              .value()};
}

void require_learnt(const outcome& result) {
  if (!(result.accuracy > 0.80)) throw muster::mismatch_error("the training has learnt too little");
}

void print_result(const outcome& result) {
  std::printf("accuracy %.3f, state %016llx\n", result.accuracy, static_cast<unsigned long long>(result.digest));
}

// Requires that a training that is interrupted and resumed equals an uninterrupted training, and that all ranks agree.
void compare(muster::context& context, muster::group& world, const std::string& images) {
  const temporary_folder folder;  // all ranks use rank 0's
  char shared[256] = {};
  std::snprintf(shared, sizeof shared, "%s", (folder / "").c_str());
  muster::broadcast(world, std::span(reinterpret_cast<std::uint8_t*>(shared), sizeof shared), 0);
  const auto straight = train(context, images, std::string(shared) + "straight", 6);
  (void)train(context, images, std::string(shared) + "resumed", 2);
  const auto resumed = train(context, images, std::string(shared) + "resumed", 6);
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(world.size()));
  muster::allgather(world, std::span(&resumed.digest, 1), digests);
  for (const auto digest : digests) {
    if (digest != straight.digest) throw muster::mismatch_error("a rank, or a run that was resumed, ended elsewhere");
  }
  if (world.rank() == 0) print_result(straight);
  require_learnt(straight);
  muster::barrier(world);  // before the folder is removed
}

}  // namespace

// Without arguments the program compares trainings with each other. With a folder of checkpoints and a number of epochs
// it runs one training, whose ranks may leave and join.
int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    context.run([&](muster::group& world) {
      const temporary_folder images;  // every rank generates the same images
      draw_images(images, 100);
      if (argc < 3 || argv[1][0] == '-') return compare(context, world, images / "");
      const auto done = train(context, images / "", argv[1], static_cast<std::uint64_t>(std::atoi(argv[2])));
      print_result(done);
      require_learnt(done);
    });
  });
}
