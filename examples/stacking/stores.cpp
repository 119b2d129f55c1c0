// Objects in external servers: S3 and Redis.
#include <curl/curl.h>
#include <hiredis/hiredis.h>

#include <vector>

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

#include "transfer.hpp"

namespace stacked {
namespace {

template <class T, void (*End)(T*)>
struct ended_by {
  void operator()(T* object) const noexcept { End(object); }
};

class s3_store final : public store {
 public:
  explicit s3_store(const std::string& bucket) {
    const std::string region = muster::environment("AWS_REGION").value_or("us-west-1");
    signature_ = "aws:amz:" + region + ":s3";
    const auto server = muster::environment("AWS_ENDPOINT_URL");
    url_ = server ? *server + "/" + bucket : "https://" + bucket + ".s3." + region + ".amazonaws.com";
    user_ = muster::environment("AWS_ACCESS_KEY").value_or("");
    password_ = muster::environment("AWS_SECRET_KEY").value_or("");
    if (user_.empty() || password_.empty()) {
      throw muster::configuration_error(
          "TRANSFER_TYPE S3 has no key (AWS_ACCESS_KEY and AWS_SECRET_KEY are not set); set both");
    }
    if (::curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) throw_no_memory();
  }

  void put(const std::string& key, std::string bytes, const std::string& digest, deadline until) override {
    ask("PUT", key, &bytes, digest, until);
  }

  std::string get(const std::string& key, deadline until) override {
    // SHA-256 of an empty body.
    return ask("GET", key, nullptr, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", until);
  }

 private:
  std::string ask(const char* method, const std::string& key, const std::string* body, const std::string& digest,
                  deadline until) {
    auto handle = idle_handle();
    CURL* const easy = handle.get();
    const std::string url = url_ + "/" + key, hash = "x-amz-content-sha256: " + digest;
    std::string answer;
    // Debian's libcurl signs every header in the list.
    curl_slist* const lines =
        ::curl_slist_append(::curl_slist_append(nullptr, hash.c_str()), "Content-Type: application/octet-stream");
    const std::unique_ptr<curl_slist, ended_by<curl_slist, ::curl_slist_free_all>> headers(lines);
    ::curl_easy_reset(easy);
    ::curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
    ::curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    ::curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    ::curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, milliseconds_left(until, std::string(method) + " of " + url));
    ::curl_easy_setopt(easy, CURLOPT_HTTPHEADER, lines);
    ::curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, signature_.c_str());
    ::curl_easy_setopt(easy, CURLOPT_USERNAME, user_.c_str());
    ::curl_easy_setopt(easy, CURLOPT_PASSWORD, password_.c_str());
    ::curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L << 10);
    ::curl_easy_setopt(easy, CURLOPT_WRITEDATA, &answer);
    ::curl_easy_setopt(
        easy, CURLOPT_WRITEFUNCTION, +[](char* data, std::size_t size, std::size_t n, void* to) {
          static_cast<std::string*>(to)->append(data, size * n);
          return size * n;
        });
    if (body != nullptr) {
      ::curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body->data());
      ::curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body->size()));
    }
    ::curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
    const CURLcode code = ::curl_easy_perform(easy);
    if (code == CURLE_OPERATION_TIMEDOUT)
      throw muster::timeout_error(method, {}, url + ": no answer in time; check that the server works");
    long status = 0;
    ::curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_OK) {
      const std::lock_guard lock(mutex_);
      idle_.push_back(std::move(handle));
    } else {
      throw muster::data_error({url}, std::string(::curl_easy_strerror(code)) +
                                          "; check that the server is running (AWS_ENDPOINT_URL, AWS_REGION)");
    }
    if (status / 100 == 2) return answer;
    const std::string problem = "the server answers " + std::to_string(status);
    if (status == 401 || status == 403)
      throw muster::configuration_error(url + ": " + problem + "; check AWS_ACCESS_KEY and AWS_SECRET_KEY");
    if (status == 404) throw muster::data_error({url}, problem + ": it does not exist; check BUCKET_NAME and the key");
    throw muster::data_error({url}, problem + "; invoke the driver again");
  }

  using curl_handle = std::unique_ptr<CURL, ended_by<CURL, ::curl_easy_cleanup>>;

  [[noreturn]] static void throw_no_memory() {
    throw muster::error(muster::error_kind::other, "libcurl cannot be initialised (no memory); free memory");
  }

  curl_handle idle_handle() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto last = std::move(idle_.back());
        idle_.pop_back();
        return last;
      }
    }
    curl_handle handle(::curl_easy_init());
    if (handle == nullptr) throw_no_memory();
    return handle;
  }

  std::string url_, signature_, user_, password_;
  std::mutex mutex_{};
  std::vector<curl_handle> idle_{};  // Idle handles, each with an open connection.
};

class redis_store final : public store {
 public:
  explicit redis_store(const std::string& address) : address_(address) {
    const auto colon = address.rfind(':');
    const auto port =
        colon == std::string::npos ? std::nullopt : muster::parse_number<std::uint16_t>(address.substr(colon + 1));
    if (!port || colon == 0) {
      throw muster::configuration_error("BUCKET_NAME cannot be '" + address +
                                        "' with TRANSFER_TYPE REDIS (it names no Redis); give HOST:PORT");
    }
    host_ = address.substr(0, colon);
    port_ = *port;
  }

  /// Stores the object with the deadline as its expiry.
  void put(const std::string& key, std::string bytes, const std::string&, deadline until) override {
    const std::string left = std::to_string(milliseconds_left(until, "SET of " + key));
    ask(key, until, "SET %b %b PX %s", key.data(), key.size(), bytes.data(), bytes.size(), left.c_str());
  }

  std::string get(const std::string& key, deadline until) override {
    const reply found = ask(key, until, "GET %b", key.data(), key.size());
    if (found->type != REDIS_REPLY_STRING)
      fail(key, "it does not exist; check the key, or give the invocation more time");
    return {found->str, found->len};
  }

 private:
  struct end_reply {
    void operator()(redisReply* object) const noexcept { ::freeReplyObject(object); }
  };
  using reply = std::unique_ptr<redisReply, end_reply>;

  [[noreturn]] void fail(const std::string& key, const std::string& why) const {
    throw muster::data_error({"redis://" + address_ + "/" + key}, why);
  }

  template <class... Words>
  reply ask(const std::string& key, deadline until, const char* format, Words... words) {
    const std::lock_guard lock(mutex_);
    // The existing connection may have been closed while it was idle. In this case a new connection is opened.
    for (bool is_new = connection_ == nullptr;; is_new = true) {
      const long left = milliseconds_left(until, "the answer of redis://" + address_);
      const timeval most{left / 1000, 1000 * (left % 1000)};
      if (is_new) connection_.reset(::redisConnectWithTimeout(host_.c_str(), port_, most));
      if (connection_ != nullptr && connection_->err == 0 && ::redisSetTimeout(connection_.get(), most) == REDIS_OK) {
        reply answer(static_cast<redisReply*>(::redisCommand(connection_.get(), format, words...)));
        if (answer != nullptr && answer->type == REDIS_REPLY_ERROR)
          fail(key, "the server answers " + std::string(answer->str, answer->len) + "; see its log");
        if (answer != nullptr) return answer;
      }
      const std::string why = connection_ == nullptr ? "no memory" : connection_->errstr;
      connection_ = nullptr;
      if (is_new) fail(key, why + "; check that the server is running (BUCKET_NAME)");
    }
  }

  std::string address_, host_{};
  int port_ = 0;
  std::mutex mutex_{};
  std::unique_ptr<redisContext, ended_by<redisContext, ::redisFree>> connection_{};
};

}  // namespace

std::unique_ptr<store> make_s3_store(const std::string& bucket) { return std::make_unique<s3_store>(bucket); }

std::unique_ptr<store> make_redis_store(const std::string& address) { return std::make_unique<redis_store>(address); }

}  // namespace stacked
