#include <muster/data/sources/cifar.hpp>

#include <filesystem>
#include <utility>

#include <muster/core/error.hpp>

namespace muster::inline v0 {
namespace {

constexpr std::uint64_t image_bytes = 3 * 32 * 32;

// The files of one split: those of the folder, or of the folder in it that the archive unpacks to, or `path` itself.
std::vector<std::string> files_of(const std::string& path, const std::string& archive_folder,
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

// Stretches of all files: records of some label bytes and an image.
struct cifar_files {
  cifar_files(const std::vector<std::string>& paths, const std::vector<unsigned>& classes) : labels(classes.size()) {
    const std::uint64_t stride = classes.size() + image_bytes;
    for (const std::string& path : paths) {
      const auto [file, skip, step, count] = detail::stretch_of_file(path, 0, stride);
      const auto bytes = file->bytes();
      for (std::size_t which = 0; which < classes.size(); ++which) {
        for (std::uint64_t at = which; at < bytes.size(); at += stride) {
          const auto label = static_cast<unsigned>(bytes[at]);
          if (label < classes[which]) continue;
          throw data_error({path, 0, 0, at}, "label " + std::to_string(label) + " of record " +
                                                 std::to_string(at / stride) + " is not below " +
                                                 std::to_string(classes[which]) +
                                                 " (is this the binary version of CIFAR?); copy or download it again");
        }
        labels[which].stretches.push_back({file, which, stride, count});
      }
      images.push_back({file, classes.size(), stride, count});
    }
  }

  std::vector<record_stretch> images;
  std::vector<label_column> labels;
};

record_schema images_with(std::vector<std::string> labels) {
  return {record_form::fixed, {{"image", dtype::uint8, {3, 32, 32}}}, 0, std::move(labels)};
}

}  // namespace

fixed_records open_cifar10(const std::string& path, cifar_split split) {
  std::vector<std::string> names = {"test_batch.bin"};
  if (split == cifar_split::train) {
    names.clear();
    for (const char number : std::string("12345")) names.push_back(std::string("data_batch_") + number + ".bin");
  }
  cifar_files files(files_of(path, "cifar-10-batches-bin", names), {10});
  return fixed_records("cifar10:" + path, images_with({"label"}), std::move(files.images), std::move(files.labels));
}

fixed_records open_cifar100(const std::string& path, cifar_split split, cifar100_labels labels) {
  cifar_files files(files_of(path, "cifar-100-binary", {split == cifar_split::train ? "train.bin" : "test.bin"}),
                    {20, 100});
  std::vector<label_column> chosen;
  std::vector<std::string> names;
  if (labels != cifar100_labels::coarse) {
    chosen.push_back(std::move(files.labels[1]));
    names.emplace_back("fine");
  }
  if (labels != cifar100_labels::fine) {
    chosen.push_back(std::move(files.labels[0]));
    names.emplace_back("coarse");
  }
  return fixed_records("cifar100:" + path, images_with(std::move(names)), std::move(files.images), std::move(chosen));
}

}  // namespace muster::inline v0
