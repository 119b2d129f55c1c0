#pragma once

#include <muster/comm/net/job_secret.hpp>

#ifdef MUSTER_WITH_OPENSSL
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#endif

#include <cstring>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 { namespace detail {

#ifdef MUSTER_WITH_OPENSSL

[[noreturn]] inline void throw_openssl_failure(const char* operation) {
  throw error(error_kind::other, std::string("OpenSSL cannot ") + operation + " (an incomplete installation?)");
}

inline void sha256(std::string_view text, std::byte* result) {
  if (EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(result), nullptr, EVP_sha256(), nullptr) !=
      1)
    throw_openssl_failure("compute SHA-256");
}

MUSTER_INLINE std::string job_secret::sign(std::string_view text) const {
  std::string mac(mac_bytes, '\0');
  if (HMAC(EVP_sha256(), bytes_.data(), static_cast<int>(bytes_.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(mac.data()), nullptr) == nullptr)
    throw_openssl_failure("compute HMAC-SHA-256");
  return mac;
}

MUSTER_INLINE bool job_secret::has_signed(std::string_view text, std::string_view mac) const {
  return mac.size() == mac_bytes && CRYPTO_memcmp(mac.data(), sign(text).data(), mac_bytes) == 0;
}

#else

// Stands for SHA-256 where there is no OpenSSL: four digests of 64 bits.
inline void sha256(std::string_view text, std::byte* result) {
  for (std::uint64_t part = 0; part < 4; ++part) {
    const std::uint64_t hashed = digest().add(part).add(std::as_bytes(std::span(text))).value();
    std::memcpy(result + part * sizeof hashed, &hashed, sizeof hashed);
  }
}

MUSTER_INLINE std::string job_secret::sign(std::string_view text) const {
  std::string mac(mac_bytes, '\0');
  const std::string_view key(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
  sha256(std::string(key).append(text), reinterpret_cast<std::byte*>(mac.data()));
  return mac;
}

MUSTER_INLINE bool job_secret::has_signed(std::string_view text, std::string_view mac) const {
  return mac == sign(text);
}

#endif

MUSTER_INLINE job_secret::job_secret(std::span<const std::string_view> parts) {
  if constexpr (!is_cryptographic) {
    static const bool is_told = (log(log_level::warning,
                                     "processes are not authenticated over tcp (muster's headers were compiled without "
                                     "OpenSSL); define MUSTER_WITH_OPENSSL and link crypto, or trust the network"),
                                 true);
    (void)is_told;
  }
  wire_writer all;
  // With its length, so that the boundaries of the parts are unambiguous.
  for (const auto& part : parts) all.add_text(part);
  sha256(all.take(), bytes_.data());
}

}}}  // namespace muster::v0::detail
