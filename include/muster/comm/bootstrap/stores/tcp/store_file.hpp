// The file through which clients find a store: its addresses and its token.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/net/address.hpp>
#include <muster/comm/net/socket.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The prefix of a store's name that refers to a store file: "file:/shared/muster-1000-job".
inline constexpr std::string_view store_file_scheme = "file:";

struct store_place {
  std::vector<address> addresses;
  std::string token;

  bool operator==(const store_place&) const = default;
};

/// Writes the file completely or not at all, readable by this user alone (mode 0600), and replaces an existing file.
/// Throws configuration_error when it cannot be written.
void write_store_file(const std::string& path, const store_place& place);

/// Writes the reason why rank 0 cannot serve to the file, waits for a second, and removes the file. Ranks that read the
/// file in that time throw store_problem.
void report_by_store_file(const std::string& path, std::string_view problem) noexcept;

/// An error that no further attempt mends: rank 0 left the reason in the file, or the server has another protocol.
class store_problem : public socket_error {
 public:
  explicit store_problem(const std::string& text) : socket_error(EINVAL, text) {}
};

/// Reads the file. Throws store_problem if rank 0 has left an error there. Throws socket_error with the reason when the
/// file does not exist (ENOENT), has no address (EINVAL), or could have been written by another user (EACCES).
[[nodiscard]] store_place read_store_file(const std::string& path);

/// Removes the file if it still names that store.
void remove_store_file(const std::string& path, const store_place& place) noexcept;

/// The result of an attempt to reach a store, 3 s per address: `serves`: a store that knows the token; `gone`:
/// certainly no such store (each address refuses, or another program listens there); `silent`: a store that does not
/// answer, and may be disconnected or stopped.
enum class store_presence { serves, gone, silent };
[[nodiscard]] store_presence probe_store(const store_place& place);

}}}  // namespace muster::v0::detail
