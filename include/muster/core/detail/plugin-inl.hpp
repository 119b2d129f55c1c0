#pragma once

#include <muster/core/plugin.hpp>

#include <algorithm>
#include <mutex>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 {
namespace detail {

struct plugin_registry {
  std::mutex mutex;
  std::vector<const plugin*> loaded;  // guarded by `mutex`
};

inline plugin_registry& all_plugins() {
  static plugin_registry registry;
  return registry;
}

}  // namespace detail

MUSTER_INLINE plugin::plugin(std::string_view name, void (*load)()) : name_(name) {
  auto& [mutex, loaded] = detail::all_plugins();
  {
    const std::lock_guard lock(mutex);
    // Two shared objects that contain muster may construct the same variable.
    if (std::ranges::find(loaded, this) != loaded.end()) return;
    if (std::ranges::find(loaded, name, &plugin::name) != loaded.end()) {
      throw configuration_error("the plug-in '" + std::string(name) +
                                "' cannot be loaded (another plug-in has this name); choose another name");
    }
    loaded.push_back(this);
  }
  load();
}

MUSTER_INLINE plugin::~plugin() {
  auto& [mutex, loaded] = detail::all_plugins();
  const std::lock_guard lock(mutex);
  std::erase(loaded, this);
}

MUSTER_INLINE std::vector<std::string> plugin_names() {
  auto& [mutex, loaded] = detail::all_plugins();
  const std::lock_guard lock(mutex);
  std::vector<std::string> names;
  for (const auto* part : loaded) names.emplace_back(part->name());
  std::ranges::sort(names);
  return names;
}

}}  // namespace muster::v0
