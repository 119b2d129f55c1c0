// How objects come from the function that makes them to those that use them (TRANSFER_TYPE).
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

using deadline = std::chrono::system_clock::time_point;  // as gRPC has them

/// The call that is being answered, and its deadline.
struct call {
  deadline until;
  span& in;
};

/// Milliseconds left; throws muster::timeout_error, which names `what`, when there are none.
[[nodiscard]] long milliseconds_left(deadline until, const std::string& what);

/// Where objects lie by their keys. Thread safe. What goes wrong is one line with the key, within the deadline.
class store {
 public:
  store() = default;
  store(const store&) = delete;
  store& operator=(const store&) = delete;
  virtual ~store() = default;
  /// It is of no use after the deadline. `digest` is its SHA-256.
  virtual void put(const std::string& key, std::string bytes, const std::string& digest, deadline until) = 0;
  [[nodiscard]] virtual std::string get(const std::string& key, deadline until) = 0;
  /// What stands before a key, for the functions that get it.
  [[nodiscard]] virtual std::string prefix() const { return ""; }
};

/// A bucket of S3, at AWS_ENDPOINT_URL or Amazon's.
[[nodiscard]] std::unique_ptr<store> make_s3_store(const std::string& bucket);
/// A Redis, HOST:PORT.
[[nodiscard]] std::unique_ptr<store> make_redis_store(const std::string& address);

/// XDT: the maker keeps an object until its deadline, and sends it when it is asked (stacking.Objects). Of other makers
/// it asks for theirs.
class kept_objects final : public store {
 public:
  /// Others reach this process at HOST:PORT.
  void listens_at(const std::string& address) { prefix_ = "xdt://" + address + "/"; }
  void put(const std::string& key, std::string bytes, const std::string& digest, deadline until) override;
  [[nodiscard]] std::string get(const std::string& key, deadline until) override;
  [[nodiscard]] std::string prefix() const override { return prefix_; }
  /// An object that is kept here; null where there is none of that key.
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

/// Puts and gets objects: inline, where there is no store, else by a key that begins with the invocation and ends with
/// the digest of what it names. What comes is checked by that digest.
class transfer {
 public:
  explicit transfer(std::shared_ptr<store> by) : by_(std::move(by)) {}
  [[nodiscard]] bool is_inline() const noexcept { return by_ == nullptr; }
  /// Sets the key, and inline also the bytes.
  void put(const call& of, const std::string& invocation, const std::string& name, std::string object,
           std::string* bytes, std::string* key) const;
  [[nodiscard]] std::string get(const call& of, const std::string& bytes, const std::string& key) const;
  /// Puts and gets that do not wait for one another, each in a thread; inline one after the other, for there is nothing
  /// to wait for. When all have ended it throws what the first of them has thrown.
  template <class... Calls>
  void at_once(Calls... calls) const {
    const auto how = is_inline() ? std::launch::deferred : std::launch::async;
    std::array pending{std::async(how, std::move(calls))...};
    for (auto& one : pending) one.wait();
    for (auto& one : pending) one.get();
  }

 private:
  std::shared_ptr<store> by_;
};

/// The invocation that a key begins with.
[[nodiscard]] std::string invocation_of(const std::string& key);

/// SHA-256 as hexadecimal digits.
[[nodiscard]] std::string digest_of(std::string_view bytes);

}  // namespace stacked
