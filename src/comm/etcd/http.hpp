// HTTP, as much of it as an etcd needs: requests of many threads at the same time, and answers that do not end.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/clock.hpp>

namespace muster::inline v0::detail {

/// Posts requests over connections that are kept (libcurl), each on the thread that calls. Thread safe.
class http_client {
 public:
  /// Throws error when libcurl cannot begin.
  http_client();

  struct answer {
    long status = 0;  ///< 0: none came by the deadline
    std::string body;
    bool sent = true;  ///< false when the request surely did not reach anybody
  };
  [[nodiscard]] answer post(const std::string& url, const std::string& body, clock::time_point until);

  /// A request whose answer comes line by line; `hear` gets each. Returns when the answer ends, or when it is to stop.
  void follow(const std::string& url, const std::string& body, const std::stop_token& stop,
              const std::function<void(std::string_view)>& hear);

 private:
  // A CURL*, whose type is libcurl's business.
  using handle = std::unique_ptr<void, void (*)(void*)>;
  [[nodiscard]] handle take(const std::string& url, const std::string& body);

  std::mutex mutex_;
  std::vector<handle> idle_;  // each with the connection that it had last
  std::unique_ptr<void, void (*)(void*)> headers_;
};

}  // namespace muster::inline v0::detail
