#pragma once

#include <muster/data/sources/cifar.hpp>

#include <filesystem>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/data/sources/raw.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline constexpr std::uint64_t image_bytes = 3 * 32 * 32;

// Returns the files of a split. The files are in the folder `path`, or in the subfolder to which the archive unpacks.
// A `path` that is no folder is itself the only file.
inline std::vector<std::string> files_of(const std::string& path, const std::string& archive_folder,
                                         const std::vector<std::string>& names) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return {path};
  fs::path folder = path;
  if (!fs::exists(folder / names.front(), ignored) && fs::is_directory(folder / archive_folder, ignored)) {
    folder /= archive_folder;
  }
  std::vector<std::string> files;
  for (const std::string& name : names) files.push_back((folder / name).string());
  return files;
}

// Opens records with one byte for each label and an image. Label k must be less than classes[k].
inline fixed_records open_images(std::string name, const std::vector<std::string>& paths,
                                 const std::vector<unsigned>& classes, std::vector<raw_layout::label> labels) {
  const std::uint64_t stride = classes.size() + image_bytes;
  for (const std::string& path : paths) {
    const record_stretch records = detail::stretch_of_file(path, 0, stride);
    const auto bytes = records.file->bytes();
    for (std::uint64_t at = 0; at < bytes.size(); at += stride) {
      for (std::size_t column = 0; column < classes.size(); ++column) {
        const auto label = static_cast<unsigned>(bytes[at + column]);
        if (label < classes[column]) continue;
        throw data_error({path, 0, 0, at + column},
                         "label " + std::to_string(label) + " of record " + std::to_string(at / stride) +
                             " is not below " + std::to_string(classes[column]) +
                             " (is this the binary version of CIFAR?); copy or download it again");
      }
    }
  }
  return detail::open_raw(std::move(name), "image", paths,
                          {.shape = {3, 32, 32}, .offset = classes.size(), .labels = std::move(labels)});
}

}  // namespace detail

MUSTER_INLINE fixed_records open_cifar10(const std::string& path, cifar_split split) {
  std::vector<std::string> names = {"test_batch.bin"};
  if (split == cifar_split::train) {
    names.clear();
    for (const char number : std::string("12345")) names.push_back(std::string("data_batch_") + number + ".bin");
  }
  return detail::open_images("cifar10:" + path, detail::files_of(path, "cifar-10-batches-bin", names), {10}, {{}});
}

MUSTER_INLINE fixed_records open_cifar100(const std::string& path, cifar_split split, cifar100_labels labels) {
  std::vector<raw_layout::label> chosen;
  if (labels != cifar100_labels::coarse) chosen.push_back({"fine", dtype::uint8, 1});
  if (labels != cifar100_labels::fine) chosen.push_back({"coarse", dtype::uint8, 0});
  const std::string file = split == cifar_split::train ? "train.bin" : "test.bin";
  return detail::open_images("cifar100:" + path, detail::files_of(path, "cifar-100-binary", {file}), {20, 100},
                             std::move(chosen));
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
