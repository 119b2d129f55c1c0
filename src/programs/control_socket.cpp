#include "control_socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include <muster/core/error.hpp>

namespace {

constexpr std::size_t longest_request = 256;
constexpr std::chrono::seconds patience{1};
constexpr int kind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

[[noreturn]] void refuse(const std::string& path, const std::string& reason, const std::string& suggestion) {
  throw muster::configuration_error("--control cannot be '" + path + "' (" + reason + "); " + suggestion);
}

}  // namespace

control_socket::control_socket(std::string path) : path_(std::move(path)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.empty() || path_.size() >= sizeof address.sun_path)
    refuse(path_, "the path of a socket has 1 to 107 bytes", "choose a shorter one");
  path_.copy(static_cast<char*>(address.sun_path), path_.size());
  const auto* const at = reinterpret_cast<const sockaddr*>(&address);
  struct stat there {};
  if (::lstat(path_.c_str(), &there) == 0) {
    if (!S_ISSOCK(there.st_mode)) refuse(path_, "a file that is not a socket exists", "name another path");
    const muster::detail::descriptor probe(::socket(AF_UNIX, kind, 0));
    const bool is_left = probe && ::connect(probe.get(), at, sizeof address) != 0 && errno == ECONNREFUSED;
    if (!is_left) refuse(path_, "another process listens there", "name another path");
    ::unlink(path_.c_str());
  }
  listener_ = muster::detail::descriptor(::socket(AF_UNIX, kind, 0));
  const auto before = ::umask(0177);  // Only its user may connect.
  const int own = listener_.get();
  const bool listens = own >= 0 && ::bind(own, at, sizeof address) == 0 && ::listen(own, 16) == 0;
  const int error = errno;
  ::umask(before);
  if (!listens) refuse(path_, std::strerror(error), "name a path in an existing, writable folder");
}

control_socket::~control_socket() { ::unlink(path_.c_str()); }

void control_socket::turn(const std::function<std::string(const std::string&)>& answer) {
  const auto now = std::chrono::steady_clock::now();
  if (!connection_) {
    connection_ =
        muster::detail::descriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    until_ = now + patience;
  }
  if (!connection_) return;
  char bytes[longest_request];
  const auto got = ::recv(connection_.get(), bytes, sizeof bytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    if (now > until_) close_connection();
    return;
  }
  if (got <= 0) return close_connection();
  received_.append(bytes, static_cast<std::size_t>(got));
  for (std::size_t end = 0; (end = received_.find('\n')) != std::string::npos; received_.erase(0, end + 1)) {
    const auto text = answer(received_.substr(0, end)) + "\n";
    if (::send(connection_.get(), text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size()))
      return close_connection();
    until_ = now + patience;
  }
  if (received_.size() > longest_request) close_connection();
}

void control_socket::close_connection() {
  connection_ = {};
  received_.clear();
}
