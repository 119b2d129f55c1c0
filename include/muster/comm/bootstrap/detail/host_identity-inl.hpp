#pragma once

#include <muster/comm/bootstrap/host_identity.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include <muster/comm/comm_settings.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 {

MUSTER_INLINE std::string detail::host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

MUSTER_INLINE std::string detail::boot_number() {
  std::string line;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), line);
  return line;
}

MUSTER_INLINE std::string host_identity(const settings& configuration) {
  const auto& requested = configuration.value(setting::host);
  if (requested != "auto") return requested;
  // The mount namespace is not included: `ip netns exec` gives every process its own.
  struct stat network {};
  const bool has_network = ::stat("/proc/self/ns/net", &network) == 0;
  return detail::host_name() + "/" + detail::boot_number() + "/" + (has_network ? std::to_string(network.st_ino) : "");
}

}}  // namespace muster::v0
