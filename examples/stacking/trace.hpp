// Spans of an invocation, sent to a collector that accepts Zipkin's v2 JSON.
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

/// A sender of spans in the background. Spans that the collector does not accept within a second, or for which there is
/// no buffer space, are dropped and counted. No call waits for the collector. Thread safe.
class tracer {
 public:
  /// Sends the spans of `service` to `url`, for example http://HOST:9411/api/v2/spans. An empty `url` disables spans.
  tracer(std::string service, std::string url);
  tracer(const tracer&) = delete;
  tracer& operator=(const tracer&) = delete;
  ~tracer() { finish(); }

  [[nodiscard]] bool is_on() const noexcept { return !url_.empty(); }
  void add(nlohmann::json span);
  /// Returns a new span identity.
  [[nodiscard]] std::string new_span_id();

  /// Numbers of spans that the collector accepted and of spans that were lost.
  struct totals {
    std::uint64_t sent = 0, dropped = 0;
  };
  /// Sends the remaining spans for at most a second; later spans are lost.
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

/// A span of time from its construction to its destruction.
class span {
 public:
  /// Starts the first span of a trace, or a child of a place in another process. Nothing is recorded if `under` has no
  /// trace.
  span(tracer& to, std::string name, std::optional<muster::trace_place> under, const char* kind);
  /// Starts a child of another span.
  span(const span& under, std::string name);
  span(const span&) = delete;
  span& operator=(const span&) = delete;
  ~span();

  void tag(const char* name, const std::string& value);
  /// Adds a child span that has already ended.
  void add_part(std::string_view name, muster::clock::time_point begin, muster::clock::time_point end) const;
  /// Returns true if this process records spans.
  [[nodiscard]] bool is_on() const noexcept { return to_.is_on(); }
  /// Returns the place under which calls within this span are made; empty if the span is not recorded.
  [[nodiscard]] const std::optional<muster::trace_place>& place() const noexcept { return place_; }
  /// Returns a place that begins a trace.
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

/// A sink that converts muster's events (core/events.hpp) to spans, on the thread that created the sink.
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
