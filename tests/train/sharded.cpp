// A rank of a training on shards in its own folder, FOLDER/host-N, the first folder that no other rank has taken.
// Before each step's reduction it writes a line "epoch step generation: ids" into FOLDER/used-N. At the end, if
// ranks print the same parameter, it prints the parameter.
//
// With a SOURCE, in a job with fixed ranks, rank 0 reads the source, and first cuts and sends the shards. With a source
// that grows (every=N) all ranks read the source, and there are no shards.
//
//     test_sharded FOLDER EPOCHS MILLISECONDS_OF_A_STEP [SOURCE [BATCH]]
#include <muster/muster.hpp>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

namespace {

int take_host(const std::string& folder) {
  for (int host = 0;; ++host) {
    if (std::filesystem::create_directory(folder + "/taken-" + std::to_string(host))) return host;
  }
}

void note(const std::string& file, const muster::step& current, const muster::minibatch& batch) {
  std::ostringstream line;
  line << current.epoch() << ' ' << current.number() << ' ' << current.generation() << ':';
  for (const auto id : batch.samples) line << ' ' << id;
  line << '\n';
  std::ofstream(file, std::ios::app) << line.str() << std::flush;  // in a single write, which SIGKILL does not split
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    const std::string folder(argv[1]);
    const std::string host = std::to_string(take_host(folder));
    const std::string source_text = argc > 4 ? argv[4] : "";
    const bool grows = source_text.find("every=") != std::string::npos;
    if (!source_text.empty() && !grows) {
      std::optional<muster::data::any_record_source> source;
      if (context.world().rank() == 0) source = muster::open_source(source_text);
      muster::place_shards(context.world(), source, folder + "/host-" + host);
    }
    auto loader = muster::open_source(grows ? source_text : "shards:" + folder + "/host-" + host + "?local") |
                  muster::shuffle(1) | muster::batch(argc > 5 ? std::stoull(argv[5]) : 24) | muster::prefetch(2);
    muster::arena arena(context, {{"mean", {1}}});
    muster::sgd optimizer(arena);
    muster::training training(context, arena, optimizer, loader);
    const auto epochs = std::stoull(argv[2]);
    const std::chrono::milliseconds pause(std::stoll(argv[3]));
    training.run({.epochs = epochs, .log = nullptr}, [&](muster::training_step& step) {
      const auto batch = step.next(loader);
      note(folder + "/used-" + host, step, batch);
      std::this_thread::sleep_for(pause);
      step.backward(batch, [](const muster::minibatch& part, muster::backward_pass& pass) {
        float sum = 0;  // the gradient of half the squared distances from the values, summed
        for (const float value : part.values<float>()) sum += pass.parameter(0)[0] - value;
        pass.gradient(0)[0] = sum;
      });
      step.update(optimizer, 0.1);
    });
    std::printf("parameter %.6g\n", static_cast<double>(arena.parameters()[0]));
  });
}
