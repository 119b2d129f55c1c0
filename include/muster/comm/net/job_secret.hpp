// The secret of a job, by which its processes know each other.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 { namespace detail {

/// The secret that only the processes of a job know: SHA-256 over its parts.
class job_secret {
 public:
  static constexpr std::size_t mac_bytes = 32;
#ifdef MUSTER_WITH_OPENSSL
  static constexpr bool is_cryptographic = true;
#else
  static constexpr bool is_cryptographic = false;  ///< false for headers without OpenSSL: hashes keep jobs apart
#endif

  job_secret() = default;
  /// Derives the secret from all parts in their order. The same parts give the same secret.
  explicit job_secret(std::span<const std::string_view> parts);

  [[nodiscard]] std::span<const std::byte, 32> bytes() const noexcept { return bytes_; }
  /// Returns the HMAC-SHA-256 (RFC 2104) of a text, computed by OpenSSL.
  [[nodiscard]] std::string sign(std::string_view text) const;
  /// Returns true if `mac` is the HMAC of the text. The comparison takes constant time.
  [[nodiscard]] bool has_signed(std::string_view text, std::string_view mac) const;

 private:
  std::array<std::byte, 32> bytes_{};
};

}}}  // namespace muster::v0::detail
