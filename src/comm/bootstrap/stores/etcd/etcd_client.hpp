// Calls to version 3 of etcd, as JSON over HTTP.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/bootstrap/store.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The members of an etcd cluster. A call first asks the member that answered last, over a persistent connection
/// (libcurl). The caller's thread waits for the reply. Thread safe.
class etcd_client {
 public:
  /// Throws error when libcurl cannot be initialised.
  etcd_client(std::string_view endpoints, std::string_view scheme);

  /// The reaction to a lost reply: `again` repeats an idempotent request at the next member, until the deadline.
  enum class when_lost { again, give_up };
  /// Sends a request and returns the reply. Throws timeout_error (with `function` and `key` in its text) at the
  /// deadline, or when the reply to a request that must not be repeated was lost; peer_failure if etcd does not know
  /// the lease; configuration_error if etcd rejects the request.
  [[nodiscard]] nlohmann::json ask(const char* function, std::string_view key, std::string_view path,
                                   const nlohmann::json& request, clock::time_point until, when_lost on_loss);
  /// Waits until a member reports that the key may have changed in that revision or later, until the deadline, or until
  /// a stop request. Also returns when the member cancels the watch, and, after a short pause, when the
  /// connection to the member ends.
  void await_change(std::string_view key, std::uint64_t revision, clock::time_point until, const std::stop_token& stop);

  [[nodiscard]] const std::string& where() const noexcept { return where_; }

 private:
  // A CURL*, or the curl_slist* of `headers_`; the types are private to libcurl.
  using handle = std::unique_ptr<void, void (*)(void*)>;
  struct http_reply {
    long status = 0;  // 0: no reply arrived by the deadline
    std::string body;
    bool sent = true;  // false if the request certainly did not reach the member
  };
  // Returns an idle or new handle with this request.
  [[nodiscard]] handle take(const std::string& url, const std::string& body);
  [[nodiscard]] http_reply post(const std::string& url, const std::string& body, clock::time_point until);
  [[nodiscard]] const std::string& endpoint(std::size_t index) const { return endpoints_[index % endpoints_.size()]; }

  std::mutex mutex_;
  std::vector<handle> idle_;  // each with its last connection; guarded by mutex_
  handle headers_;
  std::vector<std::string> endpoints_;
  std::string where_;
  std::atomic<std::size_t> present_ = 0;  // index of the endpoint to ask first, modulo the number of endpoints
};

/// Returns the number with that name. Accepts text, because etcd writes 64-bit numbers as text. Returns 0 for an absent
/// member, because etcd omits zeros, and for a value that is no number.
[[nodiscard]] std::uint64_t number_in(const nlohmann::json& object, const char* name);
/// Returns the version and value of a key-value pair of a reply.
[[nodiscard]] store_entry entry_in(const nlohmann::json& pair);

}}}  // namespace muster::v0::detail
