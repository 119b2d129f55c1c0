#include <muster/comm/rendezvous/open_store.hpp>

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <muster/comm/rendezvous/memory_store.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/error.hpp>

namespace muster::inline v0 {
namespace {

std::optional<detail::store_opener>& opener() {
  static std::optional<detail::store_opener> registered;
  return registered;
}

detail::etcd_opener& etcd() {
  static detail::etcd_opener registered = nullptr;
  return registered;
}

// What the names of files and keys of this user's jobs begin with.
std::string prefix_of_user() { return "muster-" + std::to_string(::geteuid()) + "-"; }

// The job's name as part of a path.
std::string file_name(const settings& configuration, const launch_env& launch) {
  std::string name = detail::job_name(configuration, launch);
  for (char& c : name) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
    if (!plain) c = '_';
  }
  return prefix_of_user() + name.substr(0, 200);
}

const detail::store_opener& opener_over_tcp(const std::string& origin) {
  if (opener()) return *opener();
  throw configuration_error(
      origin +
      " asks for a store over TCP (this program was linked without muster::tcp); link muster::muster from a build "
      "with TCP");
}

any_store open_in_folder(const std::string& folder, const std::string& origin, const settings& configuration,
                         const launch_env& launch, clock::time_point until) {
  if (::access((folder + "/.").c_str(), W_OK | X_OK) != 0) {
    throw configuration_error("the ranks cannot find each other through a file in '" + folder + "' (" +
                              std::strerror(errno) +
                              "); choose a folder that every rank may write to: --rendezvous file:/folder");
  }
  return opener_over_tcp(origin).by_file(folder + "/" + file_name(configuration, launch), configuration, launch, until);
}

any_store open_in_etcd(const std::string& asked, const std::string& origin, const settings& configuration,
                       const launch_env& launch, clock::time_point until) {
  if (etcd() == nullptr) {
    throw configuration_error(
        origin + " asks for an etcd (this program was linked without muster::etcd); link muster::muster from a build " +
        "with libcurl, or use --rendezvous tcp://HOST:PORT");
  }
  const auto colon = asked.find("://");
  return etcd()(asked.substr(colon + 3), asked.starts_with("etcds") ? "https" : "http",
                file_name(configuration, launch), until);
}

any_store open_automatically(const settings& configuration, const launch_env& launch, clock::time_point until) {
  std::string why_not = "the launcher offers no PMIx";
  const bool elastic = configuration.value(setting::elastic) == "on";
  if (launch.size == 1 && (!elastic || launch.kind == launch_env::launcher::none))
    return any_store(std::make_unique<memory_store>());  // no other rank will come
  const auto here = [&] {
    const std::string folder = temporary_folder();
    if (launch.rank == 0 && opener()) opener()->sweep(folder, prefix_of_user());
    return open_in_folder(folder, "a job of one host", configuration, launch, until);
  };
  if (elastic && launch.on_one_host()) return here();  // through PMIx each rank would wait for all
  if (environment("PMIX_NAMESPACE") && launch.size > 1) {
    why_not = "this program was linked without muster::tcp";
    if (opener()) {
      if (auto opened = opener()->pmix(configuration, launch, until, why_not)) return std::move(*opened);
    }
  }
  const auto host = environment("MASTER_ADDR");
  const auto port = environment("MASTER_PORT");
  if (host && port) {
    const bool bracket = host->find(':') != std::string::npos && !host->starts_with('[');
    const std::string where = (bracket ? "[" + *host + "]" : *host) + ":" + *port;
    const std::string origin = "MASTER_ADDR and MASTER_PORT";
    const auto& over_tcp = opener_over_tcp(origin);
    return over_tcp.tcp(where, origin, configuration, launch, until);
  }
  if (launch.on_one_host() || launch.size == 1) {
    return here();
  }
  throw configuration_error(
      "the ranks cannot find each other (" + why_not +
      ", and neither MASTER_ADDR and MASTER_PORT nor a place to meet is set); set --rendezvous tcp://HOST:PORT, HOST "
      "being rank 0's, or --rendezvous file:/FOLDER on a file system of all hosts");
}

std::string random_token() {
  unsigned char bytes[32];
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    throw error(error_kind::other, "the system gives no random bytes (" + std::string(std::strerror(errno)) +
                                       "); set a token: MUSTER_TOKEN");
  }
  std::string text;
  for (const unsigned byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

}  // namespace

any_store open_store(const settings& configuration, const launch_env& launch) {
  const auto until = deadline_after(seconds(configuration.positive(setting::timeout)));
  const std::string& asked = configuration.value(setting::rendezvous);
  const std::string origin = configuration.origin(setting::rendezvous);
  if (asked == "auto") return open_automatically(configuration, launch, until);
  if (asked.starts_with("file:/")) return open_in_folder(asked.substr(5), origin, configuration, launch, until);
  const auto places = std::string_view(asked).substr(std::min(asked.size(), asked.find("://") + 3));
  if (asked.starts_with("tcp://")) return opener_over_tcp(origin).tcp(places, origin, configuration, launch, until);
  if (asked.starts_with("etcd://") || asked.starts_with("etcds://"))
    return open_in_etcd(asked, origin, configuration, launch, until);
  throw configuration_error(origin + " cannot be '" + asked +
                            "' (it is auto, tcp://host:port, etcd://host:port or file:/folder); write "
                            "tcp://node1:29500 or file:/shared/folder");
}

std::string job_token(any_store& store, const settings& configuration, const launch_env& launch,
                      clock::time_point until) {
  const std::string& asked = configuration.value(setting::token);
  if (asked != "auto") return asked;
  if (launch.size == 1) return random_token();
  if (launch.rank == 0) {
    const std::string drawn = random_token();
    const auto left = store.compare_and_swap("token", 0, drawn, until);
    return left.swapped ? drawn : left.now.value;
  }
  const auto found = store.watch("token", 0, until);
  if (!found) {
    throw timeout_error("token", {0},
                        "rank 0 left no token at the store " + store.where() +
                            " in time (missing: rank 0); look at what it does, or raise --timeout / MUSTER_TIMEOUT");
  }
  return found->value;
}

std::string common_token(any_store& store, const settings& configuration, clock::time_point until) {
  const std::string& asked = configuration.value(setting::token);
  if (asked != "auto") return asked;
  const auto found = store.get("token", until);
  if (found) return found.value;
  const std::string drawn = random_token();
  const auto left = store.compare_and_swap("token", 0, drawn, until);
  return left.swapped ? drawn : left.now.value;
}

std::string detail::job_name(const settings& configuration, const launch_env& launch) {
  const auto& asked = configuration.value(setting::job);
  if (asked != "auto") return asked;
  if (!launch.job.empty()) return launch.job;
  if (launch.kind == launch_env::launcher::none) return std::to_string(::getpid());
  const auto& place = configuration.value(setting::rendezvous);
  if (place.starts_with("tcp://")) return place;
  throw configuration_error(launch.why +
                            " do not name the job (another that is started by hand would meet with it); set "
                            "MUSTER_JOB=NAME, the same at all its ranks, or MASTER_ADDR and MASTER_PORT");
}

bool detail::register_etcd_opener(etcd_opener made) noexcept {
  etcd() = made;
  return true;
}

bool detail::register_store_opener(const store_opener& made) noexcept {
  opener() = made;
  return true;
}

}  // namespace muster::inline v0
