// Calls of an etcd's version 3, as JSON over HTTP.
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

/// The members of a cluster, of which the one that answered last is asked first, over connections that are kept
/// (libcurl), on the thread that calls. Thread safe.
class etcd_client {
 public:
  /// Throws error when libcurl cannot begin.
  etcd_client(std::string_view endpoints, std::string_view scheme);

  /// What may be asked twice without harm is asked again, of the next member, until the deadline.
  enum class when_lost { again, give_up };
  /// Throws timeout_error (with `call` and `key` in its text) at the deadline or when the answer of what must not be
  /// asked twice was lost, peer_failure where etcd does not know the lease, configuration_error where it refuses.
  [[nodiscard]] nlohmann::json ask(const char* call, std::string_view key, std::string_view path,
                                   const nlohmann::json& what, clock::time_point until, when_lost then);
  /// Returns when the key may have changed in that revision or since, as one member tells it, at the deadline, and when
  /// it is to stop.
  void await_change(std::string_view key, std::uint64_t revision, clock::time_point until, const std::stop_token& stop);

  [[nodiscard]] const std::string& where() const noexcept { return where_; }

 private:
  // A CURL*: the type is libcurl's business.
  using handle = std::unique_ptr<void, void (*)(void*)>;
  struct answer {
    long status = 0;  // 0: none came by the deadline
    std::string body;
    bool sent = true;  // false when the request surely did not reach the member
  };
  [[nodiscard]] handle take(const std::string& url, const std::string& body);
  [[nodiscard]] answer post(const std::string& url, const std::string& body, clock::time_point until);
  [[nodiscard]] const std::string& endpoint(std::size_t which) const { return endpoints_[which % endpoints_.size()]; }

  std::mutex mutex_;
  std::vector<handle> idle_;  // each with the connection that it had last
  handle headers_;
  std::vector<std::string> endpoints_;
  std::string where_;
  std::atomic<std::size_t> present_ = 0;
};

/// etcd writes 64-bit numbers as text, and leaves out zeros.
[[nodiscard]] std::uint64_t number_in(const nlohmann::json& object, const char* name);
/// The version and value of a key-value pair of an answer.
[[nodiscard]] store_entry entry_in(const nlohmann::json& pair);

}}}  // namespace muster::v0::detail
