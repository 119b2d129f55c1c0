#include <muster/comm/rendezvous/host_identity.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include <muster/comm/settings.hpp>

namespace muster::inline v0 {

std::string host_identity(const settings& configuration) {
  const auto& asked = configuration.value(setting::host);
  if (asked != "auto") return asked;
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) name[0] = '\0';
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  // Not the mount namespace: `ip netns exec` gives every process one of its own.
  struct stat network {};
  const bool known = ::stat("/proc/self/ns/net", &network) == 0;
  return std::string(name) + "/" + boot + "/" + (known ? std::to_string(network.st_ino) : "");
}

}  // namespace muster::inline v0
