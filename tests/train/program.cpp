// The whole in one page: the program that the parts of muster have to make easy to write, under any launcher and none.
// Its model is small and its images are drawn here; what is around them is what a real one has.
#include <muster/muster.hpp>

#include <cstdio>
#include <filesystem>

#include "../data/files.hpp"
#include "train/small_model.hpp"

namespace {

using namespace muster::literals;

// Files as those of CIFAR-10, whose classes differ in which colours are bright, and where.
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

double train(muster::context& context, const std::string& dir, const std::string& checkpoints, std::uint64_t epochs,
             std::uint64_t& digest) {
  muster::timeline timeline(context);
  auto loader = muster::open_cifar10(dir) | muster::shuffle(1) | muster::batch(64) |
                muster::augment(muster::crop_flip) | muster::prefetch(4);  // 64 is the global batch
  test::small_model model(20, 3072, 10);
  muster::arena arena(context, model.shapes());
  model.initialise(arena, 7);
  muster::gradient_sync sync(arena, {.bucket = 64_KiB, .codec = muster::no_codec});
  muster::sgd optimizer(arena, {.momentum = 0.9f, .nesterov = true, .decay = 1e-4f});
  muster::tracker tracker(context.world(), {.goal = {"accuracy", 0.80}});
  muster::checkpoint store(checkpoints, {.keep = 3});
  const muster::schedule schedule = muster::parse_schedule("step:0.002,epochs=4,factor=0.5,warmup=1,scale=2");

  muster::state state{arena, optimizer, model.batch_norm(), tracker, loader.cursor()};
#ifdef MUSTER_HAS_TCP  // which elastic sessions are a part of
  auto session = context.elastic() ? muster::elastic::session(context) : muster::fixed_session(context);
#else
  auto session = muster::fixed_session(context);
#endif
  if (!context.elastic()) store.load(session.group(), state);  // an elastic job's ranks are known when it runs
  double accuracy = 0;
  double hits = 0, loss = 0;
  const auto one_step = [&](muster::step& step) {
    auto batch = loader.next(step.slice());
    auto backward = sync.begin(step.group());
    model.forward_backward(batch, backward);
    backward.wait();
    optimizer.apply(schedule(step));
    tracker.add_samples(batch.samples.size());
    hits += model.hits();
    loss += model.loss();
  };
  const auto run = [&] {
    auto batches = tracker.batches();
    return session.run(state, one_step, {.epochs = epochs});
  };
  while (run()) {
    double sums[2] = {loss, hits};
    session.evaluate(state, [&](muster::step& now) { muster::allreduce(now.group(), sums, muster::sum); });
    const auto samples = static_cast<double>(loader.cursor().size);
    accuracy = sums[1] / samples;
    tracker.end_epoch(session.group(), {.train_loss = sums[0] / samples, .val_accuracy = accuracy});
    store.save(session.group(), state, accuracy);
    hits = loss = 0;
  }
  digest = muster::digest()  // of all but the times in the tracker
               .add(state.steps())
               .add(loader.cursor().position)
               .add(std::as_bytes(arena.parameters()))
               .add(std::as_bytes(arena.state("velocity")))
               .value();
  timeline.write(session.group());
  return tracker.epochs().back().metrics.val_accuracy;
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context& context) {
    context.run([&](muster::group& world) {
      // Every rank has images of its own, the same; the checkpoints are in one folder, as rank 0 says.
      const temporary_folder images;
      draw_images(images, 100);
      const temporary_folder folder;
      char shared[256] = {};
      std::snprintf(shared, sizeof shared, "%s", (folder / "").c_str());
      muster::broadcast(world, std::span(reinterpret_cast<std::uint8_t*>(shared), sizeof shared), 0);
      if (context.elastic()) {  // one session a process, and what it knows is with its ranks
        std::uint64_t state = 0;
        const double accuracy = train(context, images / "", folder / "elastic", 6, state);
        std::printf("accuracy %.3f\n", accuracy);
        if (!(accuracy > 0.80)) throw muster::mismatch_error("the training has learnt too little");
        return;
      }
      std::uint64_t straight = 0, resumed = 0;
      const double accuracy = train(context, images / "", std::string(shared) + "straight", 6, straight);
      (void)train(context, images / "", std::string(shared) + "resumed", 2, resumed);
      (void)train(context, images / "", std::string(shared) + "resumed", 6, resumed);
      std::vector<std::uint64_t> digests(static_cast<std::size_t>(world.size()));
      muster::allgather(world, std::span(&resumed, 1), digests);
      for (const auto digest : digests) {
        if (digest != straight) throw muster::mismatch_error("a rank, or a run that was resumed, ended elsewhere");
      }
      if (world.rank() == 0)
        std::printf("accuracy %.3f, state %016llx\n", accuracy, static_cast<unsigned long long>(straight));
      if (!(accuracy > 0.80)) throw muster::mismatch_error("the training has learnt too little");
      muster::barrier(world);  // before the folder goes
    });
  });
}
