#include "transfer.hpp"

#include <grpcpp/grpcpp.h>
#include <openssl/evp.h>

#include <muster/core/error.hpp>

#include "rpc.hpp"

namespace stacked {
namespace {

constexpr std::size_t digest_size = 64, most_channels = 64;

[[noreturn]] void refuse(const std::string& key, const std::string& why, const std::string& suggestion) {
  throw muster::data_error({"object '" + key + "'"}, why + "; " + suggestion);
}

/// Returns the part of a key after the last slash but one, which identifies the object in its store.
std::string local_key(const std::string& key) {
  const auto last = key.rfind('/');
  const auto before = last == std::string::npos || last == 0 ? std::string::npos : key.rfind('/', last - 1);
  return before == std::string::npos ? key : key.substr(before + 1);
}

std::string expected_digest(const std::string& key) {
  const auto dot = key.rfind('.');
  const std::string digest = dot == std::string::npos ? "" : key.substr(dot + 1);
  if (digest.size() != digest_size || digest.find_first_not_of("0123456789abcdef") != std::string::npos ||
      local_key(key).find('/') == std::string::npos)
    refuse(key, "the key is not INVOCATION/NAME.DIGEST", "pass the key on unchanged");
  return digest;
}

}  // namespace

long milliseconds_left(deadline until, const std::string& operation) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::system_clock::now());
  if (left.count() <= 0)
    throw muster::timeout_error(operation, {},
                                operation + " did not end in time (the deadline passed); give more time");
  return std::min<std::int64_t>(left.count(), 1000L * 3600 * 24);
}

std::string digest_of(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (::EVP_Digest(bytes.data(), bytes.size(), digest, &size, ::EVP_sha256(), nullptr) != 1)
    throw muster::error(muster::error_kind::other, "OpenSSL has no SHA-256 (see its configuration); install it anew");
  std::string text;
  for (unsigned k = 0; k < size; ++k) {
    text += "0123456789abcdef"[digest[k] >> 4U];
    text += "0123456789abcdef"[digest[k] & 15U];
  }
  return text;
}

std::string invocation_of(const std::string& key) {
  const std::string local = local_key(key);
  return local.substr(0, local.find('/'));
}

void transfer::put(const call& of, const std::string& invocation, const std::string& name, std::string object,
                   std::string* bytes, std::string* key) const {
  span timed(of.in, "Put " + name);
  const std::string digest = digest_of(object);
  const std::string local = invocation + "/" + name + "." + digest;
  timed.tag("bytes", std::to_string(object.size()));
  *key = by_ == nullptr ? local : by_->prefix() + local;
  if (by_ == nullptr) {
    *bytes = std::move(object);
  } else {
    by_->put(local, std::move(object), digest, of.until);
  }
}

std::string transfer::get(const call& of, const std::string& bytes, const std::string& key) const {
  const std::string digest = expected_digest(key);
  const std::string local = local_key(key);
  const auto name_at = local.find('/') + 1;
  span timed(of.in, "Get " + local.substr(name_at, local.rfind('.') - name_at));
  std::string object = by_ == nullptr ? bytes : by_->get(key, of.until);
  if (digest_of(object) != digest) {
    refuse(key, "its digest does not match (" + std::to_string(object.size()) + " bytes came)",
           "invoke the driver again");
  }
  timed.tag("bytes", std::to_string(object.size()));
  return object;
}

void kept_objects::put(const std::string& key, std::string bytes, const std::string&, deadline until) {
  const auto now = std::chrono::system_clock::now();
  const std::lock_guard lock(mutex_);
  std::erase_if(objects_, [&](const auto& entry) { return entry.second.until < now; });
  objects_[key] = {std::make_shared<const std::string>(std::move(bytes)), until};
}

std::shared_ptr<const std::string> kept_objects::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto at = objects_.find(key);
  return at == objects_.end() ? nullptr : at->second.bytes;
}

std::shared_ptr<grpc::Channel> kept_objects::channel_to(const std::string& maker) {
  const std::lock_guard lock(mutex_);
  // Calls in progress keep their channels.
  if (channels_.size() >= most_channels && !channels_.contains(maker)) channels_.clear();
  auto& channel = channels_[maker];
  if (channel == nullptr) channel = grpc::CreateChannel(maker, grpc::InsecureChannelCredentials());
  return channel;
}

std::string kept_objects::get(const std::string& key, deadline until) {
  constexpr std::string_view scheme = "xdt://";
  const auto slash = key.find('/', scheme.size());
  if (!key.starts_with(scheme) || slash == std::string::npos)
    refuse(key, "the key names no XDT process", "use one TRANSFER_TYPE for all functions");
  const std::string maker = key.substr(scheme.size(), slash - scheme.size());
  stacking::ObjectKey request;
  request.set_key(key.substr(slash + 1));
  if (const auto own = find(request.key()); own != nullptr && key.starts_with(prefix_)) return *own;
  const auto stub = stacking::Objects::NewStub(channel_to(maker));
  grpc::ClientContext context;
  context.set_deadline(until);
  const auto stream = stub->Pull(&context, request);
  counted_bytes object;
  if (!read_pieces(*stream, object)) {
    context.TryCancel();
    refuse(key, "it is too large (more than " + std::to_string(counted_bytes::most >> 20) + " MiB)",
           "use another TRANSFER_TYPE");
  }
  if (const auto status = stream->Finish(); !status.ok())
    refuse(key, "its process does not send it (" + status.error_message() + ")", "invoke the driver again");
  return object.get();
}

}  // namespace stacked
