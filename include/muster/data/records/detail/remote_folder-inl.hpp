#pragma once

#include <muster/data/records/remote_folder.hpp>

#include <atomic>
#include <map>
#include <mutex>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/plugin.hpp>
#include <muster/core/spec.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {
inline constinit std::atomic<remote_opener> opener_of_addresses{nullptr};

MUSTER_INLINE void set_remote_opener(remote_opener opener) noexcept { opener_of_addresses = opener; }

MUSTER_INLINE std::shared_ptr<remote_folder> open_remote_folder(const std::string& path, const http_options& options) {
  if (!muster::detail::is_remote(path)) return nullptr;
  const remote_opener open = opener_of_addresses;
  if (open == nullptr) {
    throw configuration_error(path + " cannot be read (" + muster::detail::linked_without("http") +
                              "); link muster::http, or copy the data to a disk");
  }
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<remote_folder>> all;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<remote_folder>& entry_of_path = all[path + "?" + options.cache + "&" + std::to_string(options.disk) +
                                                    "&" + std::to_string(options.timeout.count())];
  auto found = entry_of_path.lock();
  if (!found) entry_of_path = found = open(path, options);
  return found;
}

}}}}  // namespace muster::v0::data::detail
