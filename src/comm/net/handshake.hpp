// How two processes of a job prove to each other that they know its secret, before a byte of anything else is believed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "socket.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// What the processes of a job know and no other process does: SHA-256 of what it is made from.
class job_secret {
 public:
  static constexpr std::size_t mac_bytes = 32;

  job_secret() = default;
  /// All parts in their order; the same parts make the same secret.
  explicit job_secret(std::span<const std::string_view> parts);

  [[nodiscard]] std::span<const std::byte, 32> bytes() const noexcept { return bytes_; }
  /// The HMAC-SHA-256 (RFC 2104) of a text, by OpenSSL.
  [[nodiscard]] std::string sign(std::string_view text) const;
  /// Whether `mac` is that; compared in constant time.
  [[nodiscard]] bool has_signed(std::string_view text, std::string_view mac) const;

 private:
  std::array<std::byte, 32> bytes_{};
};

/// The connecting and the listening side, and the purpose of the connection.
struct introduction {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t which = 0;  ///< of the connections between the two

  bool operator==(const introduction&) const = default;
};

/// One side of a handshake: bytes in, bytes out, over a socket or without one.
///
/// The connecting side introduces itself; the other answers with a challenge; the first proves that it knows the
/// secret, then the second, together with its answer whether it wants the connection:
///
///     introduction, nonce A          ->
///                                   <-  nonce B
///     HMAC(secret, "1", all so far)  ->
///                                   <-  answer, HMAC(secret, "2", all so far, answer)
///
/// So neither can be replayed or turned around, both are bound to the ranks and the line they speak of, and a peer that
/// does not know the secret learns nothing from it.
class handshake {
 public:
  enum class state {
    sending,  ///< `output` is to be written
    reading,  ///< so many bytes as `wanted` says are to be read, no more: what follows is not its business
    asking,   ///< the other side is authenticated; `accept` or `refuse`
    done,     ///< the connection stands
    refused,  ///< the other side is one of the job and does not want this connection (it connects itself)
    stranger  ///< the other side is not of the job
  };

  /// The side that connects.
  static handshake connect(const job_secret& secret, const introduction& mine);
  /// The side that listens, as rank `self`. A process that says it is rank `self` too, or that asks for another rank,
  /// is not authenticated.
  static handshake answer(const job_secret& secret, std::uint32_t self);

  /// Writes and reads as far as that goes without waiting, or until it asks or is over. Throws socket_error.
  void advance(const tcp_socket& over);
  /// The same, and waits until then. Throws socket_error at the deadline.
  void conclude(const tcp_socket& over, clock::time_point until);

  [[nodiscard]] state now() const noexcept { return state_; }
  /// Whether the other side has answered.
  [[nodiscard]] bool is_answered() const noexcept { return step_ > 0; }
  [[nodiscard]] std::span<const std::byte> output() const noexcept { return std::as_bytes(std::span(out_)); }
  void sent(std::size_t bytes) noexcept;
  [[nodiscard]] std::size_t wanted() const noexcept { return want_ - in_.size(); }
  void received(std::span<const std::byte> bytes);
  [[nodiscard]] const introduction& other() const noexcept { return who_; }
  void accept() { answer(1); }
  void refuse() { answer(2); }

 private:
  handshake(const job_secret& secret, bool connects, std::uint32_t self, std::size_t want)
      : secret_(secret), connects_(connects), self_(self), want_(want) {}
  void write(std::string text, state after, std::size_t want_after);
  void read_message(const std::string& text);
  void answer(char reply);
  // What a side proves with: its mark and answer, and all bytes before.
  [[nodiscard]] std::string proof(char side, char reply) const { return std::string{side, reply} + said_; }

  job_secret secret_;
  state state_ = state::reading;
  state after_ = state::reading;
  int step_ = 0;  // messages that were read
  bool connects_;
  std::uint32_t self_;
  introduction who_;
  std::string said_;  // the introduction and both nonces
  std::string out_;
  std::string in_;
  std::size_t want_;
};

}}}  // namespace muster::v0::detail
