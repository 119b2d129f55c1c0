// Classifies images with a saved model (docs/resnet.md).
//
//     build/release/examples/predict --model resnet20.muster --data cifar10:FOLDER
#include <algorithm>
#include <cstdio>
#include <string>

#include <muster/muster.hpp>

#include "../command_line.hpp"
#include "data.hpp"
#include "evaluation.hpp"
#include "processor.hpp"
#include "saved_model.hpp"

namespace {

struct options {
  std::string model, data = "cifar-like:5000";
  std::string test;
  std::uint64_t seed = 1;
  std::size_t show = 0;
};

/// Prints the classes of the first test images.
void show(nn::network<float>& net, const std::vector<std::string>& names, muster::loader& from, std::size_t count) {
  from.next_epoch();
  const auto name_of = [&](std::size_t number) { return number < names.size() ? "  " + names[number] : ""; };
  std::printf("image  label  class\n");
  for (std::size_t at = 0; at < count;) {
    const auto batch = from.next({0, 1});
    if (!batch) break;
    const auto logits = net.forward(batch.values<float>(), {.images = batch.samples.size(), .training = false});
    for (std::size_t i = 0; i < batch.samples.size() && at < count; ++i, ++at) {
      const auto row = logits.subspan(i * net.classes(), net.classes());
      const auto found = static_cast<std::size_t>(std::max_element(row.begin(), row.end()) - row.begin());
      std::printf("%5zu  %5.0f  %5zu%s\n", at, static_cast<double>(batch.labels[i]), found, name_of(found).c_str());
    }
    from.commit();
  }
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  CLI::App app{"Evaluates a model that a program of the examples has saved on the images held out of its data.",
               "predict"};
  app.set_help_flag();  // run_main handles --help.
  app.add_option("--model", chosen.model, "model file that --save wrote")->required();
  app.add_option("--data", chosen.data, "images, as in the training program")->capture_default_str();
  app.add_option("--test", chosen.test, "likewise");
  muster::add_number(app, "--seed", chosen.seed, examples::any_seed, "seed of generated data");
  muster::add_number(app, "--show", chosen.show, {0, 1'000'000'000}, "number of images whose classes are printed");
  const auto body = [&](muster::context& context) {
    examples::parse(app, argc, argv);
    context.run([&](muster::group& world) {
      const nn::flush_denormals flush;
      const auto model = images::load_model(chosen.model);
      auto data = images::open_images(chosen.data, chosen.test, chosen.seed, 0, 0,
                                      static_cast<std::uint32_t>(model.description.input.height));
      data.preparation = model.description.preparation;  // As in the model's training.
      if (!model.description.class_names.empty())
        data.test = muster::with_classes(data.test, model.description.class_names);
      if (model.description.input != nn::extent{data.height, data.width, data.channels}) {
        throw muster::configuration_error(
            "the images do not fit the model (their shapes differ); give the data on which "
            "it was trained");
      }
      auto test = images::test_loader(data, muster::batch(128, {.per_rank = true}));
      const auto found = images::evaluate(world, images::predictor_of(*model.net), model.net->classes(), test);
      if (world.rank() != 0) return;
      const double all = static_cast<double>(std::max<std::uint64_t>(found.images, 1));
      std::printf("%s on %llu images of %s\n", model.description.name.c_str(),
                  static_cast<unsigned long long>(found.images), std::string(test.name()).c_str());
      std::printf("loss            %.4f\ntop-1 accuracy  %.4f\ntop-5 accuracy  %.4f\n", found.loss / all,
                  static_cast<double>(found.top1) / all, static_cast<double>(found.top5) / all);
      if (chosen.show > 0) show(*model.net, model.description.class_names, test, chosen.show);
    });
  };
  return muster::run_main(argc, argv, body, {.help = [&] { return app.help(); }});
}
