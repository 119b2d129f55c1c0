#include "trace.hpp"

#include <curl/curl.h>
#include <algorithm>
#include <memory>
#include <random>

#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>

namespace stacked {
namespace {

using json = nlohmann::json;
using namespace std::chrono_literals;

constexpr std::size_t most_waiting = 4096, most_at_once = 512;
constexpr auto gathering = 200ms;  // Collects many spans into few requests.
constexpr long deadline_ms = 1000;

std::string hexadecimal(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

/// Sends the spans. Returns an empty text if the collector accepted them, and the error otherwise.
std::string post(CURL* to, const std::string& text) {
  ::curl_easy_setopt(to, CURLOPT_POSTFIELDS, text.c_str());
  ::curl_easy_setopt(to, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(text.size()));
  if (const CURLcode code = ::curl_easy_perform(to); code != CURLE_OK) return ::curl_easy_strerror(code);
  long status = 0;
  ::curl_easy_getinfo(to, CURLINFO_RESPONSE_CODE, &status);
  return status / 100 == 2 ? "" : "it answers " + std::to_string(status);
}

}  // namespace

tracer::tracer(std::string service, std::string url)
    : service_(std::move(service)), url_(std::move(url)), next_((std::uint64_t{std::random_device()()} << 32) + 1) {
  if (is_on()) sender_ = std::thread([this] { send_all(); });
}

tracer::totals tracer::finish() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  if (sender_.joinable()) sender_.join();
  return totals_;
}

void tracer::add(json span) {
  span["localEndpoint"] = {{"serviceName", service_}};
  const std::lock_guard lock(mutex_);
  if (waiting_.size() < most_waiting) {
    waiting_.push_back(std::move(span));
  } else {
    ++totals_.dropped;
  }
}

std::string tracer::new_span_id() {
  const std::lock_guard lock(mutex_);
  return hexadecimal(muster::mix(next_++));
}

void tracer::send_all() {
  const std::unique_ptr<CURL, void (*)(CURL*)> to(::curl_easy_init(), ::curl_easy_cleanup);
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(
      ::curl_slist_append(nullptr, "Content-Type: application/json"), ::curl_slist_free_all);
  ::curl_easy_setopt(to.get(), CURLOPT_URL, url_.c_str());
  ::curl_easy_setopt(to.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  ::curl_easy_setopt(to.get(), CURLOPT_HTTPHEADER, headers.get());
  ::curl_easy_setopt(to.get(), CURLOPT_TIMEOUT_MS, deadline_ms);
  ::curl_easy_setopt(to.get(), CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(
      to.get(), CURLOPT_WRITEFUNCTION, +[](char*, std::size_t size, std::size_t n, void*) { return size * n; });
  bool was_taken = true;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait_for(lock, gathering, [this] { return ends_; });
    const bool last = ends_;
    while (!waiting_.empty()) {
      json batch = json::array();
      for (; !waiting_.empty() && batch.size() < most_at_once; waiting_.pop_front())
        batch.push_back(std::move(waiting_.front()));
      lock.unlock();
      const std::string why = post(to.get(), batch.dump(-1, ' ', false, json::error_handler_t::replace));
      if (!why.empty() && was_taken)
        muster::log(muster::log_level::warning, "spans are dropped: " + url_ + " does not accept them (" + why + ")");
      was_taken = why.empty();
      lock.lock();
      (was_taken ? totals_.sent : totals_.dropped) += batch.size();
      if (!was_taken) break;
    }
    if (last) {
      totals_.dropped += waiting_.size();
      return;
    }
  }
}

muster::trace_place span::new_trace(tracer& of) { return {of.new_span_id() + of.new_span_id(), {}}; }

span::span(tracer& to, std::string name, std::optional<muster::trace_place> under, const char* kind)
    : to_(to), name_(std::move(name)), kind_(kind) {
  if (!to.is_on() || !under) return;
  parent_ = under->span;
  place_ = {under->trace, to.new_span_id()};
}

span::span(const span& under, std::string name) : span(under.to_, std::move(name), under.place_, "") {}

json span::described(std::string_view name, muster::clock::time_point begin, muster::clock::time_point end) const {
  using std::chrono::duration_cast, std::chrono::microseconds;
  const auto wall = std::chrono::system_clock::now() - (muster::clock::now() - begin);
  return {{"traceId", place_->trace},
          {"name", name},
          {"timestamp", duration_cast<microseconds>(wall.time_since_epoch()).count()},
          {"duration", std::max<std::int64_t>(1, duration_cast<microseconds>(end - begin).count())}};
}

span::~span() {
  if (!place_) return;
  json record = described(name_, begin_, muster::clock::now());
  record["id"] = place_->span;
  if (!parent_.empty()) record["parentId"] = parent_;
  if (*kind_ != '\0') record["kind"] = kind_;
  if (!tags_.empty()) record["tags"] = std::move(tags_);
  to_.add(std::move(record));
}

void span::tag(const char* name, const std::string& value) {
  if (place_) tags_[name] = value;
}

void span::add_part(std::string_view name, muster::clock::time_point begin, muster::clock::time_point end) const {
  if (!place_) return;
  json record = described(name, begin, end);
  record["id"] = to_.new_span_id();
  record["parentId"] = place_->span;
  to_.add(std::move(record));
}

void events_as_spans::record(const muster::event& event) noexcept {
  if (muster::event_sink* const other = listens_->former()) other->record(event);
  try {
    under_.add_part(event.name, event.begin, event.end);
  } catch (...) {  // Out of memory: this span is lost.
  }
}

}  // namespace stacked
