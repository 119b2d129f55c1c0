#include "http.hpp"

#include <curl/curl.h>

#include <algorithm>

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {

struct http_transfer {
  ~http_transfer() {
    if (easy != nullptr) ::curl_easy_cleanup(easy);
    ::curl_slist_free_all(headers);
  }
  std::string url;
  std::string body;
  std::function<void(std::string_view)> hear;
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  // Written by the client's thread before `done`.
  http_client::answer said;
  bool done = false;  // with the client's mutex
};

namespace {

constexpr std::size_t largest_answer = std::size_t{64} << 20;

std::size_t take_bytes(char* data, std::size_t one, std::size_t count, void* whose) noexcept {
  auto& to = *static_cast<http_transfer*>(whose);
  try {
    to.said.body.append(data, one * count);
    if (to.said.body.size() > largest_answer) return 0;
    if (!to.hear) return one * count;
    for (auto end = to.said.body.find('\n'); end != std::string::npos; end = to.said.body.find('\n')) {
      const auto line = to.said.body.substr(0, end);
      to.said.body.erase(0, end + 1);
      if (!line.empty()) to.hear(line);
    }
  } catch (const std::exception&) {  // no memory: as if the connection had broken
    return 0;
  }
  return one * count;
}

CURL* prepare(http_transfer& what) {
  CURL* const easy = ::curl_easy_init();
  if (easy == nullptr) throw error(error_kind::other, "libcurl gives no handle (no memory)");
  what.easy = easy;
  what.headers = ::curl_slist_append(nullptr, "Content-Type: application/json");
  what.headers = ::curl_slist_append(what.headers, "Expect:");
  ::curl_easy_setopt(easy, CURLOPT_URL, what.url.c_str());
  ::curl_easy_setopt(easy, CURLOPT_HTTPHEADER, what.headers);
  ::curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(what.body.size()));
  ::curl_easy_setopt(easy, CURLOPT_POSTFIELDS, what.body.c_str());
  ::curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &take_bytes);
  ::curl_easy_setopt(easy, CURLOPT_WRITEDATA, &what);
  ::curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");  // a store of the cluster's own
  ::curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, 3000L);
  ::curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  ::curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, 5L);
  ::curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, 5L);
  ::curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  return easy;
}

}  // namespace

http_client::http_client() {
  static const CURLcode begun = ::curl_global_init(CURL_GLOBAL_DEFAULT);  // once a process, and never ended
  multi_ = begun == CURLE_OK ? ::curl_multi_init() : nullptr;
  if (multi_ == nullptr) throw error(error_kind::other, "libcurl cannot begin; use another store");
  thread_ = std::thread([this] { run(); });
}

http_client::~http_client() {
  {
    const std::lock_guard held(mutex_);
    stopping_ = true;
  }
  ::curl_multi_wakeup(static_cast<CURLM*>(multi_));
  thread_.join();
  ::curl_multi_cleanup(static_cast<CURLM*>(multi_));
}

void http_client::run() {
  for (;;) {
    std::vector<std::shared_ptr<http_transfer>> beginning;
    std::vector<std::shared_ptr<http_transfer>> ending;
    {
      const std::lock_guard held(mutex_);
      beginning.swap(to_begin_);
      ending.swap(to_break_off_);
    }
    for (const auto& one : beginning) begin(one);
    bool stops = false;
    {
      const std::lock_guard held(mutex_);
      stops = stopping_;
    }
    if (stops) ending = running_;
    for (const auto& one : ending) drop(*one);
    if (stops) return;
    int running = 0;
    (void)::curl_multi_perform(static_cast<CURLM*>(multi_), &running);
    finish_some();
    (void)::curl_multi_poll(static_cast<CURLM*>(multi_), nullptr, 0, 1000, nullptr);
  }
}

void http_client::begin(const std::shared_ptr<http_transfer>& what) {
  running_.push_back(what);
  ::curl_multi_add_handle(static_cast<CURLM*>(multi_), what->easy);
}

void http_client::finish_some() {
  int left = 0;
  while (CURLMsg* const message = ::curl_multi_info_read(static_cast<CURLM*>(multi_), &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const auto found = std::find_if(running_.begin(), running_.end(),
                                    [&](const auto& one) { return one->easy == message->easy_handle; });
    if (found == running_.end()) continue;
    auto& what = **found;
    const CURLcode code = message->data.result;
    if (code == CURLE_OK) {
      ::curl_easy_getinfo(what.easy, CURLINFO_RESPONSE_CODE, &what.said.status);
    } else {
      what.said.trouble = ::curl_easy_strerror(code);
      what.said.sent = code != CURLE_COULDNT_CONNECT && code != CURLE_COULDNT_RESOLVE_HOST;
    }
    drop(what);
  }
}

void http_client::drop(http_transfer& what) {
  const auto found =
      std::find_if(running_.begin(), running_.end(), [&](const auto& one) { return one.get() == &what; });
  if (found != running_.end()) {
    ::curl_multi_remove_handle(static_cast<CURLM*>(multi_), what.easy);
    const auto kept = *found;
    running_.erase(found);
    if (kept->hear) kept->hear({});
    const std::lock_guard held(mutex_);
    kept->done = true;
  }
  changed_.notify_all();
}

std::shared_ptr<http_transfer> http_client::enqueue(const std::string& url, std::string body,
                                                    std::function<void(std::string_view)> hear) {
  auto what = std::make_shared<http_transfer>();
  what->url = url;
  what->body = std::move(body);
  what->hear = std::move(hear);
  prepare(*what);
  {
    const std::lock_guard held(mutex_);
    to_begin_.push_back(what);
  }
  ::curl_multi_wakeup(static_cast<CURLM*>(multi_));
  return what;
}

void http_client::break_off(const std::shared_ptr<http_transfer>& what) {
  {
    const std::lock_guard held(mutex_);
    if (what->done) return;
    to_break_off_.push_back(what);
  }
  ::curl_multi_wakeup(static_cast<CURLM*>(multi_));
  std::unique_lock held(mutex_);
  changed_.wait(held, [&] { return what->done; });  // the client's thread never waits for anybody
}

std::optional<http_client::answer> http_client::post(const std::string& url, std::string body,
                                                     clock::time_point until) {
  const auto what = enqueue(url, std::move(body), {});
  {
    std::unique_lock held(mutex_);
    if (changed_.wait_until(held, until, [&] { return what->done; })) return std::move(what->said);
  }
  break_off(what);
  return std::nullopt;
}

std::unique_ptr<http_client::stream> http_client::open(const std::string& url, std::string body,
                                                       std::function<void(std::string_view)> hear) {
  return std::make_unique<stream>(*this, enqueue(url, std::move(body), std::move(hear)));
}

http_client::stream::~stream() { owner_.break_off(what_); }

}  // namespace muster::inline v0::detail
