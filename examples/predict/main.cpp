// Classifies images with a saved model, or with the mean of several (docs/resnet.md).
//
//     build/release/examples/predict --model resnet20.muster --data cifar10:FOLDER
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <muster/muster.hpp>

#include "../command_line.hpp"
#include "data.hpp"
#include "evaluation.hpp"
#include "processor.hpp"
#include "saved_model.hpp"

namespace {

struct options {
  std::vector<std::string> models;
  std::string data = "cifar-like:5000";
  std::string test;
  std::string preparation, save;
  std::uint64_t seed = 1;
  std::size_t show = 0;
};

/// The mean of the probabilities of some models, as `serve --combine mean` computes it.
class ensemble {
 public:
  /// A `preparation` replaces the preparation of every model, unless it is empty. Throws muster::configuration_error
  /// for models with other inputs, preparations or classes.
  ensemble(const std::vector<std::string>& paths, const std::string& preparation) {
    for (const auto& path : paths) {
      models_.push_back(images::load_model(path));
      if (!preparation.empty()) models_.back().description.preparation = muster::prepare(preparation);
      const auto &first = models_.front().description, &model = models_.back().description;
      if (model.input != first.input || model.classes != first.classes || model.class_names != first.class_names ||
          model.preparation.text != first.preparation.text) {
        throw muster::configuration_error(path + " and " + paths.front() +
                                          " have no mean (their inputs or classes differ); name models of one task");
      }
    }
  }

  [[nodiscard]] const images::model_description& description() const noexcept { return models_.front().description; }
  /// Writes the first model.
  void save(const std::string& path) { images::save_model(path, description(), *models_.front().net); }
  [[nodiscard]] std::string name() const {
    if (models_.size() == 1) return description().name;
    std::string names = "the mean of";
    for (const auto& model : models_) names += (&model == &models_.front() ? " " : ", ") + model.description.name;
    return names;
  }

  /// Returns logits. The logits of several models are the logarithms of their mean probabilities.
  std::span<const float> operator()(std::span<const float> images, std::size_t count) {
    if (models_.size() == 1) return models_.front().net->forward(images, {.images = count, .training = false});
    const std::size_t size = count * description().classes;
    mean_.assign(size, 0.0f);
    part_.resize(size);
    for (auto& model : models_) {
      const auto logits = model.net->forward(images, {.images = count, .training = false});
      nn::softmax(logits, description().classes, part_);
      for (std::size_t k = 0; k < size; ++k) mean_[k] += part_[k];
    }
    for (float& value : mean_)
      value = std::log(std::max(value / static_cast<float>(models_.size()), std::numeric_limits<float>::min()));
    return mean_;
  }

 private:
  std::vector<images::loaded_model> models_;
  std::vector<float> mean_, part_;
};

/// Throws muster::configuration_error unless prepared images are the input of the network.
void require_input(const images::model_description& model, const muster::record_schema& prepared) {
  const auto& input = model.input;
  const std::vector<std::uint64_t> shape{input.height, input.width, input.channels};
  if (prepared.fields.empty() || prepared.fields[0].shape == shape) return;
  throw muster::configuration_error("the images do not fit the model (they are " + to_string(prepared) + " after '" +
                                    model.preparation.text + "', and its input is " + std::to_string(input.height) +
                                    "x" + std::to_string(input.width) + "x" + std::to_string(input.channels) +
                                    "); give the data on which it was trained, or --preparation");
}

/// Prints the classes of the first test images.
void show(ensemble& model, muster::loader& from, std::size_t count) {
  const auto& names = model.description().class_names;
  const std::size_t classes = model.description().classes;
  from.next_epoch();
  const auto name_of = [&](std::size_t number) { return number < names.size() ? "  " + names[number] : ""; };
  std::printf("image  label  class\n");
  for (std::size_t at = 0; at < count;) {
    const auto batch = from.next({0, 1});
    if (!batch) break;
    const auto logits = model(batch.values<float>(), batch.samples.size());
    for (std::size_t i = 0; i < batch.samples.size() && at < count; ++i, ++at) {
      const auto row = logits.subspan(i * classes, classes);
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
  app.add_option("--model", chosen.models, "model file that --save wrote; several: the mean of their probabilities")
      ->required();
  app.add_option("--data", chosen.data, "images, as in the training program")->capture_default_str();
  app.add_option("--test", chosen.test, "likewise");
  app.add_option("--preparation", chosen.preparation,
                 "prepare images by these steps, not as in the model's training, such as "
                 "'jpeg:28x28,resize=0|greyscale|normalise' (docs/data.md)")
      ->type_name("STEPS");
  app.add_option("--save", chosen.save, "write the model with the steps of --preparation to this file")
      ->type_name("FILE")
      ->needs("--preparation");
  muster::add_number(app, "--seed", chosen.seed, examples::any_seed, "seed of generated data");
  muster::add_number(app, "--show", chosen.show, {0, 1'000'000'000}, "number of images whose classes are printed");
  const auto body = [&](muster::context& context) {
    examples::parse(app, argc, argv);
    if (!chosen.save.empty() && chosen.models.size() != 1)
      examples::refuse("--save writes one model (" + std::to_string(chosen.models.size()) + " are given)",
                       "give one --model");
    if (!chosen.save.empty() && context.launcher().rank == 0) muster::require_writable(chosen.save);
    context.run([&](muster::group& world) {
      const nn::flush_denormals flush;
      ensemble model(chosen.models, chosen.preparation);
      const auto& description = model.description();
      auto data = images::open_images(chosen.data, chosen.test, chosen.seed, 0, 0,
                                      static_cast<std::uint32_t>(description.input.height));
      data.preparation = description.preparation;
      if (!description.class_names.empty()) data.test = muster::with_classes(data.test, description.class_names);
      auto test = images::test_loader(data, muster::batch(128, {.per_rank = true}));
      require_input(description, test.schema());
      const auto found = images::evaluate(world, std::ref(model), description.classes, test);
      if (world.rank() != 0) return;
      const double all = static_cast<double>(std::max<std::uint64_t>(found.images, 1));
      std::printf("%s on %llu images of %s\n", model.name().c_str(), static_cast<unsigned long long>(found.images),
                  std::string(test.name()).c_str());
      std::printf("loss            %.4f\ntop-1 accuracy  %.4f\ntop-5 accuracy  %.4f\n", found.loss / all,
                  static_cast<double>(found.top1) / all, static_cast<double>(found.top5) / all);
      if (chosen.show > 0) show(model, test, chosen.show);
      if (!chosen.save.empty()) model.save(chosen.save);
    });
  };
  return muster::run_main(argc, argv, body, {.help = [&] { return app.help(); }});
}
