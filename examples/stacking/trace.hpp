// Spans of an invocation, sent to a collector that takes Zipkin's v2 JSON.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include <muster/core/events.hpp>
#include <muster/core/trace_context.hpp>

namespace stacked {

/// Sends spans in the background. What the collector does not take within a second, or what there is no room for, is
/// dropped and counted; no call waits for it. Thread safe.
class tracer {
 public:
  /// Of this service, to http://HOST:9411/api/v2/spans or any other address; where it is empty there are no spans.
  tracer(std::string service, std::string url);
  tracer(const tracer&) = delete;
  tracer& operator=(const tracer&) = delete;
  ~tracer() { finish(); }

  [[nodiscard]] bool is_on() const noexcept { return !url_.empty(); }
  void add(nlohmann::json span);
  /// A new identity of a span.
  [[nodiscard]] std::string next();

  /// Spans that the collector took, and those that it did not get.
  struct totals {
    std::uint64_t sent = 0, dropped = 0;
  };
  /// Sends what there still is, for a second; later ones are lost.
  totals finish();

 private:
  void send_all();

  std::string service_, url_;
  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::deque<nlohmann::json> waiting_{};
  totals totals_{};
  std::uint64_t next_;
  bool ends_ = false;
  std::thread sender_{};
};

/// A span of time from here to the end of the object.
class span {
 public:
  /// The first of a trace, or under a place in another process; nothing is recorded where `under` has no trace.
  span(tracer& to, std::string name, std::optional<muster::trace_place> under, const char* kind);
  /// Within another one.
  span(const span& under, std::string name);
  span(const span&) = delete;
  span& operator=(const span&) = delete;
  ~span();

  void tag(const char* name, const std::string& value);
  /// A part of it that has ended.
  void add_part(std::string_view name, muster::clock::time_point begin, muster::clock::time_point end) const;
  /// Whether this process has spans at all.
  [[nodiscard]] bool is_on() const noexcept { return to_.is_on(); }
  /// Where calls are made that are made in it; nothing where it is not recorded.
  [[nodiscard]] const std::optional<muster::trace_place>& place() const noexcept { return place_; }
  /// A place that begins a trace.
  [[nodiscard]] static muster::trace_place new_trace(tracer& of);

 private:
  [[nodiscard]] nlohmann::json described(std::string_view name, muster::clock::time_point begin,
                                         muster::clock::time_point end) const;

  tracer& to_;
  std::string name_, parent_{};
  const char* kind_ = "";
  std::optional<muster::trace_place> place_{};
  nlohmann::json tags_ = nlohmann::json::object();
  muster::clock::time_point begin_ = muster::clock::now();
};

/// Makes spans of what muster tells of its time (core/events.hpp) on the thread that made it.
class events_as_spans final : public muster::event_sink {
 public:
  explicit events_as_spans(const span& under) : under_(under) {
    if (under.place()) listens_.emplace(*this);
  }
  void record(const muster::event& event) noexcept override;

 private:
  const span& under_;
  std::optional<muster::scoped_event_sink> listens_{};
};

}  // namespace stacked
