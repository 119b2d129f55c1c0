// The handshake of two processes of a job: each proves to the other that it knows the job's secret, before any other
// byte is accepted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <muster/comm/net/job_secret.hpp>
#include <muster/comm/net/socket.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The connecting rank, the listening rank, and the number of the connection between them.
struct introduction {
  std::uint32_t sender = 0;    ///< the connecting rank
  std::uint32_t receiver = 0;  ///< the listening rank
  std::uint32_t channel = 0;   ///< number of the connection among those between the two ranks

  bool operator==(const introduction&) const = default;
};

/// The state of one side of a handshake, a state machine: bytes in, bytes out, with a socket or without.
///
/// The connecting side introduces itself, and the listening side sends a challenge. The connecting side proves that it
/// knows the secret. The listening side then proves the same, together with its reply whether it accepts the
/// connection:
///
///     introduction, nonce A          ->
///                                   <-  nonce B
///     HMAC(secret, "1", all so far)  ->
///                                   <-  answer, HMAC(secret, "2", all so far, answer)
///
/// No proof can therefore be replayed or reflected. Both proofs are bound to the ranks and to the number of the
/// connection. A peer without the secret gains no information from the exchange. To an introduction of another protocol
/// (another version, or proofs without OpenSSL) the listening side replies with the name of its own.
class handshake {
 public:
  enum class state {
    sending,  ///< `output` is to be written
    reading,  ///< exactly `expected_bytes` bytes are to be read; later bytes belong to the connection
    asking,   ///< the peer is authenticated; call `accept` or `refuse`
    done,     ///< the connection is established
    refused,  ///< the peer belongs to the job and refuses this connection (it connects itself)
    stranger  ///< the peer does not belong to the job
  };

  /// Returns the state machine of the connecting side.
  static handshake connect(const job_secret& secret, const introduction& mine);
  /// Returns the state machine of the listening side, as rank `self`. A peer that claims to be rank `self` too, or that
  /// asks for another rank, is not authenticated.
  static handshake answer(const job_secret& secret, std::uint32_t self);

  /// Writes and reads as far as possible without waiting, until the state is `asking` or final. Throws socket_error.
  void advance(const tcp_socket& socket);
  /// Calls `advance` and waits for the socket until the state is `asking` or final. Throws socket_error, also at the
  /// deadline.
  void conclude(const tcp_socket& socket, clock::time_point until);

  [[nodiscard]] state current_state() const noexcept { return state_; }
  /// Returns true if a complete message of the peer has arrived.
  [[nodiscard]] bool is_answered() const noexcept { return step_ > 0; }
  /// Returns the difference to the protocol of the listening side, "(why) suggestion", or an empty text.
  [[nodiscard]] const std::string& protocol_difference() const noexcept { return difference_; }
  [[nodiscard]] std::span<const std::byte> output() const noexcept { return std::as_bytes(std::span(out_)); }
  /// Reports that the first bytes of `output` were written.
  void sent(std::size_t bytes) noexcept;
  [[nodiscard]] std::size_t expected_bytes() const noexcept { return expected_ - in_.size(); }
  /// Processes bytes from the peer, at most `expected_bytes`.
  void received(std::span<const std::byte> bytes);
  /// Returns the introduction as the peer sends it (or would send it, if the peer listens): `sender` is the peer.
  [[nodiscard]] const introduction& peer() const noexcept { return peer_; }
  void accept() { answer(1); }
  void refuse() { answer(2); }

 private:
  handshake(const job_secret& secret, bool connects, std::uint32_t self, std::size_t expected)
      : secret_(secret), connects_(connects), self_(self), expected_(expected) {}
  void write(std::string text, state after, std::size_t expected_after);
  void read_message(const std::string& text);
  void on_challenge(const std::string& text);
  void on_answer(const std::string& text);
  void on_introduction(const std::string& text);
  void answer(char reply);
  // Returns the text that a side signs: the mark of the side ('1' connects, '2' listens), its reply (0: none), and the
  // transcript.
  [[nodiscard]] std::string proof(char side, char reply) const { return std::string{side, reply} + transcript_; }

  job_secret secret_;
  state state_ = state::reading;
  state after_ = state::reading;
  int step_ = 0;  // number of messages that were read
  bool connects_;
  std::uint32_t self_;
  introduction peer_;
  std::string transcript_;  // the introduction and both nonces
  std::string difference_;
  std::string out_;
  std::string in_;
  std::size_t expected_;
};

}}}  // namespace muster::v0::detail
