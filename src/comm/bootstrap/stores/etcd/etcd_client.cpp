#include "etcd_client.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <thread>

#include <muster/comm/comm_timing.hpp>
#include <muster/core/base64.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace detail {
namespace {

using nlohmann::json;

constexpr std::uint64_t code_not_found = 5;
constexpr std::uint64_t code_unavailable = 14;
constexpr std::uint64_t code_deadline = 4;

constexpr std::size_t largest_answer = std::size_t{64} << 20;
constexpr long long longest_wait = 3600'000;  // milliseconds

// The write callback of libcurl. A result below the number of bytes makes the transfer fail.
std::size_t take_bytes(char* received, std::size_t size, std::size_t count, void* user_data) noexcept {
  auto& buffer = *static_cast<std::string*>(user_data);
  try {
    buffer.append(received, size * count);
  } catch (const std::exception&) {  // out of memory: handled like a broken connection
    return 0;
  }
  return buffer.size() > largest_answer ? 0 : size * count;
}

CURL* make_handle() {
  CURL* const easy = ::curl_easy_init();
  if (easy == nullptr) throw error(error_kind::other, "libcurl cannot create a handle (out of memory); free memory");
  ::curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");  // the store belongs to the cluster
  ::curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, 3000L);
  ::curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  ::curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, 5L);
  ::curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, 5L);
  ::curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  return easy;
}

// Returns the gRPC code of an error reply. A reply without a number is not etcd's: a proxy in front of etcd reports an
// outage in its own format.
std::uint64_t code_of(const json& reply) {
  if (!reply.is_object()) return code_unavailable;
  const auto found = reply.find("code");
  const bool is_number = found != reply.end() && found->is_number_unsigned();
  const std::uint64_t code = is_number ? found->get<std::uint64_t>() : 0;
  return code != 0 ? code : code_unavailable;
}

std::string message_of(const json& reply) {
  const auto found = reply.find("message");
  return found != reply.end() && found->is_string() ? found->get<std::string>() : reply.dump();
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
  for (const auto endpoint : split(endpoints, ',')) {
    if (endpoint.empty())
      throw configuration_error("'" + where_ +
                                "' cannot be the address of an etcd (an endpoint is empty); write host:port,host:port");
    endpoints_.push_back(std::string(scheme) + "://" + std::string(endpoint));
  }
  static const CURLcode initialised = ::curl_global_init(CURL_GLOBAL_DEFAULT);  // once per process, and never ended
  if (initialised != CURLE_OK) throw error(error_kind::other, "libcurl cannot be initialised; use another store");
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

etcd_client::http_reply etcd_client::post(const std::string& url, const std::string& body, clock::time_point until) {
  http_reply result;
  auto easy = take(url, body);
  const auto remaining = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
  ::curl_easy_setopt(easy.get(), CURLOPT_TIMEOUT_MS,
                     static_cast<long>(std::clamp<long long>(remaining, 1, longest_wait)));
  ::curl_easy_setopt(easy.get(), CURLOPT_WRITEFUNCTION, &take_bytes);
  ::curl_easy_setopt(easy.get(), CURLOPT_WRITEDATA, &result.body);
  const CURLcode code = ::curl_easy_perform(easy.get());
  if (code == CURLE_OK) ::curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &result.status);
  result.sent = code != CURLE_COULDNT_CONNECT && code != CURLE_COULDNT_RESOLVE_HOST;
  const std::lock_guard held(mutex_);
  idle_.push_back(std::move(easy));
  return result;
}

json etcd_client::ask(const char* function, std::string_view key, std::string_view path, const json& request,
                      clock::time_point until, when_lost on_loss) {
  const std::string body = request.dump();
  auto delay = std::chrono::milliseconds(5);
  for (;;) {
    const auto index = present_.load();
    const auto result =
        post(endpoint(index) + std::string(path), body, std::min(until, deadline_after(store_timing::etcd_member)));
    const auto reply = result.status != 0 ? json::parse(result.body, nullptr, false) : json();
    if (result.status == 200 && reply.is_object()) return reply;
    const std::uint64_t code = code_of(reply);
    if (code == code_not_found) {
      throw peer_failure({}, "the store " + where_ +
                                 " has expired this process's lease (it was disconnected for longer than the "
                                 "lease's time-to-live); start the process again");
    }
    if (code != code_unavailable && code != code_deadline) {
      throw configuration_error("the store " + where_ + " refuses (" + message_of(reply) +
                                "); check the configuration of etcd");
    }
    if (on_loss == when_lost::give_up && result.sent) store_timed_out(function, key, where_);
    if (clock::now() + delay >= until) store_timed_out(function, key, where_);
    auto expected = index;
    present_.compare_exchange_strong(expected, index + 1);
    std::this_thread::sleep_for(delay);
    delay = std::min(2 * delay, std::chrono::milliseconds(500));
  }
}

void etcd_client::await_change(std::string_view key, std::uint64_t revision, clock::time_point until,
                               const std::stop_token& stop) {
  auto index = present_.load();
  const json request = {{"key", to_base64(key)}, {"start_revision", std::to_string(revision)}};
  const std::string body = json{{"create_request", request}}.dump();
  std::string received;
  const auto easy = take(endpoint(index) + "/v3/watch", body);
  ::curl_easy_setopt(easy.get(), CURLOPT_TIMEOUT_MS, 0L);
  ::curl_easy_setopt(easy.get(), CURLOPT_WRITEFUNCTION, &take_bytes);
  ::curl_easy_setopt(easy.get(), CURLOPT_WRITEDATA, &received);
  // The first message reports that the watch was created. Later messages report an event, or the end of the watch (etcd
  // was compacted).
  const auto has_change = [&] {
    return std::ranges::any_of(std::array{"\"events\"", "\"canceled\"", "\"compact_revision\""},
                               [&](const char* word) { return received.find(word) != std::string::npos; });
  };
  // `perform`, as above, could not be interrupted by a stop request.
  const std::unique_ptr<CURLM, decltype(&::curl_multi_cleanup)> multi(::curl_multi_init(), &::curl_multi_cleanup);
  if (!multi) throw error(error_kind::other, "libcurl cannot create a handle (out of memory); free memory");
  ::curl_multi_add_handle(multi.get(), easy.get());
  const std::stop_callback wakes(stop, [&] { ::curl_multi_wakeup(multi.get()); });
  int running = 1;
  for (::curl_multi_perform(multi.get(), &running); running > 0; ::curl_multi_perform(multi.get(), &running)) {
    const auto remaining = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
    if (has_change() || stop.stop_requested() || remaining <= 0) break;
    ::curl_multi_poll(multi.get(), nullptr, 0, static_cast<int>(std::min<long long>(remaining, 1000)), nullptr);
  }
  ::curl_multi_remove_handle(multi.get(), easy.get());
  if (running > 0) return;
  present_.compare_exchange_strong(index, index + 1);  // the watch ended by itself, perhaps with that member
  std::this_thread::sleep_for(store_timing::watch_retry);
}

}}}  // namespace muster::v0::detail
