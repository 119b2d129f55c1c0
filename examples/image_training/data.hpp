// The data of a run, by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/data/image_steps.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/record_source.hpp>

#include "../pipeline.hpp"

namespace images {

/// Images to train on and others to validate with; immutable, shared by ranks that are threads.
struct image_data {
  muster::any_record_source train;
  muster::any_record_source test;
  std::size_t height = 0, width = 0, channels = 0;
  std::size_t classes = 10;
  std::vector<std::string> class_names{};  ///< of the training images; empty: not known
  bool scaled_alone = false;               ///< to [0, 1], not by a mean and a deviation too
  muster::prepare preparation{};           ///< of an image that is evaluated
};

/// Opens
///
///     cifar10:FOLDER, mnist:FOLDER    their training and their test images
///     cifar-like:N                    N generated images, and a fifth as many to validate with
///     idx:IMAGES,LABELS?test-images=A&test-labels=B
///                                     both sets; without the options every tenth image is held out to validate with
///     another source of images        `test` names those to validate with; JPEG files (images:FOLDER, or records of
///                                     such) become `side` x `side` pixels
///
/// and keeps the first `limit` training images alone, unless it is 0; the share `holdout` of these takes the place of
/// the images to validate with. Throws muster::configuration_error for data without a `test` and a `holdout`,
/// muster::data_error for test images of another size or of a class that the training images lack, and what
/// `muster::open_source` does.
[[nodiscard]] image_data open_images(const std::string& specification, const std::string& test, std::uint64_t seed,
                                     std::size_t limit = 0, double holdout = 0, std::uint32_t side = 224,
                                     bool scaled_alone = false);

/// Training batches of normalised floats, shuffled; with crops and flips if `augmented`.
[[nodiscard]] muster::loader training_loader(const image_data& from, std::uint64_t seed, muster::batch batches,
                                             bool augmented, const examples::stages& stages);
/// The test images in their order, prepared as `from` says.
[[nodiscard]] muster::loader test_loader(const image_data& from, muster::batch batches,
                                         const examples::stages& stages = {});

/// Collective. Throws muster::data_error at every rank when they opened different images.
void require_same_everywhere(muster::group& world, const image_data& data);

}  // namespace images
