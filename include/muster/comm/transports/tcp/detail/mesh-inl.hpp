#pragma once

#include <muster/comm/transports/tcp/mesh.hpp>

#include <algorithm>
#include <system_error>
#include <thread>

#include <muster/comm/comm_timing.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline constexpr std::size_t max_early_messages = 1024;
inline constexpr std::uint32_t max_positions = 64;

// Returns the number of ranks on that host, divided by the number of cores on which any rank there may run.
inline double ranks_a_core(const std::vector<tcp_peer>& peers, const std::string& host) {
  cpu_set_t cores{};
  int rank_count = 0;
  for (const auto& peer : peers) {
    if (peer.host != host) continue;
    ++rank_count;
    CPU_OR(&cores, &cores, &peer.cores);
  }
  return static_cast<double>(rank_count) / std::max(1, CPU_COUNT(&cores));
}

MUSTER_INLINE tcp_mesh::tcp_mesh(const tcp_plan& plan, int rank, std::vector<tcp_peer> peers,
                                 std::vector<tcp_socket> listeners, const job_secret& secret)
    : plan_(plan),
      rank_(rank),
      oversubscribed_(ranks_a_core(peers, peers[static_cast<std::size_t>(rank)].host) > 1),
      most_ranks_a_core_([&] {
        double largest = 0;
        for (const auto& info : peers) largest = std::max(largest, ranks_a_core(peers, info.host));
        return largest;
      }()),
      messages_(static_cast<int>(peers.size()),
                [this](int peer, std::uint64_t number) { link(peer).send_clear(number); }),
      peers_([&] {
        std::vector<peer_state> states(peers.size());
        for (std::size_t peer = 0; peer < states.size(); ++peer)
          states[peer].link = std::make_unique<tcp_link>(static_cast<int>(peer), messages_, plan_.limits);
        return states;
      }()),
      manager_(*this, std::move(peers), std::move(listeners), secret) {}

MUSTER_INLINE tcp_mesh::~tcp_mesh() {
  const auto deadline = deadline_after(tcp_timing::drain);
  {
    const std::lock_guard lock(mutex_);
    for (auto& entry : peers_) {
      if (entry.link->connected()) entry.link->queue_goodbye();
    }
  }
  while (!try_flush() && clock::now() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(100));
  manager_.send_goodbyes(deadline);
}

// Writes queued frames. Returns true when the peers' systems have acknowledged all bytes.
MUSTER_INLINE bool tcp_mesh::try_flush() noexcept {
  const std::lock_guard lock(mutex_);
  bool all = true;
  for (auto& entry : peers_) {
    entry.link->write_pending();
    all = all && !entry.link->has_output() && !has_unsent_bytes(entry.link->file());
  }
  return all;
}

// The rank with the higher number connects, so that two ranks never connect to each other at the same time.
MUSTER_INLINE void tcp_mesh::await_all(clock::time_point deadline, const std::function<bool()>& is_aborted) {
  for (int peer = 0; peer < rank_; ++peer) manager_.request_connection(peer);
  std::unique_lock lock(mutex_);
  const auto missing = [&] {
    std::vector<int> missing_ranks;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank_ && !link(peer).connected()) missing_ranks.push_back(peer);
    }
    return missing_ranks;
  };
  const auto is_lost = [&](int peer) { return !state(peer).lost_reason.empty(); };
  const auto is_settled = [&] {
    const auto missing_ranks = missing();
    return missing_ranks.empty() || std::any_of(missing_ranks.begin(), missing_ranks.end(), is_lost);
  };
  const auto next_check = [&] {
    return std::min(deadline, clock::now() + (is_aborted ? tcp_timing::abort_poll : tcp_timing::acceptor_poll));
  };
  // Throws if the system lets this rank make no connection, even if the connection has also failed at the peer.
  const auto check_system_error = [&] {
    if (const int code = manager_.system_error()) {
      throw error(error_kind::other, "rank " + std::to_string(rank_) + " cannot connect with the others over tcp (" +
                                         std::generic_category().message(code) +
                                         "); raise the limit of descriptors (ulimit -n)");
    }
  };
  // Throws a while after a connected rank has ended: if a rank never connects, all ranks that wait for it end soon.
  auto end_of_wait = clock::time_point::max();
  const auto check_ended_ranks = [&] {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_ || (!state(peer).departed && !is_lost(peer))) continue;
      end_of_wait = std::min(end_of_wait, deadline_after(tcp_timing::others_ended));
      if (clock::now() < end_of_wait) return;
      throw peer_failure({peer}, "rank " + std::to_string(peer) + " ended before all ranks were connected over tcp (" +
                                     "missing: rank " + format_ranks(missing()) + "); see its own message");
    }
  };
  while (!changed_.wait_until(lock, next_check(), is_settled) && clock::now() < deadline) {
    check_system_error();
    check_ended_ranks();
    if (is_aborted && is_aborted()) throw peer_failure({}, "connecting was aborted (a member has ended)");
  }
  const auto missing_ranks = missing();
  if (missing_ranks.empty()) return;
  check_system_error();
  const auto lost = std::find_if(missing_ranks.begin(), missing_ranks.end(), is_lost);
  if (lost != missing_ranks.end()) {
    throw peer_failure({*lost}, "rank " + std::to_string(*lost) + " cannot be reached over tcp (" +
                                    state(*lost).lost_reason +
                                    "); check that it runs, the route to it (--interface, firewalls) and the token");
  }
  const std::string connect_error = manager_.last_connect_error(missing_ranks.front());
  throw timeout_error("connecting", missing_ranks,
                      "not all ranks connected over tcp in time (missing: rank " + format_ranks(missing_ranks) +
                          (connect_error.empty() ? "" : "; " + connect_error) +
                          "); check that they run, the route to them (--interface, firewalls) and the token");
}

// ---- groups ----

MUSTER_INLINE void tcp_mesh::open(matching_group& group) {
  const std::lock_guard lock(mutex_);
  messages_.open(group);
  for (int peer = 0; peer < size(); ++peer) {
    if (!state(peer).lost_reason.empty()) report_lost_peer(group, peer, state(peer).lost_reason);
  }
  for (auto& early : early_messages_) {
    if (early.generation != group.group_id() || group.member(early.peer) < 0) continue;
    early.message.origin = group.member(early.peer);
    group.post_control_message(early.message);
  }
  std::erase_if(early_messages_, [&](const early_message& early) { return early.generation == group.group_id(); });
}

MUSTER_INLINE void tcp_mesh::close(matching_group& group) noexcept {
  const std::lock_guard lock(mutex_);
  messages_.close(group);
}

// ---- links ----

MUSTER_INLINE void tcp_mesh::advance(peer_state& peer) noexcept {
  tcp_link& link = *peer.link;
  if (link.has_output()) link.write_pending();
  if (link.needs_input()) {
    link.read_pending();
    if (link.has_urgent_output()) link.write_pending();
  }
  if (link.failure().empty() || std::exchange(peer.reported, true)) return;
  manager_.report_broken_link(link.peer(), link.failure());
}

// Advances all links: a peer may wait for a different request than the tested one.
MUSTER_INLINE void tcp_mesh::progress() noexcept {
  for (auto& peer : peers_) advance(peer);
}

MUSTER_INLINE void tcp_mesh::replace_link(int peer) {
  peer_state& replaced = state(peer);
  replaced.link = std::make_unique<tcp_link>(peer, messages_, plan_.limits, replaced.link->number() + 1);
  replaced.reported = replaced.disconnected = false;
}

// ---- calls of the connection manager ----

MUSTER_INLINE void tcp_mesh::attach(int peer, tcp_socket connection) {
  const std::lock_guard lock(mutex_);
  if (state(peer).disconnected) replace_link(peer);
  link(peer).attach(std::move(connection));
  advance(state(peer));
  for (matching_group* const group : messages_.groups()) group->wake();
  changed_.notify_all();
}

MUSTER_INLINE void tcp_mesh::report_lost_peer(matching_group& group, int peer, const std::string& reason) {
  const int member = group.member(peer);
  if (member < 0 || group.has_ended(member)) return;
  group.ended_members[static_cast<std::size_t>(member)] = true;
  const auto& info = manager_.peer(peer);
  group.post_control_message(control_message::rank_ended(
      member, "rank " + std::to_string(member) + " is gone (" + reason + "; it is process " +
                  std::to_string(info.process) + " on " + info.name + "); see the output of its launcher"));
}

MUSTER_INLINE void tcp_mesh::on_lost(int peer, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  peer_state& lost = state(peer);
  if (lost.lost_reason.empty()) lost.lost_reason = reason;
  lost.reported = lost.disconnected = true;
  lost.link->sever(reason);
  for (matching_group* const group : messages_.groups()) report_lost_peer(*group, peer, reason);
  changed_.notify_all();
}

MUSTER_INLINE void tcp_mesh::on_departure(int peer) {
  const std::lock_guard lock(mutex_);
  state(peer).departed = true;
  // The control messages of the peer may have been lost with its connection: a group that renewed the connection would
  // wait for the peer.
  for (matching_group* const group : messages_.groups()) {
    if (!state(peer).lost_reason.empty()) report_lost_peer(*group, peer, "it has ended");
  }
  changed_.notify_all();
}

MUSTER_INLINE void tcp_mesh::on_control_message(int peer, const frame& head, control_message& message) {
  const bool is_position = message.type == control_message::kind::position;
  if (is_position && head.signature.kind == collective::none) return;
  const std::lock_guard lock(mutex_);
  matching_group* const group = messages_.find(head.generation);
  if (group == nullptr) {
    if (!is_position && !messages_.is_closed(head.generation) && early_messages_.size() < max_early_messages)
      early_messages_.push_back({head.generation, message, peer});
    return;
  }
  message.origin = group->member(peer);
  if (message.origin < 0 || (is_position && group->unread_control_messages() >= max_positions)) return;
  group->post_control_message(message);
}

MUSTER_INLINE frame tcp_mesh::position() {
  const std::lock_guard lock(mutex_);
  return position_;
}

// Called at each heartbeat: sends the urgent frames that a busy caller has not sent.
MUSTER_INLINE void tcp_mesh::flush_urgent() {
  const std::lock_guard lock(mutex_);
  for (auto& entry : peers_) {
    if (entry.link->has_urgent_output()) entry.link->write_pending();
  }
}

}}}  // namespace muster::v0::detail
