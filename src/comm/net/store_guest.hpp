// Who is connected to a store's server: bytes in, bytes out.
#pragma once

#include <cstdint>
#include <string>

#include <muster/core/clock.hpp>

#include "handshake.hpp"
#include "socket.hpp"
#include "store_table.hpp"

namespace muster::inline v0::detail {

/// What both sides of a store call themselves in the handshake.
inline constexpr std::uint32_t store_server_name = 0x65726f74;
/// A server that closes the connection when it has heard the proof does not know the token, or died at that moment: one
/// that does it so many times in a row is of another job.
inline constexpr int closings_of_a_stranger = 3;
inline constexpr std::uint32_t store_client_name = 1;
/// The secret of a store with this token.
[[nodiscard]] job_secret store_secret(std::string_view token);

/// One connection at the server, a stranger until it has proved that it knows the token.
class store_guest {
 public:
  store_guest(tcp_socket socket, store_table::client number, const job_secret& secret, clock::time_point now)
      : socket_(std::move(socket)),
        number_(number),
        greeting_(handshake::answer(secret, store_server_name)),
        last_(now) {}

  /// Reads what is there, does what it asks, writes what goes. False when the connection is at its end, or has earned
  /// it.
  [[nodiscard]] bool serve(store_table& table, clock::time_point now);
  /// Has an answer for it.
  void tell(const store_reply& said);
  [[nodiscard]] bool write(clock::time_point now);
  /// Whether it has been silent as a stranger, or taken nothing of what it is owed, for so long.
  [[nodiscard]] bool is_stalled(clock::time_point now) const noexcept;

  [[nodiscard]] bool is_stranger() const noexcept { return !known_; }
  [[nodiscard]] bool has_offended() const noexcept { return offended_; }
  /// Whether the connection ended at the other side, as when its process ends, and was not cut or closed here.
  [[nodiscard]] bool has_left() const noexcept { return left_; }
  [[nodiscard]] bool wants_to_write() const noexcept {
    return owed() > 0 || greeting_.now() == handshake::state::sending;
  }
  [[nodiscard]] bool wants_to_read() const noexcept { return owed() < enough; }
  [[nodiscard]] int file() const noexcept { return socket_.file(); }
  [[nodiscard]] store_table::client number() const noexcept { return number_; }
  [[nodiscard]] clock::time_point since() const noexcept { return last_; }

  std::uint32_t watched_for = 0;  ///< the events that epoll was asked for

 private:
  static constexpr std::size_t enough = std::size_t{4} << 20;     // owed to it: it may ask more when it has taken some
  static constexpr std::size_t too_much = std::size_t{64} << 20;  // as much is owed only to one that does not read

  [[nodiscard]] std::size_t owed() const noexcept { return out_.size() - written_; }
  [[nodiscard]] bool greet();
  [[nodiscard]] bool read_some();
  [[nodiscard]] bool take_frames(store_table& table, clock::time_point now);
  [[nodiscard]] bool has_whole_frame() const noexcept;

  tcp_socket socket_;
  store_table::client number_;
  handshake greeting_;
  bool known_ = false;
  bool offended_ = false;
  bool left_ = false;
  std::string in_;
  std::string out_;
  std::size_t written_ = 0;
  clock::time_point last_;  // when it came, or when it last took something
};

}  // namespace muster::inline v0::detail
