// The data of a run, selected by name.
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

/// Images for training and other images for validation; immutable, shared by ranks that are threads.
struct image_data {
  muster::any_record_source train;
  muster::any_record_source test;
  std::size_t height = 0, width = 0, channels = 0;
  std::size_t classes = 10;
  std::vector<std::string> class_names{};  ///< Classes of the training images; empty: not known.
  bool scaled_alone = false;               ///< Scaled to [0, 1], without normalisation by mean and deviation.
  muster::prepare preparation{};           ///< Preparation of an image for evaluation.
};

/// Opens
///
///       cifar10:FOLDER, mnist:FOLDER    their training and their test images
///       cifar-like:N                    N generated images, and a fifth as many for validation
///       idx:IMAGES,LABELS?test-images=A&test-labels=B
///                                       both sets; without the options every tenth image is held out for validation
///       another source of images        `test` names the validation images; JPEG files (images:FOLDER, or records with
///                                       JPEG files) are scaled to `side` x `side` pixels, with one channel if `grey`
///
/// and keeps only the first `limit` training images, unless `limit` is 0. The share `holdout` then replaces
/// the validation images. Throws muster::configuration_error for data without a `test` and a `holdout`, and for `grey`
/// without JPEG files,
/// muster::data_error for test images of another size or with a class that the training images lack, and the exceptions
/// of `muster::open_source`.
[[nodiscard]] image_data open_images(const std::string& specification, const std::string& test, std::uint64_t seed,
                                     std::size_t limit = 0, double holdout = 0, std::uint32_t side = 224,
                                     bool scaled_alone = false, bool grey = false);

/// Returns training batches of normalised floats, shuffled; with crops and flips if `augmented`.
[[nodiscard]] muster::loader training_loader(const image_data& from, std::uint64_t seed, muster::batch batches,
                                             bool augmented, const examples::stages& stages);
/// Returns the test images in their order, prepared as `from` specifies.
[[nodiscard]] muster::loader test_loader(const image_data& from, muster::batch batches,
                                         const examples::stages& stages = {});

/// Compares the ranks' images. Collective. Throws muster::data_error at every rank when ranks opened different images.
void require_same_everywhere(muster::group& world, const image_data& data);

}  // namespace images
