#include "handshake.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>

#include <algorithm>

#include <muster/core/error.hpp>

#include "../../core/random_bytes.hpp"
#include "../../core/wire.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::string_view protocol_name("muster ranks 2\n",
                                         16);  // with its terminator; the 2 is the protocol's version
constexpr std::size_t nonce_bytes = 32;
constexpr std::size_t hello_bytes = protocol_name.size() + sizeof(introduction) + nonce_bytes;
constexpr std::size_t mac_bytes = job_secret::mac_bytes;

[[noreturn]] void refuse_openssl(const char* operation) {
  throw error(error_kind::other, std::string("OpenSSL cannot ") + operation + " (an incomplete installation?)");
}

std::string draw_nonce() {
  std::string nonce(nonce_bytes, '\0');
  fill_random(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

}  // namespace

job_secret::job_secret(std::span<const std::string_view> parts) {
  wire_writer all;
  // With its length, so that the boundaries of the parts are unambiguous.
  for (const auto& part : parts) all.add_text(part);
  const std::string text = all.take();
  if (EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(bytes_.data()), nullptr, EVP_sha256(),
                 nullptr) != 1)
    refuse_openssl("compute SHA-256");
}

std::string job_secret::sign(std::string_view text) const {
  std::string mac(mac_bytes, '\0');
  if (HMAC(EVP_sha256(), bytes_.data(), static_cast<int>(bytes_.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(mac.data()), nullptr) == nullptr)
    refuse_openssl("compute HMAC-SHA-256");
  return mac;
}

bool job_secret::has_signed(std::string_view text, std::string_view mac) const {
  return mac.size() == mac_bytes && CRYPTO_memcmp(mac.data(), sign(text).data(), mac_bytes) == 0;
}

handshake handshake::connect(const job_secret& secret, const introduction& mine) {
  handshake result(secret, true, mine.sender, 0);
  result.peer_ = {mine.receiver, mine.sender, mine.channel};
  wire_writer hello{std::string(protocol_name)};
  hello.add(mine);
  result.transcript_ = hello.take() + draw_nonce();
  result.write(result.transcript_, state::reading, nonce_bytes);
  return result;
}

handshake handshake::answer(const job_secret& secret, std::uint32_t self) { return {secret, false, self, hello_bytes}; }

void handshake::advance(const tcp_socket& socket) {
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

void handshake::conclude(const tcp_socket& socket, clock::time_point until) {
  for (advance(socket); state_ == state::sending || state_ == state::reading; advance(socket))
    socket.await(state_ == state::sending ? POLLOUT : POLLIN, until);
}

void handshake::write(std::string text, state after, std::size_t expected_after) {
  out_ = std::move(text);
  in_.clear();
  expected_ = expected_after;
  after_ = after;
  state_ = state::sending;
}

void handshake::sent(std::size_t bytes) noexcept {
  out_.erase(0, bytes);
  if (out_.empty()) state_ = after_;
}

void handshake::received(std::span<const std::byte> bytes) {
  in_.append(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), expected_bytes()));
  if (expected_bytes() == 0) read_message(std::exchange(in_, {}));
}

void handshake::read_message(const std::string& text) {
  ++step_;
  if (connects_ && step_ == 1) {
    transcript_ += text;
    write(secret_.sign(proof('1', 0)), state::reading, 1 + mac_bytes);
  } else if (connects_) {
    const char reply = text[0];
    const bool genuine = (reply == 1 || reply == 2) && secret_.has_signed(proof('2', reply), text.substr(1));
    state_ = !genuine ? state::stranger : reply == 1 ? state::done : state::refused;
  } else if (step_ == 1) {
    wire_reader hello(text);
    const bool is_hello = hello.chars(protocol_name.size()) == protocol_name;
    peer_ = hello.number<introduction>();
    if (!is_hello || peer_.receiver != self_ || peer_.sender == self_) {
      state_ = state::stranger;
      return;
    }
    const auto nonce = draw_nonce();
    transcript_ = text + nonce;
    write(nonce, state::reading, mac_bytes);
  } else {
    state_ = secret_.has_signed(proof('1', 0), text) ? state::asking : state::stranger;
  }
}

void handshake::answer(char reply) {
  write(reply + secret_.sign(proof('2', reply)), reply == 1 ? state::done : state::refused, 0);
}

}}}  // namespace muster::v0::detail
