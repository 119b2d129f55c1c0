// A worker in a job: the protocol's state machine, its connections, and the values that are on their way.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/ps/client.hpp>
#include <muster/ps/job.hpp>

#include "../map_keeper.hpp"
#include "../protocol/worker.hpp"
#include "link.hpp"
#include "push_codec.hpp"

namespace muster::inline v0::ps::detail {

/// What one call has pulled, and where it goes.
struct open_pull {
  std::vector<std::uint64_t> numbers;  // of the protocol's pulls
  std::size_t left = 0;
  std::uint64_t version = ~std::uint64_t{0};
};

class worker_process final : public worker_outlet {
 public:
  worker_process(member self, const job_options& options, const protocol_settings& protocol, const table_layout& layout,
                 frame_link& link, map_keeper& keeper, const shard_map& map);
  worker_process(const worker_process&) = delete;
  worker_process& operator=(const worker_process&) = delete;
  ~worker_process() override;

  // ---- for the client ----
  [[nodiscard]] const table_layout& layout() const noexcept { return layout_; }
  [[nodiscard]] const worker& core() const noexcept { return core_; }
  [[nodiscard]] static const worker& core_of(const client& of) noexcept { return of.of_->core_; }
  /// Of `own` memory, or of the caller's.
  void push_part(pending& to, range_id range, message what, std::vector<std::byte> own = {});
  /// The same encoded where that is smaller; what the codec leaves out waits for the next to the same elements.
  void push_values(pending& to, range_id range, message what, std::span<const float> values);
  /// Of the codec, if `values` of a push are sent encoded: of those of rows.
  [[nodiscard]] const push_codec& codec() const noexcept { return codec_; }
  /// The values of rows behind their keys are encoded.
  void encode_rows(range_id range, std::vector<std::byte>& payload, std::size_t keys) const;
  /// Bytes of the values (and keys) that were pushed so far, as they are sent.
  [[nodiscard]] std::uint64_t bytes_pushed() const noexcept { return bytes_pushed_; }
  void pull_part(pending& to, range_id range, const message& what, float* out, std::vector<std::uint32_t> rows,
                 std::size_t width);
  /// All of a range, as a checkpoint has it.
  void pull_all(pending& to, range_id range, std::vector<std::byte>& saved);
  void begun(bool pulls);
  [[nodiscard]] bool is_done(const pending& one) const noexcept;
  /// Nobody waits for it any more, and its memory goes.
  void release(pending& one) noexcept;
  void next_clock();
  void progress();
  template <class Ready>
  void wait_until(const Ready& ready, std::string_view what);
  [[nodiscard]] std::uint64_t version(range_id range) const noexcept { return versions_[range]; }
  void wait_for_others();
  /// Behind `finish`, where the others need what this process has as long as they work.
  void see_off();
  void finish();
  void serve_by(std::size_t servers);
  /// The places that can serve.
  void know_servers(std::vector<place> servers) { servers_ = std::move(servers); }

 private:
  // Where the rows of one answer go.
  struct target {
    open_pull* of = nullptr;
    float* out = nullptr;
    std::vector<std::uint32_t> rows;  // sparse
    std::size_t width = 0;            // of them; 0: dense
    std::size_t bytes = 0;
    std::vector<std::byte>* saved = nullptr;  // of a checkpoint: any length
    bool placed = false;                      // an answer comes straight to `out`
  };

  void send(const member& to, const message& what) override;
  void acknowledged(range_id range, std::uint64_t sequence, std::uint32_t age) override;
  void answered(std::uint64_t pull, const message& values) override;
  void refused(std::string_view why) override { refusal_ = why; }
  [[nodiscard]] std::byte* place_of(const message& answer);
  void ship();
  void await_room(std::size_t bytes);
  [[noreturn]] void give_up(std::string_view what);

  const job_options& options_;
  protocol_settings protocol_;
  const table_layout& layout_;
  frame_link& link_;
  map_keeper& keeper_;
  worker core_;
  clock::time_point now_;
  clock::time_point next_tick_{};
  std::unordered_map<std::uint64_t, target> targets_;
  std::size_t asked_bytes_ = 0;    // of answers that have not come
  std::size_t asked_at_once_ = 0;  // pulls of one call
  std::vector<std::uint64_t> versions_;
  push_codec codec_;
  std::vector<std::vector<float>> residuals_;  // by range, of methods that need them
  std::uint64_t bytes_pushed_ = 0;
  std::uint64_t bytes_told_ = 0;  // of them, to the event sink
  std::vector<place> servers_;    // that can serve, and live
  std::string refusal_;  // of a push or pull: what is behind it cannot count, so that every call ends with this
};

template <class Ready>
void worker_process::wait_until(const Ready& ready, std::string_view what) {
  const auto until = deadline_after(options_.timeout);
  constexpr int spins = 2000;
  for (int idle = 0;; ++idle) {
    progress();
    if (ready()) return;
    if (core_.is_fenced() || now_ >= until) give_up(what);
    if (idle < spins && !link_.must_yield()) continue;
    link_.pause(std::min(until, next_tick_));
  }
}

}  // namespace muster::inline v0::ps::detail
