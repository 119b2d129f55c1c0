// The transfer of objects from the function that creates them to the functions that use them (TRANSFER_TYPE).
#pragma once

#include <grpcpp/grpcpp.h>
#include <array>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "trace.hpp"

namespace stacked {

using deadline = std::chrono::system_clock::time_point;  // As in gRPC.

/// The call that is being answered, and its deadline.
struct call {
  deadline until;
  span& in;
};

/// Returns the milliseconds left. Throws muster::timeout_error, which names `operation`, when the deadline has passed.
[[nodiscard]] long milliseconds_left(deadline until, const std::string& operation);

/// A store of objects by their keys. Thread safe. A failure is reported as one line with the key, within the deadline.
class store {
 public:
  store() = default;
  store(const store&) = delete;
  store& operator=(const store&) = delete;
  virtual ~store() = default;
  /// Stores an object, which need not be kept after the deadline. `digest` is its SHA-256.
  virtual void put(const std::string& key, std::string bytes, const std::string& digest, deadline until) = 0;
  [[nodiscard]] virtual std::string get(const std::string& key, deadline until) = 0;
  /// Returns the prefix of keys for the functions that get the objects.
  [[nodiscard]] virtual std::string prefix() const { return ""; }
};

/// Returns a store in an S3 bucket, at AWS_ENDPOINT_URL or Amazon.
[[nodiscard]] std::unique_ptr<store> make_s3_store(const std::string& bucket);
/// Returns a store in a Redis server, HOST:PORT.
[[nodiscard]] std::unique_ptr<store> make_redis_store(const std::string& address);

/// A store for XDT. The process that creates an object keeps it until its deadline, and sends it on request
/// (stacking.Objects). Objects of other processes are requested from these processes.
class kept_objects final : public store {
 public:
  /// Sets the address HOST:PORT at which others reach this process.
  void set_address(const std::string& address) { prefix_ = "xdt://" + address + "/"; }
  void put(const std::string& key, std::string bytes, const std::string& digest, deadline until) override;
  [[nodiscard]] std::string get(const std::string& key, deadline until) override;
  [[nodiscard]] std::string prefix() const override { return prefix_; }
  /// Returns an object that is kept here; null if there is no object with this key.
  [[nodiscard]] std::shared_ptr<const std::string> find(const std::string& key);

 private:
  struct kept {
    std::shared_ptr<const std::string> bytes;
    deadline until;
  };
  [[nodiscard]] std::shared_ptr<grpc::Channel> channel_to(const std::string& maker);

  std::string prefix_{};
  std::mutex mutex_{};
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_{};
  std::map<std::string, kept> objects_{};
};

/// The transfer of objects. Without a store, objects are sent inline. Each object has a key: the store's prefix, the
/// invocation, the object's name and its digest. Received objects are verified by this digest.
class transfer {
 public:
  explicit transfer(std::shared_ptr<store> by) : by_(std::move(by)) {}
  [[nodiscard]] bool is_inline() const noexcept { return by_ == nullptr; }
  /// Sets the key, and for inline objects also the bytes.
  void put(const call& of, const std::string& invocation, const std::string& name, std::string object,
           std::string* bytes, std::string* key) const;
  [[nodiscard]] std::string get(const call& of, const std::string& bytes, const std::string& key) const;
  /// Runs puts and gets that do not depend on one another, each in a thread. Inline calls run one after the other
  /// because they never wait. When all have ended, rethrows the exception of the first call that failed.
  template <class... Calls>
  void at_once(Calls... calls) const {
    const auto policy = is_inline() ? std::launch::deferred : std::launch::async;
    std::array pending{std::async(policy, std::move(calls))...};
    for (auto& call : pending) call.wait();
    for (auto& call : pending) call.get();
  }

 private:
  std::shared_ptr<store> by_;
};

/// Returns the invocation in a key.
[[nodiscard]] std::string invocation_of(const std::string& key);

/// Returns the SHA-256 as hexadecimal digits.
[[nodiscard]] std::string digest_of(std::string_view bytes);

}  // namespace stacked
