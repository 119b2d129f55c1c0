#include "http.hpp"

#include <curl/curl.h>

#include <algorithm>

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {
namespace {

constexpr std::size_t largest_answer = std::size_t{64} << 20;
constexpr long long longest_wait = 3600'000;  // milliseconds

struct lines {
  std::string begun;
  const std::function<void(std::string_view)>& hear;
};

// Both as libcurl calls them: less than all means that the transfer fails.
std::size_t take_bytes(char* data, std::size_t one, std::size_t count, void* whose) noexcept {
  auto& to = *static_cast<std::string*>(whose);
  try {
    to.append(data, one * count);
  } catch (const std::exception&) {  // no memory: as if the connection had broken
    return 0;
  }
  return to.size() > largest_answer ? 0 : one * count;
}

std::size_t take_lines(char* data, std::size_t one, std::size_t count, void* whose) noexcept {
  auto& to = *static_cast<lines*>(whose);
  const std::size_t taken = take_bytes(data, one, count, &to.begun);
  try {
    for (auto end = to.begun.find('\n'); end != std::string::npos; end = to.begun.find('\n')) {
      if (end > 0) to.hear(std::string_view(to.begun).substr(0, end));
      to.begun.erase(0, end + 1);
    }
  } catch (const std::exception&) {
    return 0;
  }
  return taken;
}

CURL* make_handle() {
  CURL* const easy = ::curl_easy_init();
  if (easy == nullptr) throw error(error_kind::other, "libcurl gives no handle (no memory)");
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

http_client::http_client()
    : headers_(nullptr, [](void* list) { ::curl_slist_free_all(static_cast<curl_slist*>(list)); }) {
  static const CURLcode begun = ::curl_global_init(CURL_GLOBAL_DEFAULT);  // once a process, and never ended
  if (begun != CURLE_OK) throw error(error_kind::other, "libcurl cannot begin; use another store");
  headers_.reset(::curl_slist_append(nullptr, "Content-Type: application/json"));
  ::curl_slist_append(static_cast<curl_slist*>(headers_.get()), "Expect:");
}

http_client::handle http_client::take(const std::string& url, const std::string& body) {
  handle easy(nullptr, &::curl_easy_cleanup);
  {
    const std::lock_guard held(mutex_);
    if (!idle_.empty()) {
      easy = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!easy) easy.reset(make_handle());
  ::curl_easy_setopt(easy.get(), CURLOPT_HTTPHEADER, headers_.get());
  ::curl_easy_setopt(easy.get(), CURLOPT_URL, url.c_str());
  ::curl_easy_setopt(easy.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  ::curl_easy_setopt(easy.get(), CURLOPT_POSTFIELDS, body.c_str());
  return easy;
}

http_client::answer http_client::post(const std::string& url, const std::string& body, clock::time_point until) {
  answer said;
  auto easy = take(url, body);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
  ::curl_easy_setopt(easy.get(), CURLOPT_TIMEOUT_MS, static_cast<long>(std::clamp<long long>(left, 1, longest_wait)));
  ::curl_easy_setopt(easy.get(), CURLOPT_WRITEFUNCTION, &take_bytes);
  ::curl_easy_setopt(easy.get(), CURLOPT_WRITEDATA, &said.body);
  const CURLcode code = ::curl_easy_perform(easy.get());
  if (code == CURLE_OK) ::curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &said.status);
  said.sent = code != CURLE_COULDNT_CONNECT && code != CURLE_COULDNT_RESOLVE_HOST;
  const std::lock_guard held(mutex_);
  idle_.push_back(std::move(easy));
  return said;
}

void http_client::follow(const std::string& url, const std::string& body, const std::stop_token& stop,
                         const std::function<void(std::string_view)>& hear) {
  lines heard{{}, hear};
  const handle easy(take(url, body));
  ::curl_easy_setopt(easy.get(), CURLOPT_TIMEOUT_MS, 0L);
  ::curl_easy_setopt(easy.get(), CURLOPT_WRITEFUNCTION, &take_lines);
  ::curl_easy_setopt(easy.get(), CURLOPT_WRITEDATA, &heard);
  // Not `perform` as above, which nothing wakes.
  const std::unique_ptr<CURLM, decltype(&::curl_multi_cleanup)> multi(::curl_multi_init(), &::curl_multi_cleanup);
  if (!multi) throw error(error_kind::other, "libcurl gives no handle (no memory)");
  ::curl_multi_add_handle(multi.get(), easy.get());
  const std::stop_callback wakes(stop, [&] { ::curl_multi_wakeup(multi.get()); });
  for (int running = 1; running > 0 && !stop.stop_requested();) {
    ::curl_multi_perform(multi.get(), &running);
    if (running > 0) ::curl_multi_poll(multi.get(), nullptr, 0, 1000, nullptr);
  }
  ::curl_multi_remove_handle(multi.get(), easy.get());
}

}  // namespace muster::inline v0::detail
