#include "handshake.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {
namespace {

constexpr char greeting[16] = "muster ranks 1\n";  // the 1 is the version of this protocol

[[noreturn]] void refuse_openssl(const char* what) {
  throw error(error_kind::other, std::string("OpenSSL cannot ") + what + " (is it installed whole?)");
}

const unsigned char* plain(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

}  // namespace

job_secret::job_secret(std::span<const std::string_view> parts) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> sum(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  bool fine = sum != nullptr && EVP_DigestInit_ex(sum.get(), EVP_sha256(), nullptr) == 1;
  for (const auto& part : parts) {
    const std::uint64_t length = part.size();  // so that parts do not run into each other
    fine = fine && EVP_DigestUpdate(sum.get(), &length, sizeof length) == 1;
    fine = fine && EVP_DigestUpdate(sum.get(), part.data(), part.size()) == 1;
  }
  unsigned length = 0;
  fine = fine && EVP_DigestFinal_ex(sum.get(), reinterpret_cast<unsigned char*>(bytes_.data()), &length) == 1;
  if (!fine || length != bytes_.size()) refuse_openssl("compute SHA-256");
}

void fill_random(std::span<std::byte> bytes) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) != 1)
    refuse_openssl("make random numbers");
}

handshake handshake::connect(const job_secret& secret, const introduction& mine) {
  handshake made(secret);
  made.connects_ = true;
  made.who_ = {mine.to, mine.from, mine.line, mine.lines};
  std::memcpy(made.hello_.data(), greeting, sizeof greeting);
  std::memcpy(made.hello_.data() + sizeof greeting, &mine, sizeof mine);
  fill_random(std::span(made.hello_).last(nonce_bytes));
  made.write(made.hello_, state::reading, nonce_bytes);
  return made;
}

handshake handshake::answer(const job_secret& secret, std::uint32_t self) {
  handshake made(secret);
  made.self_ = self;
  made.want_ = hello_bytes;
  return made;
}

void handshake::write(std::span<const std::byte> bytes, state after, std::size_t want_after) {
  std::copy(bytes.begin(), bytes.end(), out_.begin());
  out_size_ = bytes.size();
  sent_ = 0;
  have_ = 0;
  want_ = want_after;
  after_ = after;
  state_ = state::sending;
}

void handshake::sent(std::size_t bytes) noexcept {
  sent_ += bytes;
  if (sent_ == out_size_) state_ = after_;
}

void handshake::received(std::span<const std::byte> bytes) {
  const std::size_t n = std::min(bytes.size(), wanted());
  std::copy_n(bytes.begin(), n, in_.begin() + static_cast<std::ptrdiff_t>(have_));
  have_ += n;
  if (have_ == want_) read_message();
}

handshake::mac handshake::sign(char side, std::uint8_t verdict) const {
  std::array<std::byte, 2 + hello_bytes + nonce_bytes> text{};
  text[0] = static_cast<std::byte>(side);
  text[1] = static_cast<std::byte>(verdict);
  std::copy(hello_.begin(), hello_.end(), text.begin() + 2);
  std::copy(challenge_.begin(), challenge_.end(), text.begin() + 2 + hello_bytes);
  mac made{};
  unsigned length = 0;
  const auto key = secret_.bytes();
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), plain(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(made.data()), &length) == nullptr ||
      length != mac_bytes)
    refuse_openssl("compute HMAC-SHA-256");
  return made;
}

void handshake::read_message() {
  const auto is_signed = [&](const std::byte* at, char side, std::uint8_t verdict) {
    const mac expected = sign(side, verdict);
    return CRYPTO_memcmp(at, expected.data(), expected.size()) == 0;
  };
  ++step_;
  if (connects_ && step_ == 1) {
    std::copy_n(in_.begin(), nonce_bytes, challenge_.begin());
    return write(sign('1', 0), state::reading, 1 + mac_bytes);
  }
  if (connects_) {
    const auto verdict = static_cast<std::uint8_t>(in_[0]);
    const bool genuine = (verdict == 1 || verdict == 2) && is_signed(in_.data() + 1, '2', verdict);
    state_ = !genuine ? state::stranger : verdict == 1 ? state::done : state::refused;
    return;
  }
  if (step_ == 1) {
    std::copy_n(in_.begin(), hello_bytes, hello_.begin());
    std::memcpy(&who_, hello_.data() + sizeof greeting, sizeof who_);
    if (std::memcmp(hello_.data(), greeting, sizeof greeting) != 0 || who_.to != self_ || who_.from == self_ ||
        who_.line >= who_.lines) {
      state_ = state::stranger;
      return;
    }
    fill_random(challenge_);
    return write(challenge_, state::reading, mac_bytes);
  }
  state_ = is_signed(in_.data(), '1', 0) ? state::asking : state::stranger;
}

void handshake::give_verdict(std::uint8_t verdict) {
  std::array<std::byte, 1 + mac_bytes> text{};
  text[0] = static_cast<std::byte>(verdict);
  const mac proof = sign('2', verdict);
  std::copy(proof.begin(), proof.end(), text.begin() + 1);
  write(text, verdict == 1 ? state::done : state::refused, 0);
}

}  // namespace muster::inline v0::detail
