#include "far_folder.hpp"

#include <atomic>

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {
namespace {

constinit std::atomic<far_opener> opener_of_addresses{nullptr};

}  // namespace

void set_far_opener(far_opener opener) noexcept { opener_of_addresses = opener; }

std::shared_ptr<far_folder> open_far(const std::string& path, const http_options& options) {
  if (!is_far(path)) return nullptr;
  const far_opener open = opener_of_addresses;
  if (open == nullptr) {
    throw configuration_error(path +
                              " cannot be read (this program was built without muster's http component); link "
                              "muster::http, or copy the data to a disk");
  }
  return open(path, options);
}

}  // namespace muster::inline v0::detail
