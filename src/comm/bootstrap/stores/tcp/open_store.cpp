// How a job's store is opened over TCP: where its settings say, or where rank 0 tells the others by PMIx or a file.
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
#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "../../../../core/random_bytes.hpp"
#include "../../../../core/text.hpp"
#include "../../../net/address.hpp"
#include "../../../net/socket.hpp"
#include "../../../transports/tcp/connect.hpp"
#include "pmix.hpp"
#include "store_file.hpp"

namespace muster { inline namespace v0 {
namespace {

using detail::look_for_store;
using detail::store_presence;

// Ends what posix_spawn was told when that goes.
template <class Told>
using told = std::unique_ptr<Told, int (*)(Told*)>;

// Starts a program that is to outlive this one, and says what it says into `said`: 0, or why not. It has a session and
// descriptors of its own: mpirun waits for every process that has its pipes, and ends those of the ranks' sessions.
int start_apart(const char* program, char* const* words, char* const* variables, int said) {
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  const told<posix_spawn_file_actions_t> files_end(&files, &::posix_spawn_file_actions_destroy);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, said, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, said, STDERR_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawnattr_t how;
  ::posix_spawnattr_init(&how);
  const told<posix_spawnattr_t> how_ends(&how, &::posix_spawnattr_destroy);
  ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSID);
  pid_t ignored = 0;
  return ::posix_spawnp(&ignored, program, &files, &how, words, variables);
}

// Where muster-store may be. Beside the program: in one folder with it, or as a build and an install have them.
std::vector<std::string> places_of_store_program(const settings& configuration) {
  if (const auto& chosen = configuration.value(setting::store_program); chosen != "auto") return {chosen};
  std::error_code unknown;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path().string();
  std::vector<std::string> places;
  for (const char* const beside : {"", "/../bin", "/../src/programs", "/../../src/programs"})
    if (!program.empty()) places.push_back(program + beside + "/muster-store");
  places.insert(places.end(), {"muster-store", MUSTER_INSTALLED_PROGRAMS "/muster-store"});
  return places;
}

// How one rank opens the store of its job: rank 0 serves it where that is to be, and all connect to it.
class opening {
 public:
  explicit opening(const detail::store_opening& asked) : asked_(asked) {
    if (const auto& set = asked.configuration.value(setting::token); set != "auto") token_ = set;
  }

  std::unique_ptr<any_store> by_address(const std::string& where);
  std::unique_ptr<any_store> by_pmix(std::string& why_not);
  std::unique_ptr<any_store> by_file(const std::string& folder);

 private:
  [[nodiscard]] std::uint16_t serve(const std::string& listen, const std::string& file = "");
  [[nodiscard]] detail::address start_store(const std::string& listen, const std::string& file) const;
  [[nodiscard]] std::unique_ptr<any_store> connect(std::string where);

  [[nodiscard]] std::string interface() const { return detail::interface_of(asked_.configuration, asked_.launch); }
  [[nodiscard]] std::vector<detail::address> own_addresses() const {
    return detail::own_addresses(interface(), asked_.configuration.origin(setting::interface));
  }
  // Under which addresses the others may reach a port of this host.
  [[nodiscard]] std::string own_list(std::uint16_t port) const {
    return detail::joined(own_addresses(), ",", [&](const auto& one) { return one.with_port(port).to_string(); });
  }
  // A free port, for the others to be told.
  [[nodiscard]] std::string anywhere() const {
    return interface() == "auto" ? ":0" : own_addresses().front().to_string();
  }

  const detail::store_opening& asked_;
  std::string token_;
  std::unique_ptr<store_server> server_;  // of this process
};

// Serves, or starts muster-store where the store is to outlive this process; returns the port.
std::uint16_t opening::serve(const std::string& listen, const std::string& file) {
  if (asked_.is_elastic()) return start_store(listen, file).port();
  server_ = std::make_unique<store_server>(listen, token_);
  if (!file.empty()) server_->announce(file);
  return server_->port();
}

// The store announces itself in the file where one is named; returns where it listens.
detail::address opening::start_store(const std::string& listen, const std::string& file) const {
  const auto refuse = [](const std::string& why) {
    throw configuration_error("the store of this elastic job cannot be started (" + why +
                              "); name it by --store-program / MUSTER_STORE_PROGRAM, or start one separately and set "
                              "--rendezvous tcp://HOST:PORT");
  };
  // At all interfaces by their address: without a token a port alone is the loopback's.
  const bool anywhere = listen.starts_with(':');
  const std::string at =
      anywhere ? detail::address::any(detail::address::parse("0.0.0.0" + listen).port()).to_string() : listen;
  std::vector<std::string> words{"muster-store", "--listen", at, "--unused",
                                 asked_.configuration.value(setting::quorum_timeout)};
  if (!file.empty()) words.insert(words.end(), {"--file", file});
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  std::string token = "MUSTER_TOKEN=" + token_;
  std::vector<char*> variables;
  for (char** one = environ; *one != nullptr; ++one) {
    if (!std::string_view(*one).starts_with("MUSTER_")) variables.push_back(*one);
  }
  if (!token_.empty()) variables.push_back(token.data());
  for (auto* const list : {&arguments, &variables}) list->push_back(nullptr);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) refuse(std::strerror(errno));
  const detail::descriptor reads(ends[0]);
  detail::descriptor writes(ends[1]);
  int failed = ENOENT;
  for (const auto& program : places_of_store_program(asked_.configuration)) {
    if (failed == ENOENT || failed == ENOTDIR)
      failed = start_apart(program.c_str(), arguments.data(), variables.data(), writes.get());
  }
  if (failed != 0) refuse(std::string("muster-store: ") + std::strerror(failed));
  writes = {};
  std::string said;
  while (said.find('\n') == std::string::npos && detail::wait_for(reads.get(), POLLIN, asked_.until)) {
    char room[512];
    const auto got = ::read(reads.get(), room, sizeof room);
    if (got <= 0) break;
    said.append(room, static_cast<std::size_t>(got));
  }
  constexpr std::string_view begin = "muster-store listens at ";
  said = said.substr(0, said.find('\n'));
  if (!said.starts_with(begin)) refuse(said.empty() ? "muster-store printed no address" : said);
  log(log_level::info, said + ", and outlives rank 0");
  return detail::address::parse(said.substr(begin.size()));
}

std::unique_ptr<any_store> opening::connect(std::string where) {
  // This very host reaches a port at which it listens on all addresses, also where its loopback is down.
  if (server_ && !where.starts_with(detail::store_file_scheme) && server_->address() != where)
    where = "127.0.0.1:" + std::to_string(server_->port()) + "," + own_list(server_->port());
  return std::make_unique<tcp_store>(where, token_, asked_.until, std::move(server_),
                                     asked_.is_elastic() ? when_lost::connect_again : when_lost::fail);
}

// No launcher starts other ranks again: a store that does not answer is one that was never there.
bool starts_store(const launch_env& launch) {
  return launch.kind != launch_env::launcher::none && launch.kind != launch_env::launcher::generic;
}

// Where rank 0 serves at what the user named; nothing when another host is to.
std::string place_to_serve(const detail::host_port& place, clock::time_point until) {
  const auto addresses = detail::resolve(place, until);
  if (std::none_of(addresses.begin(), addresses.end(), detail::is_own)) return "";
  // A name may stand for the loopback here and for another address elsewhere; a number means what it says.
  const bool narrow = place.host == "localhost" || addresses.front().host() == place.host;
  return narrow ? addresses.front().to_string() : ":" + std::to_string(place.port);
}

std::unique_ptr<any_store> opening::by_address(const std::string& where) {
  const auto place = detail::parse_host_port(where, asked_.origin);
  if (asked_.launch.rank == 0 && (!asked_.is_elastic() || starts_store(asked_.launch))) {
    try {
      const auto here = place_to_serve(place, asked_.until);
      if (!here.empty() && asked_.is_elastic()) store_server(here, token_);  // it is free
      if (!here.empty()) (void)serve(here);
    } catch (const store_address_taken&) {  // by the store that serves already
    }
  }
  return connect(where);
}

// What rank 0 tells the others: "at ADDRESSES TOKEN", or "error TEXT". A token that was given is not told.
std::unique_ptr<any_store> opening::by_pmix(std::string& why_not) {
  const auto shared = detail::share_by_pmix(
      asked_.launch.rank,
      [&]() -> std::string {
        const bool draws = token_.empty();
        if (draws) token_ = detail::random_token();
        try {
          return "at " + own_list(serve(anywhere())) + " " + (draws ? token_ : "");
        } catch (const configuration_error& failed) {
          return "error " + std::string(failed.what());
        }
      },
      asked_.until, why_not);
  if (!shared) return nullptr;
  const std::string& told = *shared;
  const auto space = told.find(' ');
  const std::string rest = space == std::string::npos ? "" : told.substr(space + 1);
  if (!told.starts_with("at "))
    throw configuration_error(told.starts_with("error ") ? rest : "malformed bootstrap message from rank 0");
  const auto end = std::min(rest.find(' '), rest.size());
  if (end + 1 < rest.size()) token_ = rest.substr(end + 1);
  return connect(rest.substr(0, end));
}

store_presence presence_at(const std::string& path) {
  try {
    return look_for_store(detail::read_store_file(path));
  } catch (const detail::socket_error& failed) {  // no file, or none that says where; else it cannot be looked at now
    return failed.code() == ENOENT || failed.code() == EINVAL ? store_presence::gone : store_presence::silent;
  }
}

// Removes this user's files of stores that were killed.
void sweep(const std::string& folder) {
  const std::string prefix = "muster-" + std::to_string(::geteuid()) + "-";
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

// Rank 0 serves, or starts the store of an elastic job, unless the file has one that lives. The others wait for it.
std::unique_ptr<any_store> opening::by_file(const std::string& folder) {
  if (::access((folder + "/.").c_str(), W_OK | X_OK) != 0) {
    throw configuration_error("the ranks cannot find each other through a file in '" + folder + "' (" +
                              std::strerror(errno) +
                              "); choose a folder that every rank may write to: --rendezvous file:/folder");
  }
  const bool is_first = asked_.launch.rank == 0;
  if (is_first && folder == temporary_folder()) sweep(folder);
  const std::string path = folder + "/" + asked_.name();
  // The store of an elastic job that is silent may live and be cut off from this rank alone: no second one is begun.
  const auto there = is_first ? presence_at(path) : store_presence::serves;
  if (there == store_presence::gone || (there == store_presence::silent && !asked_.is_elastic())) {
    token_ = detail::random_token();
    try {
      (void)serve(anywhere(), path);
    } catch (const configuration_error& failed) {  // the others would wait for the file until their deadlines
      detail::tell_by_store_file(path, failed.what());
      throw;
    }
  }
  return connect(std::string(detail::store_file_scheme) + path);
}

}  // namespace

namespace detail {

bool link_tcp_store() noexcept {
  static const bool done =
      register_store("tcp", [](auto& place, auto& asked, auto&) { return opening(asked).by_address(place); }) &&
      register_store("file", [](auto& place, auto& asked, auto&) { return opening(asked).by_file(place); }) &&
      register_store("pmix", [](auto&, auto& asked, auto& why_not) { return opening(asked).by_pmix(why_not); });
  return done;
}

}  // namespace detail
}}  // namespace muster::v0
