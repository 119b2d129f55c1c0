#include "store_file.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include <muster/core/atomic_file.hpp>

#include "../../../../core/descriptor.hpp"
#include "../../../../core/text.hpp"
#include "../../../timing.hpp"
#include "store_client.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

// "muster-store-1 ADDRESS,ADDRESS... TOKEN\n": what it is and in which form, then what it tells.
constexpr std::string_view signature = "muster-store-1 ";
// Or, where rank 0 cannot serve, "muster-store-1 error TEXT\n".
constexpr std::string_view error_mark = "error ";
constexpr std::size_t longest = 4096;  // of such a file; an address has 50 characters at most

}  // namespace

void write_store_file(const std::string& path, const store_place& place) {
  const auto list = joined(place.addresses, ",", [](const address& one) { return one.to_string(); });
  atomic_file file(path, 0600);
  file.write(std::string(signature) + list + " " + place.token + "\n");
  file.commit();
}

void tell_by_store_file(const std::string& path, std::string_view problem) noexcept {
  try {
    atomic_file file(path, 0600);
    file.write(std::string(signature) + std::string(error_mark) + std::string(problem.substr(0, longest / 2)) + "\n");
    file.commit();
    std::this_thread::sleep_for(store_timing::problem_told);
    ::unlink(path.c_str());          // the next start is not to read it
  } catch (const std::exception&) {  // then they wait
  }
}

store_place read_store_file(const std::string& path) {
  // What another user may have left there is neither followed nor waited for.
  const descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) throw socket_error(errno, path + ": " + std::strerror(errno));
  struct stat status {};
  const bool ours = ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid() &&
                    (status.st_mode & 0022) == 0;
  if (!ours) throw socket_error(EACCES, path + ": not a regular file that only this user can write");
  std::array<char, longest> room;
  const ssize_t got = ::read(file.get(), room.data(), room.size());
  std::string_view text(room.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  store_place found;
  if (text.starts_with(signature) && text.ends_with('\n')) {
    text = text.substr(signature.size(), text.size() - signature.size() - 1);
    if (text.starts_with(error_mark)) throw store_problem(std::string(text.substr(error_mark.size())));
    const auto space = std::min(text.find(' '), text.size());
    found.token = text.substr(std::min(space + 1, text.size()));
    for (const auto word : listed(text.substr(0, space))) {
      if (const auto one = address::parse(word); !one.empty()) found.addresses.push_back(one);
    }
  }
  if (found.addresses.empty()) throw socket_error(EINVAL, path + ": it has no address of a store");
  return found;
}

void remove_store_file(const std::string& path, const store_place& place) noexcept {
  try {
    if (read_store_file(path) == place) ::unlink(path.c_str());
  } catch (const std::exception&) {  // it is gone, or another's
  }
}

store_presence look_for_store(const store_place& place) {
  bool silent = false;
  for (const auto& one : place.addresses) {
    const auto until = deadline_after(store_timing::probe);
    try {
      const auto met = tcp_socket::connect(one, until);
      if (!introduce_to_store(met, store_secret(place.token), until)) continue;
      // On return it is no client of the store any more: one that opens it now may be the first.
      met.shutdown_write();
      if (wait_for(met.file(), POLLIN, until)) return store_presence::serves;
      silent = true;
    } catch (const socket_error& failed) {
      silent = silent || failed.code() != ECONNREFUSED;
    }
  }
  return silent ? store_presence::silent : store_presence::gone;
}

}}}  // namespace muster::v0::detail
