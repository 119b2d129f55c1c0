// HTTP, as much of it as an etcd needs: requests that travel at the same time, and answers that do not end.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <muster/core/clock.hpp>

namespace muster::inline v0::detail {

struct http_transfer;

/// Posts requests by a thread of its own, over connections that are kept (libcurl). Thread safe.
class http_client {
 public:
  /// Throws error when libcurl cannot begin.
  http_client();
  http_client(const http_client&) = delete;
  http_client& operator=(const http_client&) = delete;
  /// Breaks off what is under way.
  ~http_client();

  struct answer {
    long status = 0;  ///< 0: none came, see `trouble`
    std::string body;
    bool sent = true;  ///< false when the request surely did not reach anybody
    std::string trouble;
  };
  /// Nothing when the deadline comes first; the request is then broken off.
  [[nodiscard]] std::optional<answer> post(const std::string& url, std::string body, clock::time_point until);

  /// A request whose answer comes line by line, for as long as this lives.
  class stream {
   public:
    stream(http_client& owner, std::shared_ptr<http_transfer> what) : owner_(owner), what_(std::move(what)) {}
    stream(const stream&) = delete;
    stream& operator=(const stream&) = delete;
    ~stream();

   private:
    http_client& owner_;
    std::shared_ptr<http_transfer> what_;
  };
  /// `hear` gets each line, and an empty one at the end, on the client's thread; neither may call the client. It may
  /// still be called while the stream is being destroyed, not after.
  [[nodiscard]] std::unique_ptr<stream> open(const std::string& url, std::string body,
                                             std::function<void(std::string_view)> hear);

 private:
  void run();
  void begin(const std::shared_ptr<http_transfer>& what);
  void finish_some();
  void drop(http_transfer& what);
  void break_off(const std::shared_ptr<http_transfer>& what);
  std::shared_ptr<http_transfer> enqueue(const std::string& url, std::string body,
                                         std::function<void(std::string_view)> hear);

  void* multi_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<http_transfer>> to_begin_;
  std::vector<std::shared_ptr<http_transfer>> to_break_off_;
  std::vector<std::shared_ptr<http_transfer>> running_;  // the thread's
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace muster::inline v0::detail
