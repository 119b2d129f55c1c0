// The file by which clients find a store: where it listens, and its token.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>
#include <vector>

#include "../../../net/address.hpp"
#include "../../../net/socket.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// How the name of a store begins that is found through a file: "file:/shared/muster-1000-job".
inline constexpr std::string_view store_file_scheme = "file:";

struct store_place {
  std::vector<address> addresses;
  std::string token;

  bool operator==(const store_place&) const = default;
};

/// Writes the file, whole or not at all, for this user alone (mode 0600); replaces what is there. Throws
/// configuration_error when it cannot be written.
void write_store_file(const std::string& path, const store_place& place);

/// Leaves the reason why rank 0 cannot serve, for a second: ranks that read the file meanwhile get store_problem.
void tell_by_store_file(const std::string& path, std::string_view problem) noexcept;

/// The reason that rank 0 has left.
class store_problem : public socket_error {
 public:
  explicit store_problem(const std::string& text) : socket_error(EINVAL, text) {}
};

/// Throws socket_error, which says why, where there is none (ENOENT), it is no such file, or another user could have
/// written it.
[[nodiscard]] store_place read_store_file(const std::string& path);

/// Removes the file if it still names that place.
void remove_store_file(const std::string& path, const store_place& place) noexcept;

/// What is at a place, tried once, for 3 s an address: a store that knows the token; for certain none that does (each
/// address refuses, or another program listens there); or one that does not answer, and may be cut off or stopped.
enum class store_presence { serves, gone, silent };
[[nodiscard]] store_presence look_for_store(const store_place& place);

}}}  // namespace muster::v0::detail
