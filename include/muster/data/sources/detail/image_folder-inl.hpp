#pragma once

#include <muster/data/sources/image_folder.hpp>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

#include <muster/core/file_state.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/text.hpp>
#include <muster/data/sources/mapped_file.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

namespace fs = std::filesystem;

inline bool is_image(const fs::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".jpeg" || extension == ".jpg" || extension == ".png";
}

inline bool is_hidden(const std::string& name) { return name.starts_with('.'); }

// Returns true if `a` is before `b` in the order of classes: whole numbers by value, then other names by their bytes.
inline bool is_before(const std::string& a, const std::string& b) {
  const auto digits = [](const std::string& name) {
    const auto first = std::min(name.find_first_not_of('0'), name.size());
    const bool is_number = std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c) != 0; });
    return is_number ? std::optional(std::string_view(name).substr(first)) : std::nullopt;
  };
  const auto digits_a = digits(a), digits_b = digits(b);
  if (digits_a.has_value() != digits_b.has_value()) return digits_a.has_value();
  if (digits_a && digits_a->size() != digits_b->size()) return digits_a->size() < digits_b->size();
  return digits_a && *digits_a != *digits_b ? *digits_a < *digits_b : a < b;
}

// The entries of a folder that are not samples, for a note.
struct ignored_entries {
  std::uint64_t count = 0;
  std::vector<std::string> first = {};

  void add(const std::string& name) {
    constexpr std::size_t most = 3;
    if (++count <= most) first.push_back(name);
  }
  [[nodiscard]] std::string text(const std::string& kind) const {
    return std::to_string(count) + " " + kind + " (" + muster::detail::joined(first, ", ") +
           (count > first.size() ? ", ...)" : ")");
  }
};

}  // namespace detail

struct image_folder::state : detail::source_facts {
  struct image {
    std::string file;  // file name within the folder of the class
    std::uint64_t bytes;
    std::uint32_t label;
  };
  std::string folder;
  std::vector<image> images;
  std::optional<std::uint64_t> opened;

  [[nodiscard]] std::string path_of(const image& file) const {
    return folder + "/" + classes()[file.label] + "/" + file.file;
  }
  [[nodiscard]] const std::vector<std::string>& classes() const { return schema.classes; }

  // Finds the classes and their images. Throws filesystem_error.
  void find_images() {
    detail::ignored_entries folders, files;
    std::vector<std::string> names;
    for (const auto& entry : detail::fs::directory_iterator(folder)) {
      const std::string entry_name = entry.path().filename().string();
      if (!entry.is_directory())
        files.add(entry_name);
      else if (detail::is_hidden(entry_name))
        folders.add(entry_name);
      else
        names.push_back(entry_name);
    }
    std::ranges::sort(names, detail::is_before);
    for (const std::string& class_name : names) {
      const auto label = static_cast<std::uint32_t>(schema.classes.size());
      const auto first = static_cast<std::ptrdiff_t>(images.size());
      for (const auto& entry : detail::fs::directory_iterator(folder + "/" + class_name)) {
        const std::string file = entry.path().filename().string();
        if (entry.is_regular_file() && detail::is_image(entry.path()) && !detail::is_hidden(file))
          images.push_back({file, entry.file_size(), label});
        else
          files.add(class_name + "/" + file);
      }
      std::ranges::sort(images.begin() + first, images.end(), {}, &image::file);
      images.size() == static_cast<std::size_t>(first) ? folders.add(class_name) : schema.classes.push_back(class_name);
    }
    if (folders.count + files.count == 0) return;
    notes.push_back("images:" + folder + ": left out " +
                    (folders.count != 0 ? folders.text("folders that are hidden or have no JPEG or PNG files") : "") +
                    (folders.count != 0 && files.count != 0 ? " and " : "") +
                    (files.count != 0 ? files.text("entries that are not JPEG or PNG files of a class") : ""));
    log(log_level::warning, notes.back());
  }
};

MUSTER_INLINE std::optional<std::uint64_t> image_folder::host_state() const { return state_->opened; }
MUSTER_INLINE std::optional<std::uint64_t> image_folder::host_state_now() const {
  return detail::states_of(state_->images,
                           [&](const state::image& each) { return muster::detail::state_of(state_->path_of(each)); });
}

MUSTER_INLINE image_folder::image_folder(const std::string& folder) {
  auto new_state = std::make_shared<state>();
  new_state->name = "images:" + folder;
  new_state->folder = folder;
  new_state->schema = {record_form::bytes, {}, 0, {"label"}};
  try {
    new_state->find_images();
  } catch (const detail::fs::filesystem_error& error) {
    throw data_error({folder}, "cannot be read (" + error.code().message() + "); check the path");
  }
  if (new_state->images.empty())
    throw data_error({folder},
                     "has no images (images have paths such as CLASS/NAME.JPEG); name the folder that has the folders "
                     "of the classes");
  muster::digest all;
  for (const auto& image : new_state->images)
    all.add(new_state->classes()[image.label]).add(image.file).add(image.bytes);
  new_state->opened = detail::states_of(new_state->images, [&](const state::image& each) {
    struct stat status {};
    if (::stat(new_state->path_of(each).c_str(), &status) != 0) return std::optional<std::uint64_t>();
    muster::detail::wait_for_next_tick(status.st_ctim);
    return std::optional(muster::detail::state_of(status));
  });
  new_state->size = new_state->images.size();
  new_state->digest = all.value();
  state_ = std::move(new_state);
  facts_ = state_.get();
}

MUSTER_INLINE void image_folder::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept {
  for (std::size_t k = 0; k < ids.size(); ++k) out[k] = state_->images[ids[k]].bytes;
}

MUSTER_INLINE void image_folder::read(std::span<const sample_id> ids, const record_rows& rows,
                                      std::vector<bad_record>* bad) const {
  auto* output = reinterpret_cast<char*>(rows.bytes.data());
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto& image = state_->images[ids[k]];
    if (!rows.labels.empty()) rows.labels[k] = static_cast<float>(image.label);
    if (rows.bytes.empty()) continue;
    std::ifstream file(state_->path_of(image), std::ios::binary);
    const auto bytes = static_cast<std::streamsize>(image.bytes);
    if (!file.read(output, bytes) || file.peek() != std::ifstream::traits_type::eof()) {
      const data_error error(location_of(ids[k]),
                             "does not have the " + std::to_string(bytes) +
                                 " bytes that it had at the start (it was changed or removed); open the folder again");
      if (bad == nullptr) throw error;
      bad->push_back({ids[k], error.where(), error.problem()});
      std::fill_n(output, bytes, '\0');
      if (!rows.labels.empty()) rows.labels[k] = 0;
    }
    output += bytes;
  }
}

MUSTER_INLINE const std::vector<std::string>& image_folder::classes() const noexcept { return state_->classes(); }
MUSTER_INLINE data_location image_folder::location_of(sample_id id) const {
  return {state_->path_of(state_->images[id])};
}

}}}  // namespace muster::v0::data
