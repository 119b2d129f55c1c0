// A worker in a job: the protocol's state machine, its connections, and the values that are on their way.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/ps/client.hpp>

#include "../protocol/worker.hpp"
#include "process.hpp"
#include "push_codec.hpp"

namespace muster::inline v0::ps::detail {

/// What one call has pulled, and where it goes.
struct open_pull {
  std::vector<std::uint64_t> numbers;  // of the protocol's pulls
  std::size_t left = 0;
  std::uint64_t version = ~std::uint64_t{0};
};

// Where the values of one answer go.
struct pull_target {
  float* out = nullptr;
  std::vector<std::uint32_t> rows{};  // sparse
  std::size_t width = 0;              // of them; 0: dense
  std::size_t bytes = 0;
  std::vector<std::byte>* saved = nullptr;  // of a checkpoint: any length
  open_pull* of = nullptr;
  bool placed = false;  // an answer comes straight to `out`
};

class worker_process final : process, public worker_outlet {
 public:
  /// `servers`: the places that can serve.
  explicit worker_process(const seat& at, std::vector<node_id> servers = {});
  worker_process(const worker_process&) = delete;
  worker_process& operator=(const worker_process&) = delete;
  ~worker_process() override;

  // ---- for the client ----
  [[nodiscard]] const table_layout& layout() const noexcept { return layout_; }
  [[nodiscard]] const worker& core() const noexcept { return core_; }
  [[nodiscard]] static const worker& core_of(const client& of) noexcept { return of.of_->core_; }
  /// Of `own` memory, or of the caller's.
  void push_part(pending& to, range_id range, message what, std::vector<std::byte> own = {});
  /// Whether so many values of a push are sent encoded.
  [[nodiscard]] bool encodes(std::size_t values) const { return encoding_pays(codec_, values); }
  /// Values of the next push to that range, from that element of it on, encoded behind their keys. What the codec
  /// leaves out waits for the next to the same elements.
  [[nodiscard]] std::vector<std::byte> encode(range_id range, std::span<const std::byte> keys,
                                              std::span<const float> values, std::size_t offset = 0);
  /// Bytes of the values (and keys) that were pushed so far, as they are sent.
  [[nodiscard]] std::uint64_t bytes_pushed() const noexcept { return bytes_pushed_; }
  void pull_part(pending& to, range_id range, const message& what, pull_target where);
  void begun(bool pulls);
  [[nodiscard]] bool is_done(const pending& one) const noexcept;
  /// No caller waits for it any more, and its memory goes.
  void release(pending& one) noexcept;
  void next_clock();
  void progress();
  template <class Ready>
  void wait_until(const Ready& ready, std::string_view what);
  void wait_for_others();
  /// Behind `finish`, where the others need what this process has as long as they work.
  void see_off();
  void finish();
  void serve_by(std::size_t servers);

  client tables{*this};

 private:
  void send(const member& to, const message& what) override;
  void acknowledged(range_id range, std::uint64_t sequence, std::uint32_t age) override;
  void answered(std::uint64_t pull, const message& values) override;
  void refused(std::string_view why) override { refusal_ = why; }
  [[nodiscard]] std::byte* place_of(const message& answer);
  void ship();
  [[noreturn]] void give_up(std::string_view what);

  [[nodiscard]] bool others_work() const;

  worker core_;
  clock::time_point now_;
  clock::time_point next_tick_{};
  std::unordered_map<std::uint64_t, pull_target> targets_;
  std::size_t asked_bytes_ = 0;    // of answers that have not come
  std::size_t asked_at_once_ = 0;  // pulls of one call
  std::vector<std::uint64_t> versions_;
  any_codec codec_;
  std::vector<std::vector<float>> residuals_;  // by range, of methods that need them
  std::uint64_t bytes_pushed_ = 0;
  std::uint64_t bytes_told_ = 0;  // of them, to the event sink
  std::vector<node_id> servers_;  // that can serve, and live
  std::string refusal_;  // of a push or pull: what is behind it cannot count, so that every call ends with this
};

template <class Ready>
void worker_process::wait_until(const Ready& ready, std::string_view what) {
  const auto until = deadline_after(options_.timeout);
  constexpr int spins = 2000;
  for (int idle = 0;; ++idle) {
    progress();
    if (ready()) return;
    if ((core_.is_fenced() && !core_.is_leaving()) || now_ >= until) give_up(what);
    if (idle < spins && !link_.should_yield()) continue;
    link_.pause(std::min(until, next_tick_));
  }
}

}  // namespace muster::inline v0::ps::detail
