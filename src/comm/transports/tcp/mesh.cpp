#include "mesh.hpp"

#include <algorithm>
#include <system_error>
#include <thread>

#include <muster/core/error.hpp>

#include "../../timing.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::size_t most_early = 1024;
constexpr std::uint32_t most_positions = 64;

// On the host of that name, of the cores that any rank there may run on.
double ranks_a_core(const std::vector<tcp_peer>& peers, const std::string& here) {
  cpu_set_t cores{};
  int ranks = 0;
  for (const auto& one : peers) {
    if (one.host != here) continue;
    ++ranks;
    CPU_OR(&cores, &cores, &one.cores);
  }
  return static_cast<double>(ranks) / std::max(1, CPU_COUNT(&cores));
}

}  // namespace

tcp_mesh::tcp_mesh(const tcp_plan& plan, int rank, std::vector<tcp_peer> peers, std::vector<tcp_socket> listeners,
                   const job_secret& secret)
    : plan_(plan),
      rank_(rank),
      oversubscribed_(ranks_a_core(peers, peers[static_cast<std::size_t>(rank)].host) > 1),
      most_ranks_a_core_([&] {
        double most = 0;
        for (const auto& one : peers) most = std::max(most, ranks_a_core(peers, one.host));
        return most;
      }()),
      messages_(static_cast<int>(peers.size()), [this](int peer, std::uint64_t number) { link(peer).clear(number); }),
      peers_([&] {
        std::vector<peer_state> made(peers.size());
        for (std::size_t peer = 0; peer < made.size(); ++peer)
          made[peer].link = std::make_unique<tcp_link>(static_cast<int>(peer), messages_, plan_.limits);
        return made;
      }()),
      manager_(*this, std::move(peers), std::move(listeners), secret) {}

tcp_mesh::~tcp_mesh() {
  const auto until = deadline_after(tcp_timing::drain);
  {
    const std::lock_guard lock(mutex_);
    for (auto& one : peers_) {
      if (one.link->connected()) one.link->say_goodbye();
    }
  }
  while (!flushed() && clock::now() < until) std::this_thread::sleep_for(std::chrono::microseconds(100));
  manager_.say_goodbye(until);
}

// Whether all that was sent is in the hands of the other side's system.
bool tcp_mesh::flushed() noexcept {
  const std::lock_guard lock(mutex_);
  bool all = true;
  for (auto& one : peers_) {
    one.link->pump_out();
    all = all && !one.link->wants_out() && !has_unsent_bytes(one.link->file());
  }
  return all;
}

// The one with the higher rank connects, so that no two do at the same time.
void tcp_mesh::await_all(clock::time_point until, const std::function<bool()>& given_up) {
  for (int peer = 0; peer < rank_; ++peer) manager_.want(peer);
  std::unique_lock lock(mutex_);
  const auto missing = [&] {
    std::vector<int> found;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank_ && !link(peer).connected()) found.push_back(peer);
    }
    return found;
  };
  const auto is_lost = [&](int peer) { return !state(peer).lost.empty(); };
  const auto over = [&] {
    const auto found = missing();
    return found.empty() || std::any_of(found.begin(), found.end(), is_lost);
  };
  const auto next = [&] {
    return std::min(until, clock::now() + (given_up ? tcp_timing::given_up_poll : tcp_timing::trouble_poll));
  };
  // It is this rank's error, whatever became of the connection.
  const auto look_for_trouble = [&] {
    if (const int code = manager_.trouble_of_system()) {
      throw error(error_kind::other, "rank " + std::to_string(rank_) + " cannot connect with the others over tcp (" +
                                         std::generic_category().message(code) +
                                         "); raise the limit of descriptors (ulimit -n)");
    }
  };
  // A rank that was connected and has ended leaves soon, as the others do, where a rank never comes.
  auto end_of_wait = clock::time_point::max();
  const auto look_for_ends = [&] {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_ || (!state(peer).left && state(peer).lost.empty())) continue;
      end_of_wait = std::min(end_of_wait, deadline_after(tcp_timing::others_ended));
      if (clock::now() < end_of_wait) return;
      throw peer_failure({peer}, "rank " + std::to_string(peer) + " ended before all ranks were connected over tcp (" +
                                     "missing: rank " + format_ranks(missing()) + "); see its own message");
    }
  };
  while (!changed_.wait_until(lock, next(), over) && clock::now() < until) {
    look_for_trouble();
    look_for_ends();
    if (given_up && given_up()) throw peer_failure({}, "connecting was aborted (a member has ended)");
  }
  const auto found = missing();
  if (found.empty()) return;
  look_for_trouble();
  const auto lost = std::find_if(found.begin(), found.end(), is_lost);
  if (lost != found.end()) {
    throw peer_failure({*lost}, "rank " + std::to_string(*lost) + " cannot be reached over tcp (" + state(*lost).lost +
                                    "); check that it runs, the route to it (--interface, firewalls) and the token");
  }
  const std::string trouble = manager_.trouble_with(found.front());
  throw timeout_error("connecting", found,
                      "not all ranks are connected over tcp in time (missing: rank " + format_ranks(found) +
                          (trouble.empty() ? "" : "; " + trouble) +
                          "); check that they run, the route to them (--interface, firewalls) and the token");
}

// ---- groups ----

void tcp_mesh::open(matching_group& group) {
  const std::lock_guard lock(mutex_);
  messages_.open(group);
  for (int peer = 0; peer < size(); ++peer) {
    if (!state(peer).lost.empty()) tell_gone(group, peer, state(peer).lost);
  }
  for (auto& one : early_) {
    if (one.generation != group.generation() || group.member(one.peer) < 0) continue;
    one.message.origin = group.member(one.peer);
    group.tell(one.message);
  }
  std::erase_if(early_, [&](const early_notice& one) { return one.generation == group.generation(); });
}

void tcp_mesh::close(matching_group& group) noexcept {
  const std::lock_guard lock(mutex_);
  messages_.close(group);
}

// ---- links ----

void tcp_mesh::pump(peer_state& one) noexcept {
  tcp_link& link = *one.link;
  if (link.wants_out()) link.pump_out();
  if (link.wants_in()) {
    link.pump_in();
    if (link.is_urgent()) link.pump_out();
  }
  if (link.trouble().empty() || std::exchange(one.reported, true)) return;
  manager_.report(link.peer(), link.trouble());
}

// All that is under way moves: a peer may wait for another of our requests than the one we are asked for.
void tcp_mesh::progress() noexcept {
  for (auto& one : peers_) pump(one);
}

void tcp_mesh::replace_link(int peer) {
  peer_state& of = state(peer);
  of.link = std::make_unique<tcp_link>(peer, messages_, plan_.limits, of.link->number() + 1);
  of.reported = of.away = false;
}

// ---- what the watch sees ----

void tcp_mesh::attach(int peer, tcp_socket connection) {
  const std::lock_guard lock(mutex_);
  if (state(peer).away) replace_link(peer);
  link(peer).attach(std::move(connection));
  pump(state(peer));
  for (matching_group* const group : messages_.groups()) group->wake();
  changed_.notify_all();
}

void tcp_mesh::tell_gone(matching_group& group, int peer, const std::string& what) {
  const int member = group.member(peer);
  if (member < 0 || group.has_lost(member)) return;
  group.lost[static_cast<std::size_t>(member)] = true;
  const auto& its = manager_.peer(peer);
  group.tell(control_message::gone_rank(member, "rank " + std::to_string(member) + " is gone (" + what +
                                                    "; it is process " + std::to_string(its.process) + " on " +
                                                    its.name + "); see the output of its launcher"));
}

void tcp_mesh::lose(int peer, const std::string& why) {
  const std::lock_guard lock(mutex_);
  peer_state& of = state(peer);
  if (of.lost.empty()) of.lost = why;
  of.reported = of.away = true;
  of.link->sever(why);
  for (matching_group* const group : messages_.groups()) tell_gone(*group, peer, why);
  changed_.notify_all();
}

void tcp_mesh::left(int peer) {
  const std::lock_guard lock(mutex_);
  state(peer).left = true;
  // What it said to its groups may have been lost with its connection: a group that renewed it would wait for it.
  for (matching_group* const group : messages_.groups()) {
    if (!state(peer).lost.empty()) tell_gone(*group, peer, "it has ended");
  }
  changed_.notify_all();
}

void tcp_mesh::hear_notice(int peer, const frame& head, control_message& message) {
  const bool is_position = message.what == control_message::kind::position;
  if (is_position && head.signature.kind == collective::none) return;
  const std::lock_guard lock(mutex_);
  matching_group* const group = messages_.find(head.generation);
  if (group == nullptr) {
    if (!is_position && !messages_.is_closed(head.generation) && early_.size() < most_early)
      early_.push_back({head.generation, message, peer});
    return;
  }
  message.origin = group->member(peer);
  if (message.origin < 0 || (is_position && group->news() >= most_positions)) return;
  group->tell(message);
}

frame tcp_mesh::position() {
  const std::lock_guard lock(mutex_);
  return position_;
}

// Now and then: sends what a busy caller left unsent.
void tcp_mesh::tick() {
  const std::lock_guard lock(mutex_);
  for (auto& one : peers_) {
    if (one.link->is_urgent()) one.link->pump_out();
  }
}

}}}  // namespace muster::v0::detail
