#include "client.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <thread>

#include "../../../../core/base64.hpp"
#include "../../../../core/text.hpp"
#include "../../../timing.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

using nlohmann::json;

constexpr std::uint64_t code_not_found = 5;
constexpr std::uint64_t code_unavailable = 14;
constexpr std::uint64_t code_deadline = 4;

constexpr std::size_t largest_answer = std::size_t{64} << 20;
constexpr long long longest_wait = 3600'000;  // milliseconds

// As libcurl calls it: less than all means that the transfer fails.
std::size_t take_bytes(char* data, std::size_t one, std::size_t count, void* whose) noexcept {
  auto& to = *static_cast<std::string*>(whose);
  try {
    to.append(data, one * count);
  } catch (const std::exception&) {  // no memory: as if the connection had broken
    return 0;
  }
  return to.size() > largest_answer ? 0 : one * count;
}

CURL* make_handle() {
  CURL* const easy = ::curl_easy_init();
  if (easy == nullptr) throw error(error_kind::other, "libcurl cannot make a handle (out of memory); free memory");
  ::curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");  // a store of the cluster's own
  ::curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, 3000L);
  ::curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  ::curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, 5L);
  ::curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, 5L);
  ::curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  return easy;
}

// Of what is no answer. What gives no number is not etcd's: a proxy before it says in its own words that it is away.
std::uint64_t code_of(const json& said) {
  if (!said.is_object()) return code_unavailable;
  const auto found = said.find("code");
  const bool is_number = found != said.end() && found->is_number_unsigned();
  const std::uint64_t code = is_number ? found->get<std::uint64_t>() : 0;
  return code != 0 ? code : code_unavailable;
}

std::string message_of(const json& said) {
  const auto found = said.find("message");
  return found != said.end() && found->is_string() ? found->get<std::string>() : said.dump();
}

}  // namespace

std::uint64_t number_in(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (found->is_number_unsigned()) return found->get<std::uint64_t>();
  return found->is_string() ? std::strtoull(found->get_ref<const std::string&>().c_str(), nullptr, 10) : 0;
}

store_entry entry_in(const json& pair) {
  return {number_in(pair, "mod_revision"), from_base64(pair.value("value", std::string())).value_or("")};
}

etcd_client::etcd_client(std::string_view endpoints, std::string_view scheme)
    : headers_(nullptr, [](void* list) { ::curl_slist_free_all(static_cast<curl_slist*>(list)); }),
      where_((scheme == "https" ? "etcds://" : "etcd://") + std::string(endpoints)) {
  for (const auto one : split(endpoints, ',')) {
    if (one.empty())
      throw configuration_error("'" + where_ +
                                "' cannot be the address of an etcd (an endpoint is empty); write host:port,host:port");
    endpoints_.push_back(std::string(scheme) + "://" + std::string(one));
  }
  static const CURLcode begun = ::curl_global_init(CURL_GLOBAL_DEFAULT);  // once a process, and never ended
  if (begun != CURLE_OK) throw error(error_kind::other, "libcurl cannot be initialised; use another store");
  headers_.reset(::curl_slist_append(nullptr, "Content-Type: application/json"));
  ::curl_slist_append(static_cast<curl_slist*>(headers_.get()), "Expect:");
}

etcd_client::handle etcd_client::take(const std::string& url, const std::string& body) {
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

etcd_client::answer etcd_client::post(const std::string& url, const std::string& body, clock::time_point until) {
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

json etcd_client::ask(const char* call, std::string_view key, std::string_view path, const json& what,
                      clock::time_point until, when_lost then) {
  const std::string body = what.dump();
  auto nap = std::chrono::milliseconds(5);
  for (;;) {
    const auto which = present_.load();
    const auto came =
        post(endpoint(which) + std::string(path), body, std::min(until, deadline_after(store_timing::etcd_member)));
    const auto said = came.status != 0 ? json::parse(came.body, nullptr, false) : json();
    if (came.status == 200 && said.is_object()) return said;
    const std::uint64_t code = code_of(said);
    if (code == code_not_found) {
      throw peer_failure({}, "the store " + where_ +
                                 " has expired the lease of this process (it was disconnected for longer than the "
                                 "lease's time-to-live); start the process again");
    }
    if (code != code_unavailable && code != code_deadline) {
      throw configuration_error("the store " + where_ + " refuses (" + message_of(said) +
                                "); check the configuration of that etcd");
    }
    if (then == when_lost::give_up && came.sent) store_timed_out(call, key, where_);
    if (clock::now() + nap >= until) store_timed_out(call, key, where_);
    auto expected = which;
    present_.compare_exchange_strong(expected, which + 1);
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, std::chrono::milliseconds(500));
  }
}

void etcd_client::await_change(std::string_view key, std::uint64_t revision, clock::time_point until,
                               const std::stop_token& stop) {
  auto which = present_.load();
  const json what = {{"key", to_base64(key)}, {"start_revision", std::to_string(revision)}};
  const std::string body = json{{"create_request", what}}.dump();
  std::string said;
  const auto easy = take(endpoint(which) + "/v3/watch", body);
  ::curl_easy_setopt(easy.get(), CURLOPT_TIMEOUT_MS, 0L);
  ::curl_easy_setopt(easy.get(), CURLOPT_WRITEFUNCTION, &take_bytes);
  ::curl_easy_setopt(easy.get(), CURLOPT_WRITEDATA, &said);
  // The first word is that the watch was made. The last: what was asked for was forgotten (the etcd was compacted).
  const auto is_news = [&] {
    return std::ranges::any_of(std::array{"\"events\"", "\"canceled\"", "\"compact_revision\""},
                               [&](const char* word) { return said.find(word) != std::string::npos; });
  };
  // Not `perform` as above, which nothing wakes.
  const std::unique_ptr<CURLM, decltype(&::curl_multi_cleanup)> multi(::curl_multi_init(), &::curl_multi_cleanup);
  if (!multi) throw error(error_kind::other, "libcurl cannot make a handle (out of memory); free memory");
  ::curl_multi_add_handle(multi.get(), easy.get());
  const std::stop_callback wakes(stop, [&] { ::curl_multi_wakeup(multi.get()); });
  int running = 1;
  for (::curl_multi_perform(multi.get(), &running); running > 0; ::curl_multi_perform(multi.get(), &running)) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
    if (is_news() || stop.stop_requested() || left <= 0) break;
    ::curl_multi_poll(multi.get(), nullptr, 0, static_cast<int>(std::min<long long>(left, 1000)), nullptr);
  }
  ::curl_multi_remove_handle(multi.get(), easy.get());
  if (running > 0) return;
  present_.compare_exchange_strong(which, which + 1);  // it ended by itself: perhaps with that member
  std::this_thread::sleep_for(store_timing::watch_retry);
}

}}}  // namespace muster::v0::detail
