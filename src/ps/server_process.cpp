#include "server_process.hpp"

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

namespace muster::inline v0::ps::detail {
namespace {

constexpr int spins = 2000;
// Workers whose farewell was answered may not have heard that: so long the last words are said again.
constexpr std::chrono::milliseconds for_last_words{300};

}  // namespace

server_process::server_process(member self, const job_options& options, const protocol_settings& protocol,
                               const table_layout& layout, any_transport& over, frame_link& link, map_keeper& keeper,
                               const shard_map& map)
    : protocol_(protocol),
      link_(link),
      keeper_(keeper),
      workers_(map.workers.size()),
      shown_(over, layout.ranges()),
      values_(layout, protocol.how, options.compress, shown_),
      core_(self, protocol, values_, *this, map) {}

void server_process::tick(clock::time_point now) {
  for (place gone = link_.find_gone(); gone != nobody; gone = link_.find_gone()) {
    const auto& map = core_.map();
    log(log_level::info, "rank " + std::to_string(gone) + " is gone from the parameter server's job");
    // What the transport says of an end may be a broken connection: the last holder of a range is kept in hope.
    if (const auto* const server = map.server(gone)) core_.suspect(server->who, false);
    for (const auto& worker : map.workers) {
      if (worker.at == gone) core_.suspect(worker, false);
    }
  }
  if (const auto map = keeper_.take()) core_.learn(*map, now);
  if (keeper_.take_failure()) core_.swap_failed();
  core_.tick(now);
}

void server_process::serve() {
  clock::time_point next_tick{};
  clock::time_point done_since{};
  for (int idle = 0;; ++idle) {
    const auto now = clock::now();
    const bool heard = link_.poll([&](std::span<const std::byte> frame) { core_.hear(frame, now); });
    if (now >= next_tick) {
      next_tick = now + protocol_.retry / ticks_a_retry;
      tick(now);
    }
    link_.introduce({.from = core_.self(), .map_version = core_.map().version});
    core_.flush();
    link_.ship();
    if (core_.is_fenced()) {
      throw peer_failure({}, "server " + to_string(core_.self()) +
                                 " was given up by the others of its job (they did not hear it, or its connections "
                                 "broke); its ranges are served by them now");
    }
    if (core_.is_done()) {
      if (done_since == clock::time_point{}) done_since = now;
      // A worker that heard one farewell does not wait for the next: what is still under way to it then is never taken.
      if (now - done_since > for_last_words && (link_.is_idle() || now - done_since > 2 * for_last_words)) {
        if (core_.farewells() == workers_) shown_.end_alone();
        return;
      }
    } else {
      done_since = {};
    }
    if (heard) idle = 0;
    if (idle >= spins || link_.must_yield()) link_.pause(next_tick);
  }
}

}  // namespace muster::inline v0::ps::detail
