// Calls of an etcd's version 3, as JSON.
#pragma once

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/rendezvous/store.hpp>

#include "http.hpp"

namespace muster::inline v0::detail {

/// The members of a cluster, of which the one that answered last is asked first. Thread safe.
class etcd_client {
 public:
  etcd_client(std::string_view endpoints, std::string_view scheme);

  /// What may be asked twice without harm is asked again, of the next member, until the deadline.
  enum class when_lost { again, give_up };
  /// Throws timeout_error (with `call` and `key` in its text) at the deadline or when the answer of what must not be
  /// asked twice was lost, store_lease_ended where etcd knows no such lease, configuration_error where it refuses.
  [[nodiscard]] nlohmann::json ask(const char* call, std::string_view key, std::string_view path,
                                   const nlohmann::json& what, clock::time_point until, when_lost then);
  /// The changes in a range of keys from that revision on, as one member tells them; see http_client::follow.
  void follow(nlohmann::json range, std::uint64_t revision, const std::stop_token& stop,
              const std::function<void(std::string_view)>& hear);

  [[nodiscard]] const std::string& where() const noexcept { return where_; }

 private:
  [[nodiscard]] const std::string& endpoint(std::size_t which) const { return endpoints_[which % endpoints_.size()]; }

  std::vector<std::string> endpoints_;
  std::string where_;
  std::atomic<std::size_t> present_ = 0;
  http_client http_;
};

/// etcd writes 64-bit numbers as text, and leaves out zeros.
[[nodiscard]] std::uint64_t number_in(const nlohmann::json& object, const char* name);
/// The version and value of a key-value pair of an answer.
[[nodiscard]] store_entry entry_in(const nlohmann::json& pair);

}  // namespace muster::inline v0::detail
