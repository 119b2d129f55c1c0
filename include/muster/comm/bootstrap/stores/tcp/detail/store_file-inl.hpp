#pragma once

#include <muster/comm/bootstrap/stores/tcp/store_file.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include <muster/comm/bootstrap/stores/tcp/store_client.hpp>
#include <muster/comm/comm_timing.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/descriptor.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace detail {
// The format "muster-store-1 ADDRESS,ADDRESS... TOKEN\n": a signature with the version of the format, then the
// contents.
inline constexpr std::string_view store_file_signature = "muster-store-1 ";
// The format "muster-store-1 error TEXT\n", if rank 0 cannot serve.
inline constexpr std::string_view error_mark = "error ";
inline constexpr std::size_t largest_store_file =
    4096;  // largest size of the file; an address has at most 50 characters

MUSTER_INLINE void write_store_file(const std::string& path, const store_place& place) {
  const auto list = joined(place.addresses, ",", [](const address& destination) { return destination.to_string(); });
  atomic_file file(path, 0600);
  file.write(std::string(store_file_signature) + list + " " + place.token + "\n");
  file.commit();
}

MUSTER_INLINE void report_by_store_file(const std::string& path, std::string_view problem) noexcept {
  try {
    atomic_file file(path, 0600);
    file.write(std::string(store_file_signature) + std::string(error_mark) +
               std::string(problem.substr(0, largest_store_file / 2)) + "\n");
    file.commit();
    std::this_thread::sleep_for(store_timing::error_kept);
    ::unlink(path.c_str());          // the next start must not read it
  } catch (const std::exception&) {  // the other ranks wait for the file instead
  }
}

MUSTER_INLINE store_place read_store_file(const std::string& path) {
  // A file that another user may have left there is neither followed nor waited for.
  const descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) throw socket_error(errno, path + ": " + std::strerror(errno));
  struct stat status {};
  const bool ours = ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid() &&
                    (status.st_mode & 0022) == 0;
  if (!ours) throw socket_error(EACCES, path + ": not a regular file that only this user can write");
  std::array<char, largest_store_file> buffer;
  const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
  std::string_view text(buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  store_place found;
  if (text.starts_with(store_file_signature) && text.ends_with('\n')) {
    text = text.substr(store_file_signature.size(), text.size() - store_file_signature.size() - 1);
    if (text.starts_with(error_mark)) throw store_problem(std::string(text.substr(error_mark.size())));
    const auto space = std::min(text.find(' '), text.size());
    found.token = text.substr(std::min(space + 1, text.size()));
    for (const auto word : listed(text.substr(0, space))) {
      if (const auto parsed = address::parse(word); !parsed.empty()) found.addresses.push_back(parsed);
    }
  }
  if (found.addresses.empty()) throw socket_error(EINVAL, path + ": it has no address of a store");
  return found;
}

MUSTER_INLINE void remove_store_file(const std::string& path, const store_place& place) noexcept {
  try {
    if (read_store_file(path) == place) ::unlink(path.c_str());
  } catch (const std::exception&) {  // the file has gone, or belongs to another store
  }
}

MUSTER_INLINE store_presence probe_store(const store_place& place) {
  bool silent = false;
  for (const auto& candidate : place.addresses) {
    const auto until = deadline_after(store_timing::probe);
    try {
      const auto socket = tcp_socket::connect(candidate, until);
      if (!introduce_to_store(socket, store_secret(place.token), until)) continue;
      // After the return this process must not count as a client of the store, so that a rank that opens the store now
      // may be its first client.
      socket.shutdown_write();
      if (wait_for(socket.file(), POLLIN, until)) return store_presence::serves;
      silent = true;
    } catch (const socket_error& failed) {
      silent = silent || failed.code() != ECONNREFUSED;
    }
  }
  return silent ? store_presence::silent : store_presence::gone;
}

}}}  // namespace muster::v0::detail
