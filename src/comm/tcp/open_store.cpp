// How a job's store is opened over TCP: where its settings say, or where rank 0 tells the others by PMIx or a file.
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include <muster/comm/rendezvous/open_store.hpp>
#include <muster/comm/settings.hpp>
#include <muster/comm/tcp/store.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "../net/address.hpp"
#include "../net/handshake.hpp"
#include "../net/pmix.hpp"
#include "../net/socket.hpp"
#include "connect.hpp"
#include "store_file.hpp"

namespace muster::inline v0 {
namespace {

using detail::look_for_store;
using detail::store_presence;

std::string token_of(const settings& configuration) {
  const auto& asked = configuration.value(setting::token);
  return asked == "auto" ? std::string() : asked;
}

// Under which addresses the others may reach a port of this host.
std::string own_list(std::uint16_t port, const settings& configuration, const launch_env& launch) {
  std::string list;
  for (const auto& one :
       detail::own_addresses(detail::interface_of(configuration, launch), configuration.origin(setting::interface))) {
    list += (list.empty() ? "" : ",") + one.with_port(port).to_string();
  }
  return list;
}

// How this very host reaches a port at which it listens on all addresses, also where its loopback is down.
std::string from_here(std::uint16_t port, const settings& configuration, const launch_env& launch) {
  return "127.0.0.1:" + std::to_string(port) + "," + own_list(port, configuration, launch);
}

// The descriptors and the session of a process that is to outlive this one: mpirun waits for every process that has its
// pipes, and ends the processes of the ranks' sessions.
class apart {
 public:
  explicit apart(int said) {
    ::posix_spawn_file_actions_init(&files_);
    ::posix_spawn_file_actions_addopen(&files_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&files_, said, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&files_, said, STDERR_FILENO);
    ::posix_spawn_file_actions_addclosefrom_np(&files_, STDERR_FILENO + 1);
    ::posix_spawnattr_init(&how_);
    ::posix_spawnattr_setflags(&how_, POSIX_SPAWN_SETSID);
  }
  apart(const apart&) = delete;
  apart& operator=(const apart&) = delete;
  ~apart() {
    ::posix_spawn_file_actions_destroy(&files_);
    ::posix_spawnattr_destroy(&how_);
  }
  // 0, or why not.
  [[nodiscard]] int start(const char* program, char* const* words, char* const* variables) const {
    pid_t ignored = 0;
    return ::posix_spawnp(&ignored, program, &files_, &how_, words, variables);
  }

 private:
  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t how_{};
};

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (auto& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

// Starts muster-store, which outlives this process and announces itself in the file where one is named, and returns
// where it listens.
detail::address start_store(const std::string& listen, const std::string& token, const settings& configuration,
                            clock::time_point until, const std::string& file = "") {
  const auto refuse = [](const std::string& why) {
    throw configuration_error("the store of this elastic job cannot be started (" + why +
                              "); put muster-store of this muster into PATH, or start it by hand and set --rendezvous "
                              "tcp://HOST:PORT");
  };
  std::vector<std::string> words{"muster-store", "--listen", listen, "--unused",
                                 configuration.value(setting::patience)};
  if (!file.empty()) words.insert(words.end(), {"--file", file});
  std::vector<std::string> variables;
  for (char** one = environ; *one != nullptr; ++one) {
    if (!std::string_view(*one).starts_with("MUSTER_")) variables.emplace_back(*one);
  }
  if (!token.empty()) variables.push_back("MUSTER_TOKEN=" + token);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) refuse(std::strerror(errno));
  const detail::descriptor reads(ends[0]);
  detail::descriptor writes(ends[1]);
  const apart made(writes.get());
  int failed = ENOENT;
  for (const char* const program : {"muster-store", MUSTER_INSTALLED_PROGRAMS "/muster-store"}) {
    if (failed == ENOENT) failed = made.start(program, pointers_to(words).data(), pointers_to(variables).data());
  }
  if (failed != 0) refuse(std::string("muster-store: ") + std::strerror(failed));
  writes = {};
  std::string said;
  while (said.find('\n') == std::string::npos && detail::wait_for(reads.get(), POLLIN, until)) {
    char room[512];
    const auto got = ::read(reads.get(), room, sizeof room);
    if (got <= 0) break;
    said.append(room, static_cast<std::size_t>(got));
  }
  constexpr std::string_view begin = "muster-store listens at ";
  said = said.substr(0, said.find('\n'));
  if (!said.starts_with(begin)) refuse(said.empty() ? "muster-store says nothing" : said);
  log(log_level::info, said + ", and outlives rank 0");
  return detail::address::parse(said.substr(begin.size()));
}

bool is_elastic(const settings& configuration) { return configuration.value(setting::elastic) == "on"; }

// No launcher starts these ranks again: a store that does not answer is one that was never there.
bool starts_store(const launch_env& launch) {
  return launch.rank == 0 && launch.kind != launch_env::launcher::none && launch.kind != launch_env::launcher::generic;
}

// Where rank 0 serves at what the user named; nothing when somebody serves there, or another host is to.
std::string place_to_serve(const detail::host_port& place) {
  const auto addresses = detail::resolve(place);
  if (std::none_of(addresses.begin(), addresses.end(), detail::is_own)) return "";
  // A name may stand for the loopback here and for another address elsewhere; a number means what it says.
  const bool narrow = place.host == "localhost" || addresses.front().host() == place.host;
  return narrow ? addresses.front().to_string() : ":" + std::to_string(place.port);
}

any_store open_tcp(std::string_view where, const std::string& origin, const settings& configuration,
                   const launch_env& launch, clock::time_point until) {
  const auto place = detail::parse_host_port(where, origin);
  const std::string token = token_of(configuration);
  const bool elastic = is_elastic(configuration);
  std::unique_ptr<store_server> server;
  if (const auto here = launch.rank == 0 ? place_to_serve(place) : ""; !here.empty()) {
    try {
      if (!elastic || starts_store(launch)) server = std::make_unique<store_server>(here, token);
    } catch (const store_address_taken&) {  // by the store that serves already
    }
  }
  if (elastic && std::exchange(server, nullptr)) start_store(place_to_serve(place), token, configuration, until);
  std::string reached(where);
  if (server && server->address() != reached) reached = from_here(place.port, configuration, launch);
  return any_store(std::make_unique<tcp_store>(reached, token, until, std::move(server),
                                               elastic ? when_lost::connect_again : when_lost::fail));
}

std::string random_text() {
  std::array<std::byte, 32> bytes;
  detail::fill_random(bytes);
  std::string text;
  for (const std::byte one : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(one));
    text += digits;
  }
  return text;
}

store_presence presence_at(const std::string& path) {
  try {
    return look_for_store(detail::read_store_file(path));
  } catch (const detail::socket_error& failed) {  // no file, or none that says where; else it cannot be looked at now
    return failed.code() == ENOENT || failed.code() == EINVAL ? store_presence::gone : store_presence::silent;
  }
}

// What rank 0 tells the others: "at ADDRESSES TOKEN", or "error TEXT". A token that was given is not told.
std::optional<any_store> open_pmix(const settings& configuration, const launch_env& launch, clock::time_point until,
                                   std::string& why_not) {
  auto* const session = detail::pmix_session::open(why_not);
  if (!session) return std::nullopt;
  if (session->rank() != launch.rank) {
    why_not =
        "PMIx calls this rank " + std::to_string(session->rank()) + ", the launcher " + std::to_string(launch.rank);
    return std::nullopt;
  }
  const bool elastic = is_elastic(configuration);
  std::string told;
  std::string token = token_of(configuration);
  std::unique_ptr<store_server> server;
  if (launch.rank == 0) {
    const bool draws = token.empty();
    if (draws) token = random_text();
    try {
      const std::string listen = detail::interface_of(configuration, launch) == "here" ? "127.0.0.1:0" : ":0";
      if (!elastic) server = std::make_unique<store_server>(listen, token);
      const auto port = server ? server->port() : start_store(listen, token, configuration, until).port();
      told = "at " + own_list(port, configuration, launch) + " " + (draws ? token : std::string());
    } catch (const configuration_error& failed) {
      told = "error " + std::string(failed.what());
    }
  }
  told = session->share(told, until);
  const auto space = told.find(' ');
  const std::string rest = space == std::string::npos ? "" : told.substr(space + 1);
  if (!told.starts_with("at ")) throw configuration_error(told.starts_with("error ") ? rest : "rank 0 told nonsense");
  const auto end = std::min(rest.find(' '), rest.size());
  if (end + 1 < rest.size()) token = rest.substr(end + 1);
  std::string reached = rest.substr(0, end);
  if (server) reached = from_here(server->port(), configuration, launch);
  return any_store(std::make_unique<tcp_store>(reached, token, until, std::move(server),
                                               elastic ? when_lost::connect_again : when_lost::fail));
}

// Rank 0 serves, or starts the store of an elastic job, unless the file has one that lives. The others wait for it.
any_store open_by_file(const std::string& path, const settings& configuration, const launch_env& launch,
                       clock::time_point until) {
  const bool elastic = is_elastic(configuration);
  std::unique_ptr<store_server> server;
  // The store of an elastic job that is silent may live and be cut off from this rank alone: no second one is begun.
  const auto there = launch.rank == 0 ? presence_at(path) : store_presence::serves;
  if (there == store_presence::gone || (there == store_presence::silent && !elastic)) {
    const std::string token = random_text();
    const std::string interface = detail::interface_of(configuration, launch);
    std::string listen = ":0";
    if (interface != "auto")
      listen = detail::own_addresses(interface, configuration.origin(setting::interface)).front().to_string();
    if (elastic) {
      start_store(listen, token, configuration, until, path);
    } else {
      server = std::make_unique<store_server>(listen, token);
      server->announce(path);
    }
  }
  return any_store(std::make_unique<tcp_store>(std::string(detail::store_file_scheme) + path, "", until,
                                               std::move(server),
                                               elastic ? when_lost::connect_again : when_lost::fail));
}

// Removes this user's files of stores that were killed.
void sweep(const std::string& folder, const std::string& prefix) {
  std::error_code failed;
  for (std::filesystem::directory_iterator at(folder, failed), end; at != end; at.increment(failed)) {
    if (!at->path().filename().string().starts_with(prefix)) continue;
    try {
      const auto place = detail::read_store_file(at->path());
      if (look_for_store(place) == store_presence::gone) detail::remove_store_file(at->path(), place);
    } catch (const detail::socket_error&) {  // not ours to remove
    }
  }
}

}  // namespace

namespace detail {

bool link_tcp_store() noexcept {
  static const bool done = register_store_opener({&open_tcp, &open_pmix, &open_by_file, &sweep});
  return done;
}

}  // namespace detail

}  // namespace muster::inline v0
