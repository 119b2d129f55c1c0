#include "data.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <vector>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/core/error.hpp>
#include <muster/core/spec.hpp>
#include <muster/data/classes.hpp>
#include <muster/data/image.hpp>
#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>

#include "../command_line.hpp"
#include "image_table.hpp"

namespace images {
namespace {

/// Mean and deviation that are customary for MNIST.
constexpr float grey_mean = 0.1307f, grey_deviation = 0.3081f;
/// Mean and deviation that are customary for ImageNet.
constexpr muster::image_options of_photographs{.mean = {0.485f, 0.456f, 0.406f}, .deviation = {0.229f, 0.224f, 0.225f}};

muster::image_options normalisation(const image_data& of) {
  if (of.scaled_alone) return {.mean = {0, 0, 0}, .deviation = {1, 1, 1}};
  if (of.channels == 1) return {.mean = {grey_mean}, .deviation = {grey_deviation, 1, 1}};
  if (of.train.schema().form == muster::record_form::bytes) return of_photographs;
  return {.mean = muster::cifar10_mean, .deviation = muster::cifar10_deviation};
}

muster::jpeg_options jpeg_of(const image_data& of) {
  const auto side = static_cast<std::uint32_t>(of.height);
  return {.height = side, .width = side, .resize = side * 8 / 7};
}

/// Returns the largest label plus one.
std::size_t classes_of(const muster::any_record_source& source) {
  std::vector<muster::sample_id> ids(source.size());
  std::iota(ids.begin(), ids.end(), muster::sample_id{0});
  std::vector<float> labels(ids.size() * source.schema().labels.size());
  source.read(ids, {{}, labels});
  return labels.empty() ? 1 : static_cast<std::size_t>(std::ranges::max(labels)) + 1;
}

image_data pair_of(muster::any_record_source train, muster::any_record_source test, std::size_t side = 0) {
  image_data images{std::move(train), std::move(test)};
  const auto& fields = images.train.schema().fields;
  const auto& of_test = images.test.schema().fields;
  if (!fields.empty() && !of_test.empty() && fields.front().shape != of_test.front().shape) {
    throw muster::data_error({std::string(images.test.name())},
                             "the test images have another size than the training images (" +
                                 muster::data::to_string(images.test.schema()) + " beside " +
                                 muster::data::to_string(images.train.schema()) + "); give images of one size");
  }
  const bool are_files = images.train.schema().form == muster::record_form::bytes && side != 0;
  images.class_names = images.train.schema().classes;
  if (!images.class_names.empty()) {
    images.classes = images.class_names.size();
    images.test = muster::with_classes(images.test, images.class_names);
  } else {
    if (are_files) images.classes = classes_of(images.train);
    images.test = muster::with_classes(images.test, images.classes);
  }
  images.train = muster::with_classes(images.train, images.classes);
  if (are_files) {
    images.height = images.width = side;
    images.channels = 3;
    return images;
  }
  const auto& shape = images.train.schema().fields.at(0).shape;
  if (shape.size() != 2 && shape.size() != 3) {
    throw muster::data_error({std::string(images.train.name())},
                             "the records are not images (a record has " + std::to_string(shape.size()) +
                                 " dimensions, and an image two or three); choose other data");
  }
  const bool grey = shape.size() == 2;
  images.channels = grey ? 1 : shape.at(0);
  images.height = shape.at(grey ? 0 : 1);
  images.width = shape.at(grey ? 1 : 2);
  return images;
}

// `holds_out` states that other images will replace the test images.
image_data open_kind(const std::string& specification, const std::string& test, std::uint64_t seed, bool holds_out,
                     std::size_t side) {
  if (!test.empty()) return pair_of(muster::open_source(specification), muster::open_source(test), side);
  const auto colon = specification.find(':');
  const std::string kind = specification.substr(0, colon);
  const std::string rest = colon == std::string::npos ? "" : specification.substr(colon + 1);
  const bool has_test = kind == "idx" && rest.find("?test-") != std::string::npos;
  if (has_test || kind == "cifar10" || kind == "mnist") {
    return pair_of(muster::open_source(specification),
                   muster::open_source(specification + (has_test ? "&" : "?") + "split=test"));
  }
  if (kind == "cifar-like") {
    muster::spec_reader spec("data", specification);
    const std::size_t count =
        spec.has_value() ? spec.read_whole("number of images", spec.value("images"), 10, 1'000'000) : 5000;
    spec.finish("cifar-like:5000");
    return pair_of(make_cifar_like(count, seed), make_cifar_like(std::max<std::size_t>(count / 5, 1), seed, count));
  }
  const auto all = muster::open_source(specification);
  if (kind == "idx") {
    return pair_of(image_table(all, rest, [](muster::sample_id id) { return id % 10 != 9; }),
                   image_table(all, rest + " (held out)", [](muster::sample_id id) { return id % 10 == 9; }));
  }
  if (holds_out) return pair_of(all, all);
  throw muster::configuration_error("--data " + specification +
                                    " cannot be used alone (it has no images to validate with); give --test SOURCE or "
                                    "--holdout");
}

}  // namespace

image_data open_images(const std::string& specification, const std::string& test, std::uint64_t seed, std::size_t limit,
                       double holdout, std::uint32_t side, bool scaled_alone, bool grey) {
  auto images = open_kind(specification, test, seed, holdout > 0, side);
  images.scaled_alone = scaled_alone;
  const bool are_files = images.train.schema().form == muster::record_form::bytes;
  if (grey && !are_files)
    throw muster::configuration_error("--grey cannot be used with " + specification +
                                      " (it has no JPEG files); leave it out");
  if (grey) images.channels = 1;
  images.preparation = muster::prepare(normalisation(images));
  if (grey) images.preparation = muster::prepare("greyscale") | images.preparation;
  if (are_files) images.preparation = muster::prepare(jpeg_of(images)) | images.preparation;
  if (images.train.schema().form == muster::record_form::bytes && (limit != 0 || holdout > 0)) {
    throw muster::configuration_error(
        "--limit and --holdout cannot be used with JPEG files (they keep images in memory); make a smaller folder");
  }
  if (limit != 0 && limit < images.train.size()) {
    images.train =
        image_table(images.train, std::string(images.train.name()) + " (the first " + std::to_string(limit) + ")",
                    [&](muster::sample_id id) { return id < limit; });
  }
  if (holdout > 0) {
    const auto all = images.train;
    examples::require_held_out(all.size(), holdout);
    const auto held = [&](muster::sample_id id) { return examples::is_held_out(id, holdout); };
    images.train = image_table(all, std::string(all.name()), std::not_fn(held));
    images.test = image_table(all, std::string(all.name()) + " (held out)", held);
  }
  return images;
}

muster::loader training_loader(const image_data& from, std::uint64_t seed, muster::batch batches, bool augmented,
                               const examples::stages& stages) {
  const auto normal = normalisation(from);
  auto read = from.train | muster::shuffle(seed) | batches;
  if (!augmented) return stages.keep(std::move(read) | from.preparation) | stages.ahead();
  if (from.train.schema().form == muster::record_form::bytes) {
    auto windows = stages.keep(std::move(read)) | muster::augment(muster::random_jpeg_crop(jpeg_of(from)));
    if (from.channels == 1) windows = std::move(windows) | muster::map(muster::greyscale());
    return std::move(windows) | muster::map(muster::normalise(normal)) | stages.ahead();
  }
  const muster::augment_options chance{.pad = 4, .flip = from.channels == 3};
  return stages.keep(std::move(read)) | muster::augment(muster::image_augmentation(chance, normal)) | stages.ahead();
}

muster::loader test_loader(const image_data& from, muster::batch batches, const examples::stages& stages) {
  return stages.keep(from.test | batches | from.preparation);
}

void require_same_everywhere(muster::group& world, const image_data& data) {
  const std::array<std::uint64_t, 2> mine = {data.train.digest(), data.test.digest()};
  std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(world.size()));
  muster::allgather(world, std::span(mine), std::span(all));
  for (std::size_t k = 2; k < all.size(); ++k) {
    if (all[k] == all[k % 2]) continue;
    throw muster::data_error({std::string((k % 2 == 0 ? data.train : data.test).name())},
                             "the images are not the same at every rank (the images of rank 0 and rank " +
                                 std::to_string(k / 2) + " differ); give all ranks the same data");
  }
}

}  // namespace images
