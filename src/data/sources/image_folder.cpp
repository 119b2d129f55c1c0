#include <muster/data/sources/image_folder.hpp>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <utility>

#include <muster/core/hash.hpp>
#include <muster/data/sources/mapped_file.hpp>
#include "../file_state.hpp"

namespace muster::inline v0 {
namespace {

namespace fs = std::filesystem;

bool is_image(const fs::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending == ".jpeg" || ending == ".jpg";
}

}  // namespace

struct image_folder::state : detail::source_facts {
  struct image {
    std::string file;  // in the folder of its class
    std::uint64_t bytes;
    std::uint32_t label;
  };
  std::string folder;
  std::vector<std::string> classes;
  std::vector<image> images;
  std::optional<std::uint64_t> opened;

  [[nodiscard]] std::string path_of(const image& of) const { return folder + "/" + classes[of.label] + "/" + of.file; }
};

std::optional<std::uint64_t> image_folder::host_state() const { return state_->opened; }
std::optional<std::uint64_t> image_folder::host_state_now() const {
  return detail::states_of(state_->images,
                           [&](const state::image& each) { return detail::state_of(state_->path_of(each)); });
}

image_folder::image_folder(const std::string& folder) {
  auto made = std::make_shared<state>();
  made->name = "images:" + folder;
  made->folder = folder;
  made->schema = {record_form::bytes, {}, 0, {"label"}};
  try {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.is_directory()) made->classes.push_back(entry.path().filename().string());
    }
    std::ranges::sort(made->classes);
    for (std::uint32_t label = 0; label < made->classes.size(); ++label) {
      const auto first = static_cast<std::ptrdiff_t>(made->images.size());
      for (const auto& entry : fs::directory_iterator(folder + "/" + made->classes[label])) {
        if (entry.is_regular_file() && is_image(entry.path()))
          made->images.push_back({entry.path().filename().string(), entry.file_size(), label});
      }
      std::ranges::sort(made->images.begin() + first, made->images.end(), {}, &state::image::file);
    }
  } catch (const fs::filesystem_error& error) {
    throw data_error({folder}, "cannot be read (" + error.code().message() + "); check the path");
  }
  if (made->images.empty())
    throw data_error({folder},
                     "has no images (they are looked for as CLASS/NAME.JPEG); give the folder of the classes");
  muster::digest all;
  for (const auto& image : made->images) all.add(made->classes[image.label]).add(image.file).add(image.bytes);
  made->opened = detail::states_of(made->images, [&](const state::image& each) {
    struct stat found {};
    if (::stat(made->path_of(each).c_str(), &found) != 0) return std::optional<std::uint64_t>();
    detail::wait_for_next_tick(found.st_ctim);
    return std::optional(detail::state_of(found));
  });
  made->size = made->images.size();
  made->digest = all.value();
  state_ = std::move(made);
  facts_ = state_.get();
}

void image_folder::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept {
  for (std::size_t k = 0; k < ids.size(); ++k) out[k] = state_->images[ids[k]].bytes;
}

void image_folder::read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad) const {
  auto* to = reinterpret_cast<char*>(rows.bytes.data());
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto& image = state_->images[ids[k]];
    if (!rows.labels.empty()) rows.labels[k] = static_cast<float>(image.label);
    if (rows.bytes.empty()) continue;
    std::ifstream file(state_->path_of(image), std::ios::binary);
    const auto bytes = static_cast<std::streamsize>(image.bytes);
    if (!file.read(to, bytes) || file.peek() != std::ifstream::traits_type::eof()) {
      const data_error error(where(ids[k]),
                             "has not the " + std::to_string(bytes) +
                                 " bytes that it had (it was changed or removed); open the folder again");
      if (bad == nullptr) throw error;
      bad->push_back({ids[k], error.where(), error.problem()});
      std::fill_n(to, bytes, '\0');
      if (!rows.labels.empty()) rows.labels[k] = 0;
    }
    to += bytes;
  }
}

const std::vector<std::string>& image_folder::classes() const noexcept { return state_->classes; }
data_location image_folder::where(sample_id id) const { return {state_->path_of(state_->images[id])}; }

}  // namespace muster::inline v0
