#include "mesh.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <thread>

#include <muster/core/error.hpp>

#include "../../timing.hpp"

namespace muster::inline v0::detail {
namespace {

constexpr std::uint32_t no_connection = ~std::uint32_t{0};  // of a send that goes nowhere

constexpr std::size_t most_early = 1024;
constexpr std::uint32_t most_positions = 64;

// On the host of that name, of the cores that any rank there may run on.
double ranks_a_core(const std::vector<tcp_peer>& peers, const std::string& here) {
  std::vector<std::uint64_t> cores;
  int ranks = 0;
  for (const auto& one : peers) {
    if (one.host != here) continue;
    ++ranks;
    if (cores.size() < one.cores.size()) cores.resize(one.cores.size(), 0);
    for (std::size_t i = 0; i < one.cores.size(); ++i) cores[i] |= one.cores[i];
  }
  int count = 0;
  for (const auto word : cores) count += std::popcount(word);
  return static_cast<double>(ranks) / std::max(1, count);
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
      messages_(static_cast<int>(peers.size()), 1 + plan.streams,
                [this](int peer, std::uint64_t number) { link(peer).clear(number); }),
      links_([&] {
        std::vector<std::unique_ptr<tcp_link>> made;
        for (std::size_t peer = 0; peer < peers.size(); ++peer)
          made.push_back(std::make_unique<tcp_link>(static_cast<int>(peer), messages_, plan_.limits));
        return made;
      }()),
      reported_(peers.size(), false),
      away_(peers.size(), false),
      lost_(peers.size()),
      left_(peers.size(), false),
      manager_(*this, std::move(peers), std::move(listeners), secret) {}

tcp_mesh::~tcp_mesh() {
  const auto until = deadline_after(tcp_timing::drain);
  {
    const std::lock_guard lock(mutex_);
    for (auto& one : links_) one->say_goodbye();
  }
  while (!flushed() && clock::now() < until) std::this_thread::sleep_for(std::chrono::microseconds(100));
  manager_.say_goodbye(until);
}

// Whether all that was sent is in the hands of the other side's system.
bool tcp_mesh::flushed() noexcept {
  const std::lock_guard lock(mutex_);
  bool all = true;
  for (auto& one : links_) {
    one->pump_out();
    all = all && !one->wants_out() && !one->has_unsent();
  }
  return all;
}

// The one with the higher rank connects, so that no two do at the same time.
void tcp_mesh::await_all(clock::time_point until) {
  for (int peer = 0; peer < rank_; ++peer) manager_.want(peer);
  std::unique_lock lock(mutex_);
  const auto missing = [&] {
    std::vector<int> found;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank_ && !link(peer).connected()) found.push_back(peer);
    }
    return found;
  };
  const auto is_lost = [&](int peer) { return !lost_[static_cast<std::size_t>(peer)].empty(); };
  const auto over = [&] {
    const auto found = missing();
    return found.empty() || std::any_of(found.begin(), found.end(), is_lost);
  };
  changed_.wait_until(lock, until, over);
  const auto found = missing();
  if (found.empty()) return;
  const auto lost = std::find_if(found.begin(), found.end(), is_lost);
  if (lost != found.end()) {
    throw peer_failure({*lost}, "rank " + std::to_string(*lost) + " cannot be reached over tcp (" +
                                    lost_[static_cast<std::size_t>(*lost)] +
                                    "); check that it runs, the route to it (--interface, firewalls) and the token");
  }
  const std::string trouble = manager_.trouble_with(found.front());
  throw timeout_error("connecting", found,
                      "not all ranks are connected over tcp in time (missing: rank " + format_ranks(found) +
                          (trouble.empty() ? "" : "; " + trouble) +
                          "); check that they run, the route to them (--interface, firewalls) and the token");
}

// ---- groups ----

void tcp_mesh::open(tcp_channel& group) {
  const std::lock_guard lock(mutex_);
  messages_.open(group);
  for (int peer = 0; peer < size(); ++peer) {
    if (!lost_[static_cast<std::size_t>(peer)].empty()) tell_gone(group, peer, lost_[static_cast<std::size_t>(peer)]);
  }
  for (auto& one : early_) {
    if (one.generation != group.generation() || group.member(one.peer) < 0) continue;
    one.message.origin = group.member(one.peer);
    group.tell(one.message);
  }
  std::erase_if(early_, [&](const early_notice& one) { return one.generation == group.generation(); });
}

void tcp_mesh::close(tcp_channel& group) noexcept {
  frame word;
  word.kind = frame_kind::leave;
  word.generation = group.generation();
  word.set_number(group.called);
  {
    const std::lock_guard lock(mutex_);
    messages_.close(group);
    std::erase_if(leavers_, [&](const leaver& one) { return one.generation == group.generation(); });
  }
  for (int member = 0; member < group.size(); ++member) {
    if (member != group.rank()) manager_.post(group.peer(member), word, {}, true);
  }
}

// ---- requests ----

void tcp_mesh::begin(tcp_channel& group, request& r, bool receives) noexcept {
  r.state = message_progress::waiting;
  ::new (r.room) message_progress{
      .group = &group, .generation = group.generation(), .connection = no_connection, .receives = receives};
  if (r.signature.kind == collective::none || r.signature.sequence < group.called) return;
  group.called = r.signature.sequence + 1;
  position_.generation = group.generation();
  position_.signature = r.signature;
}

void tcp_mesh::send(tcp_channel& group, request& r) {
  const std::lock_guard lock(mutex_);
  begin(group, r, false);
  const int peer = group.peer(r.peer);
  if (peer == rank_) {
    const envelope head{.signature = r.signature, .total = r.bytes, .generation = group.generation(), .tag = r.tag};
    messages_.deliver_own(peer, head, r);
    end(r);
    return;
  }
  if (group.has_lost(r.peer)) return;
  progress_of(r).connection = link(peer).number();
  link(peer).send(r);
  if (!link(peer).connected()) manager_.want(peer);
}

void tcp_mesh::receive(tcp_channel& group, request& r) {
  const std::lock_guard lock(mutex_);
  begin(group, r, true);
  messages_.post(r);  // that it is clear to send is said by the next test, and perhaps with others
  if (r.peer == any_source || r.peer == group.rank()) return;
  const int peer = group.peer(r.peer);
  if (!link(peer).connected()) manager_.want(peer);
}

void tcp_mesh::pump(tcp_link& one) noexcept {
  if (one.connected()) {
    if (one.wants_out()) one.pump_out();
    if (one.wants_in()) {
      one.pump_in();
      if (one.is_urgent()) one.pump_out();
    }
  }
  const auto peer = static_cast<std::size_t>(one.peer());
  if (one.trouble().empty() || reported_[peer]) return;
  reported_[peer] = true;
  manager_.report(one.peer(), one.trouble());
}

// All that is under way moves: a peer may wait for another of our requests than the one we are asked for.
void tcp_mesh::progress() noexcept {
  for (auto& one : links_) pump(*one);
}

bool tcp_mesh::test(tcp_channel& group, request& r) {
  const std::lock_guard lock(mutex_);
  if (r.owner != nullptr && !group.failure) progress();
  group.looked = group.finished;
  if (group.failure) std::rethrow_exception(std::exchange(group.failure, nullptr));
  return r.owner == nullptr;
}

void tcp_mesh::cancel(tcp_channel& group, request& r) noexcept {
  const std::lock_guard lock(mutex_);
  if (r.owner == nullptr) return;
  const auto& p = progress_of(r);
  if (!p.receives) {
    auto& to = link(group.peer(r.peer));
    if (p.connection == to.number()) {
      to.cancel_send(r);
    } else {  // that is no more
      r.owner = nullptr;
    }
  } else {
    messages_.cancel(r);
  }
}

bool tcp_mesh::move_buffer(tcp_channel& group, request& r, std::byte* to) noexcept {
  const std::lock_guard lock(mutex_);
  if (r.owner == nullptr) return false;
  if (!progress_of(r).receives) link(group.peer(r.peer)).move_send(r, to);
  r.data = to;
  return true;
}

void tcp_mesh::notify(tcp_channel& group, int member, const control_message& message) {
  frame head;
  head.kind = frame_kind::control_message;
  head.generation = group.generation();
  head.signature = message.signature;
  std::array<std::byte, largest_control_payload> payload;
  const std::size_t bytes = encode_notice(message, payload);
  const int peer = group.peer(member);
  const bool matters = message.what != control_message::kind::position;
  manager_.post(peer, head, std::span(payload).first(bytes), matters);
  if (plan_.lazy && matters) manager_.want(peer);
}

void tcp_mesh::pause(tcp_channel& group, clock::time_point until) {
  thread_local std::vector<pollfd> files;
  files.clear();
  files.push_back({group.wake_file(), POLLIN, 0});
  {
    const std::lock_guard lock(mutex_);
    group.set_asleep(true);
    if (group.finished != group.looked) until = {};
    for (const auto& one : links_) {
      one->interests([&](int file, bool in, bool out) {
        files.push_back({file, static_cast<short>((in ? POLLIN : 0) | (out ? POLLOUT : 0)), 0});
      });
    }
  }
  if (group.news() == 0) {
    const auto left = std::max(until - clock::now(), clock::duration::zero());
    const auto whole = std::chrono::floor<std::chrono::seconds>(left);
    const timespec span{static_cast<time_t>(whole.count()),
                        static_cast<long>(std::chrono::nanoseconds(left - whole).count())};
    ::ppoll(files.data(), files.size(), &span, nullptr);
  }
  group.set_asleep(false);
}

bool tcp_mesh::renew(tcp_channel& group, int member, clock::time_point until) {
  const std::lock_guard lock(mutex_);
  const int peer = group.peer(member);
  if (!group.has_lost(member) || lost_[static_cast<std::size_t>(peer)].empty()) return false;
  if (left_[static_cast<std::size_t>(peer)]) return false;
  if (away_[static_cast<std::size_t>(peer)]) {
    if (!link(peer).stood()) return false;  // it was tried
    replace_link(peer);
    manager_.want(peer, until);
  }
  messages_.forget(peer, group.generation());
  group.fates[static_cast<std::size_t>(member)] = matching_group::fate::here;
  return true;
}

void tcp_mesh::replace_link(int peer) {
  const auto index = static_cast<std::size_t>(peer);
  links_[index] = std::make_unique<tcp_link>(peer, messages_, plan_.limits, link(peer).number() + 1);
  reported_[index] = away_[index] = false;
}

// ---- what the watch sees ----

void tcp_mesh::attach(int peer, std::vector<tcp_socket> streams) {
  const std::lock_guard lock(mutex_);
  if (away_[static_cast<std::size_t>(peer)]) replace_link(peer);
  link(peer).attach(std::move(streams));
  pump(link(peer));
  for (matching_group* const group : messages_.groups()) group->wake();
  changed_.notify_all();
}

void tcp_mesh::tell_gone(matching_group& group, int peer, const std::string& what, int witness) {
  const int member = group.member(peer);
  const auto now = witness < 0 ? matching_group::fate::seen_gone : matching_group::fate::said_gone;
  if (member < 0 || group.fates[static_cast<std::size_t>(member)] >= now) return;
  group.fates[static_cast<std::size_t>(member)] = now;
  control_message message;
  message.what = control_message::kind::gone;
  message.origin = member;
  message.witness = witness;
  message.status = static_cast<int>(error_kind::peer_failure);
  const auto& who = manager_.peer(peer);
  message.set_text("rank " + std::to_string(member) + " is gone (" + what + "; it is process " +
                   std::to_string(who.process) + " on " + who.name + "); see the output of its launcher");
  group.tell(message);
}

void tcp_mesh::lose(int peer, const std::string& why, int witness) {
  const auto index = static_cast<std::size_t>(peer);
  const std::lock_guard lock(mutex_);
  if (witness < 0) {
    if (lost_[index].empty()) lost_[index] = why;
    reported_[index] = away_[index] = true;
    link(peer).sever(why);
  } else if (left_[index]) {
    return;
  }
  for (matching_group* const group : messages_.groups()) {
    if (witness < 0) {
      tell_gone(*group, peer, why);
    } else if (group->member(witness) >= 0) {
      const int who = group->member(witness);
      tell_gone(*group, peer, "rank " + std::to_string(who) + " saw: " + why, who);
    }
  }
  changed_.notify_all();
}

void tcp_mesh::left(int peer) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<std::size_t>(peer);
  left_[index] = true;
  // What it said to its groups may have been lost with its connection: a group that renewed it would wait for it.
  for (matching_group* const group : messages_.groups()) {
    if (!lost_[index].empty()) tell_gone(*group, peer, "it has ended");
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

void tcp_mesh::hear_leave(int peer, std::uint64_t generation, std::uint64_t called) {
  const std::lock_guard lock(mutex_);
  if (!messages_.is_closed(generation))
    leavers_.push_back({generation, peer, called, clock::now() + transport_timing::late_control_message});
}

frame tcp_mesh::position() {
  const std::lock_guard lock(mutex_);
  return position_;
}

// Now and then: tells of a process that left a group that needs it, and sends what a busy caller left unsent.
void tcp_mesh::tick() {
  const std::lock_guard lock(mutex_);
  const auto now = clock::now();
  for (const auto& one : leavers_) {
    matching_group* const group = messages_.find(one.generation);
    if (group != nullptr && now >= one.until && one.called < group->called)
      tell_gone(*group, one.peer, "it left before it finished the group's collectives");
  }
  for (auto& one : links_) {
    if (one->is_urgent()) one->pump_out();
  }
}

}  // namespace muster::inline v0::detail
