// Opens a job's store over TCP: at the address in the settings, or at an address that rank 0 publishes by PMIx or a
// file.
#pragma once

#include <muster/comm/bootstrap/tcp_store.hpp>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/bootstrap/stores/tcp/pmix.hpp>
#include <muster/comm/bootstrap/stores/tcp/store_file.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/comm/net/address.hpp>
#include <muster/comm/net/socket.hpp>
#include <muster/comm/transports/tcp/connect_tcp.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/random_bytes.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace detail {

using detail::probe_store;
using detail::store_presence;

// Destroys an object of posix_spawn at the end of the scope.
template <class Object>
using owned = std::unique_ptr<Object, int (*)(Object*)>;

// Starts a program that outlives this one and writes its output to `output`; returns 0 or an error code. The program
// has its own session and descriptors: mpirun waits for every process that holds its pipes, and kills the processes of
// the ranks' sessions.
inline int start_detached(const char* program, char* const* words, char* const* variables, int output) {
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  const owned<posix_spawn_file_actions_t> files_end(&files, &::posix_spawn_file_actions_destroy);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, output, STDERR_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  const owned<posix_spawnattr_t> attributes_end(&attributes, &::posix_spawnattr_destroy);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  pid_t ignored = 0;
  return ::posix_spawnp(&ignored, program, &files, &attributes, words, variables);
}

// Returns the possible paths of muster-store: in the folder of this program, or relative to it as in a build or an
// installation.
inline std::vector<std::string> places_of_store_program(const settings& configuration) {
  if (const auto& chosen = configuration.value(setting::store_program); chosen != "auto") return {chosen};
  std::error_code unknown;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path().string();
  std::vector<std::string> places;
  for (const char* const beside : {"", "/../bin", "/../src/programs", "/../../src/programs"})
    if (!program.empty()) places.push_back(program + beside + "/muster-store");
  places.emplace_back("muster-store");
#ifdef MUSTER_INSTALLED_PROGRAMS
  places.emplace_back(MUSTER_INSTALLED_PROGRAMS "/muster-store");
#endif
  return places;
}

// Opens the store of a job for one rank: rank 0 serves it if required, and all ranks connect to it.
class opening {
 public:
  explicit opening(const detail::store_opening& request) : request_(request) {
    if (const auto& set = request.configuration.value(setting::token); set != "auto") token_ = set;
  }

  std::unique_ptr<any_store> by_address(const std::string& where);
  std::unique_ptr<any_store> by_pmix(std::string& why_not);
  std::unique_ptr<any_store> by_file(const std::string& folder);

 private:
  [[nodiscard]] std::uint16_t serve(const std::string& listen, const std::string& path = "");
  [[nodiscard]] detail::address start_store(const std::string& listen, const std::string& path) const;
  [[nodiscard]] std::unique_ptr<any_store> connect(std::string where);

  [[nodiscard]] std::string interface() const { return detail::interface_of(request_.configuration, request_.launch); }
  [[nodiscard]] std::vector<detail::address> own_addresses() const {
    return detail::own_addresses(interface(), request_.configuration.origin(setting::interface));
  }
  // Returns the addresses at which the others may reach a port of this host.
  [[nodiscard]] std::string own_endpoints(std::uint16_t port) const {
    return detail::joined(own_addresses(), ",",
                          [&](const auto& own_address) { return own_address.with_port(port).to_string(); });
  }
  // Returns an address with a free port, which rank 0 then publishes.
  [[nodiscard]] std::string listen_address() const {
    return interface() == "auto" ? ":0" : own_addresses().front().to_string();
  }

  const detail::store_opening& request_;
  std::string token_;
  std::unique_ptr<store_server> server_;  // the server in this process
};

// Serves the store, or starts muster-store if the store has to outlive this process; returns the port.
inline std::uint16_t opening::serve(const std::string& listen, const std::string& path) {
  if (request_.is_elastic()) return start_store(listen, path).port();
  server_ = std::make_unique<store_server>(listen, token_);
  if (!path.empty()) server_->announce(path);
  return server_->port();
}

// Starts muster-store, which announces itself in the file if one is named; returns its address.
inline detail::address opening::start_store(const std::string& listen, const std::string& path) const {
  const auto refuse = [](const std::string& reason) {
    throw configuration_error("the store of the elastic job cannot be started (" + reason +
                              "); name it by --store-program / MUSTER_STORE_PROGRAM, or start one separately and set "
                              "--rendezvous tcp://HOST:PORT");
  };
  // Listens at all interfaces by the unspecified address: without a token, a port alone means the loopback.
  const bool at_all_interfaces = listen.starts_with(':');
  const std::string at =
      at_all_interfaces ? detail::address::any(detail::address::parse("0.0.0.0" + listen).port()).to_string() : listen;
  std::vector<std::string> words{"muster-store", "--listen", at, "--unused",
                                 request_.configuration.value(setting::quorum_timeout)};
  if (!path.empty()) words.insert(words.end(), {"--file", path});
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  std::string token = "MUSTER_TOKEN=" + token_;
  std::vector<char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("MUSTER_")) variables.push_back(*variable);
  }
  if (!token_.empty()) variables.push_back(token.data());
  for (auto* const list : {&arguments, &variables}) list->push_back(nullptr);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) refuse(std::strerror(errno));
  const detail::descriptor reads(ends[0]);
  detail::descriptor writes(ends[1]);
  int failed = ENOENT;
  for (const auto& program : places_of_store_program(request_.configuration)) {
    if (failed == ENOENT || failed == ENOTDIR)
      failed = start_detached(program.c_str(), arguments.data(), variables.data(), writes.get());
  }
  if (failed != 0) refuse(std::string("muster-store: ") + std::strerror(failed));
  writes = {};
  std::string output;
  while (output.find('\n') == std::string::npos && detail::wait_for(reads.get(), POLLIN, request_.until)) {
    char buffer[512];
    const auto got = ::read(reads.get(), buffer, sizeof buffer);
    if (got <= 0) break;
    output.append(buffer, static_cast<std::size_t>(got));
  }
  constexpr std::string_view begin = "muster-store listens at ";
  output = output.substr(0, output.find('\n'));
  if (!output.starts_with(begin)) refuse(output.empty() ? "muster-store printed no address" : output);
  log(log_level::info, output + ", and outlives rank 0");
  return detail::address::parse(output.substr(begin.size()));
}

inline std::unique_ptr<any_store> opening::connect(std::string where) {
  // The serving host itself connects to its own port by the loopback first, and by its other addresses if the loopback
  // is down.
  if (server_ && !where.starts_with(detail::store_file_scheme) && server_->address() != where)
    where = "127.0.0.1:" + std::to_string(server_->port()) + "," + own_endpoints(server_->port());
  return std::make_unique<tcp_store>(where, token_, request_.until, std::move(server_),
                                     request_.is_elastic() ? when_lost::connect_again : when_lost::fail);
}

// Returns true if the launcher does not restart ranks. A store that does not answer then never existed, so rank 0
// starts the store of an elastic job. Under other launchers a restarted rank 0 could start a second, empty store.
inline bool starts_store(const launch_env& launch) {
  return launch.kind != launch_env::launcher::none && launch.kind != launch_env::launcher::generic;
}

// Returns the address at which rank 0 serves the place named by the user; empty if another host has to serve it.
inline std::string place_to_serve(const detail::host_port& place, clock::time_point until) {
  const auto addresses = detail::resolve(place, until);
  if (std::none_of(addresses.begin(), addresses.end(), detail::is_own)) return "";
  // A name may resolve to the loopback on this host and to another address elsewhere, so rank 0 then listens at all
  // addresses. A numeric address is used as it is.
  const bool narrow = place.host == "localhost" || addresses.front().host() == place.host;
  return narrow ? addresses.front().to_string() : ":" + std::to_string(place.port);
}

inline std::unique_ptr<any_store> opening::by_address(const std::string& where) {
  const auto place = detail::parse_host_port(where, request_.origin);
  if (request_.launch.rank == 0 && (!request_.is_elastic() || starts_store(request_.launch))) {
    try {
      const auto own_place = place_to_serve(place, request_.until);
      // Checks that the address is free.
      if (!own_place.empty() && request_.is_elastic()) store_server(own_place, token_);
      if (!own_place.empty()) (void)serve(own_place);
    } catch (const store_address_taken&) {  // another process serves there already: connect to it
    }
  }
  return connect(where);
}

// Opens the store that rank 0 serves and publishes through PMIx. The published message is "at ADDRESSES TOKEN", or
// "error TEXT". A token from the settings is not published.
inline std::unique_ptr<any_store> opening::by_pmix(std::string& why_not) {
  const auto shared = detail::share_by_pmix(
      request_.launch.rank,
      [&]() -> std::string {
        const bool draws = token_.empty();
        if (draws) token_ = detail::random_token();
        try {
          return "at " + own_endpoints(serve(listen_address())) + " " + (draws ? token_ : "");
        } catch (const configuration_error& failed) {
          return "error " + std::string(failed.what());
        }
      },
      request_.until, why_not);
  if (!shared) return nullptr;
  const std::string& message = *shared;
  const auto space = message.find(' ');
  const std::string rest = space == std::string::npos ? "" : message.substr(space + 1);
  if (!message.starts_with("at "))
    throw configuration_error(message.starts_with("error ") ? rest : "malformed bootstrap message from rank 0");
  const auto end = std::min(rest.find(' '), rest.size());
  if (end + 1 < rest.size()) token_ = rest.substr(end + 1);
  return connect(rest.substr(0, end));
}

inline store_presence presence_at(const std::string& path) {
  try {
    return probe_store(detail::read_store_file(path));
  } catch (const detail::socket_error& failed) {
    // ENOENT: no file; EINVAL: no address in the file; otherwise the file cannot be read at present.
    return failed.code() == ENOENT || failed.code() == EINVAL ? store_presence::gone : store_presence::silent;
  }
}

// Removes this user's files of stores that were killed.
inline void sweep(const std::string& folder) {
  const std::string prefix = "muster-" + std::to_string(::geteuid()) + "-";
  std::error_code failed;
  for (std::filesystem::directory_iterator at(folder, failed), end; at != end; at.increment(failed)) {
    if (!at->path().filename().string().starts_with(prefix)) continue;
    try {
      const auto place = detail::read_store_file(at->path());
      if (probe_store(place) == store_presence::gone) detail::remove_store_file(at->path(), place);
    } catch (const detail::socket_error&) {  // no readable store file of this user
    }
  }
}

// Opens the store that the job's file in the folder names. Rank 0 serves the store, or starts the store of an elastic
// job, unless the file names a live store. The others wait for that store.
inline std::unique_ptr<any_store> opening::by_file(const std::string& folder) {
  if (::access((folder + "/.").c_str(), W_OK | X_OK) != 0) {
    throw configuration_error("the ranks cannot find each other through a file in '" + folder + "' (" +
                              std::strerror(errno) +
                              "); choose a folder that every rank may write to: --rendezvous file:/folder");
  }
  const bool is_first = request_.launch.rank == 0;
  if (is_first && folder == temporary_folder()) sweep(folder);
  const std::string path = folder + "/" + request_.name();
  // A silent store of an elastic job may live and be disconnected from this rank alone, so no second store is started.
  const auto presence = is_first ? presence_at(path) : store_presence::serves;
  if (presence == store_presence::gone || (presence == store_presence::silent && !request_.is_elastic())) {
    token_ = detail::random_token();
    try {
      (void)serve(listen_address(), path);
    } catch (const configuration_error& failed) {  // the others would wait for the file until their deadlines
      detail::report_by_store_file(path, failed.what());
      throw;
    }
  }
  return connect(std::string(detail::store_file_scheme) + path);
}

MUSTER_INLINE void register_tcp_stores() {
  register_store("tcp", [](auto& place, auto& request, auto&) { return opening(request).by_address(place); });
  register_store("file", [](auto& place, auto& request, auto&) { return opening(request).by_file(place); });
  register_store("pmix", [](auto&, auto& request, auto& why_not) { return opening(request).by_pmix(why_not); });
}

}  // namespace detail
}}  // namespace muster::v0
