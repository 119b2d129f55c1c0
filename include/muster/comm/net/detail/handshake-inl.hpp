#pragma once

#include <muster/comm/net/handshake.hpp>

#include <poll.h>

#include <algorithm>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/random_bytes.hpp>
#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 { namespace detail {
// With the terminator; the 2 is the protocol's version. Ranks that prove nothing to each other have a protocol of their
// own, so that no rank with OpenSSL accepts them.
inline constexpr std::string_view authenticated_protocol("muster ranks 2\n", 16);
inline constexpr std::string_view plain_protocol("muster plain 2\n", 16);
inline constexpr std::string_view protocol_name =
    job_secret::is_cryptographic ? authenticated_protocol : plain_protocol;
inline constexpr std::string_view any_protocol = "muster ";  // begins the name of every version
inline constexpr std::size_t nonce_bytes = 32;
inline constexpr std::size_t hello_bytes = protocol_name.size() + sizeof(introduction) + nonce_bytes;

inline std::string draw_nonce() {
  std::string nonce(nonce_bytes, '\0');
  fill_random(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

// Returns "(why) suggestion" for a peer of another protocol.
inline std::string difference_to(std::string_view other) {
  constexpr std::string_view mend = "define MUSTER_WITH_OPENSSL and link crypto where muster's headers are compiled";
  const bool is_known = other == authenticated_protocol || other == plain_protocol;
  if (!is_known) return "(the processes have different versions of muster); use one version";
  return std::string(job_secret::is_cryptographic
                         ? "(the process there was compiled without OpenSSL, so it cannot authenticate); "
                         : "(this process was compiled without OpenSSL, so it cannot authenticate there); ") +
         std::string(mend);
}

MUSTER_INLINE handshake handshake::connect(const job_secret& secret, const introduction& mine) {
  handshake result(secret, true, mine.sender, 0);
  result.peer_ = {mine.receiver, mine.sender, mine.channel};
  wire_writer hello{std::string(protocol_name)};
  hello.add(mine);
  result.transcript_ = hello.take() + draw_nonce();
  result.write(result.transcript_, state::reading, nonce_bytes);
  return result;
}

MUSTER_INLINE handshake handshake::answer(const job_secret& secret, std::uint32_t self) {
  return {secret, false, self, hello_bytes};
}

MUSTER_INLINE void handshake::advance(const tcp_socket& socket) {
  while (state_ == state::sending || state_ == state::reading) {
    if (state_ == state::sending) {
      const iovec piece{out_.data(), out_.size()};
      const std::size_t n = socket.try_write({&piece, 1});
      if (n == 0) return;
      sent(n);
    } else {
      std::array<std::byte, hello_bytes> buffer;  // the longest message
      const std::size_t n = socket.read_some(std::span(buffer).first(expected_bytes()));
      if (n == 0) return;
      received(std::span(buffer).first(n));
    }
  }
}

MUSTER_INLINE void handshake::conclude(const tcp_socket& socket, clock::time_point until) {
  for (advance(socket); state_ == state::sending || state_ == state::reading; advance(socket))
    socket.await(state_ == state::sending ? POLLOUT : POLLIN, until);
}

MUSTER_INLINE void handshake::write(std::string text, state after, std::size_t expected_after) {
  out_ = std::move(text);
  in_.clear();
  expected_ = expected_after;
  after_ = after;
  state_ = state::sending;
}

MUSTER_INLINE void handshake::sent(std::size_t bytes) noexcept {
  out_.erase(0, bytes);
  if (out_.empty()) state_ = after_;
}

MUSTER_INLINE void handshake::received(std::span<const std::byte> bytes) {
  in_.append(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), expected_bytes()));
  if (expected_bytes() == 0) read_message(std::exchange(in_, {}));
}

MUSTER_INLINE void handshake::read_message(const std::string& text) {
  const bool is_first = step_++ == 0;
  if (connects_) return is_first ? on_challenge(text) : on_answer(text);
  if (is_first) return on_introduction(text);
  state_ = secret_.has_signed(proof('1', 0), text) ? state::asking : state::stranger;
}

MUSTER_INLINE void handshake::on_challenge(const std::string& text) {
  if (text.starts_with(any_protocol)) {  // a nonce is random
    difference_ = difference_to(std::string_view(text).substr(0, protocol_name.size()));
    state_ = state::stranger;
    return;
  }
  transcript_ += text;
  write(secret_.sign(proof('1', 0)), state::reading, 1 + job_secret::mac_bytes);
}

MUSTER_INLINE void handshake::on_answer(const std::string& text) {
  const char reply = text[0];
  const bool genuine = (reply == 1 || reply == 2) && secret_.has_signed(proof('2', reply), text.substr(1));
  state_ = !genuine ? state::stranger : reply == 1 ? state::done : state::refused;
}

MUSTER_INLINE void handshake::on_introduction(const std::string& text) {
  wire_reader hello(text);
  const std::string_view protocol = hello.chars(protocol_name.size());
  peer_ = hello.number<introduction>();
  if (protocol != protocol_name && protocol.starts_with(any_protocol)) {
    std::string notice(protocol_name);
    notice.resize(nonce_bytes);
    return write(std::move(notice), state::stranger, 0);
  }
  if (protocol != protocol_name || peer_.receiver != self_ || peer_.sender == self_) {
    state_ = state::stranger;
    return;
  }
  const auto nonce = draw_nonce();
  transcript_ = text + nonce;
  write(nonce, state::reading, job_secret::mac_bytes);
}

MUSTER_INLINE void handshake::answer(char reply) {
  write(reply + secret_.sign(proof('2', reply)), reply == 1 ? state::done : state::refused, 0);
}

}}}  // namespace muster::v0::detail
