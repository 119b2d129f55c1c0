// How two processes of a job prove to each other that they know its secret, before a byte of anything else is believed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace muster::inline v0::detail {

/// What the processes of a job know and nobody else does: SHA-256 of what it is made from.
class job_secret {
 public:
  job_secret() = default;
  /// All parts in their order; the same parts make the same secret.
  explicit job_secret(std::span<const std::string_view> parts);

  [[nodiscard]] std::span<const std::byte, 32> bytes() const noexcept { return bytes_; }

 private:
  std::array<std::byte, 32> bytes_{};
};

/// Bytes that nobody can foresee, from OpenSSL.
void fill_random(std::span<std::byte> bytes);

/// Who connects to whom, and what for.
struct introduction {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t line = 0;   ///< which of the connections between the two
  std::uint32_t lines = 0;  ///< of how many

  bool operator==(const introduction&) const = default;
};

/// One side of a handshake, without its socket: bytes in, bytes out.
///
/// The one who connects introduces itself; the other answers with a challenge; the first proves that it knows the
/// secret, then the second, together with its word whether it wants the connection:
///
///     introduction, nonce A          ->
///                                   <-  nonce B
///     HMAC(secret, "1", all so far)  ->
///                                   <-  verdict, HMAC(secret, "2", all so far, verdict)
///
/// HMAC is HMAC-SHA-256 (RFC 2104) by OpenSSL, compared in constant time. So neither can be replayed or turned around,
/// both are bound to the ranks and the line they speak of, and who does not know the secret learns nothing from it.
class handshake {
 public:
  enum class state {
    sending,  ///< `output` is to be written
    reading,  ///< so many bytes as `wanted` says are to be read, no more: what follows is not its business
    asking,   ///< the other side is who it says; `accept` or `refuse`
    done,     ///< the connection stands
    refused,  ///< the other side is one of the job and does not want this connection (it connects itself)
    stranger  ///< the other side is not of the job
  };

  /// The side that connects.
  static handshake connect(const job_secret& secret, const introduction& mine);
  /// The side that listens, as rank `self`; from a process that is there already or asks for somebody else it wants
  /// nothing.
  static handshake answer(const job_secret& secret, std::uint32_t self);

  [[nodiscard]] state now() const noexcept { return state_; }
  [[nodiscard]] std::span<const std::byte> output() const noexcept { return {out_.data() + sent_, out_size_ - sent_}; }
  void sent(std::size_t bytes) noexcept;
  [[nodiscard]] std::size_t wanted() const noexcept { return want_ - have_; }
  void received(std::span<const std::byte> bytes);
  [[nodiscard]] const introduction& other() const noexcept { return who_; }
  void accept() { give_verdict(1); }
  void refuse() { give_verdict(2); }

 private:
  static constexpr std::size_t hello_bytes = 64;
  static constexpr std::size_t nonce_bytes = 32;
  static constexpr std::size_t mac_bytes = 32;
  using mac = std::array<std::byte, mac_bytes>;

  explicit handshake(const job_secret& secret) : secret_(secret) {}
  void write(std::span<const std::byte> bytes, state after, std::size_t want_after);
  void read_message();
  void give_verdict(std::uint8_t verdict);
  [[nodiscard]] mac sign(char side, std::uint8_t verdict) const;

  job_secret secret_;
  state state_ = state::reading;
  state after_ = state::reading;
  int step_ = 0;
  bool connects_ = false;
  std::uint32_t self_ = 0;
  introduction who_;
  std::array<std::byte, hello_bytes> hello_{};
  std::array<std::byte, nonce_bytes> challenge_{};
  std::array<std::byte, 96> out_{};
  std::size_t out_size_ = 0;
  std::size_t sent_ = 0;
  std::array<std::byte, 96> in_{};
  std::size_t have_ = 0;
  std::size_t want_ = 0;
};

}  // namespace muster::inline v0::detail
