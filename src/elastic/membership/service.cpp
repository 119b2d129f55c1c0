#include "service.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/elastic/departure.hpp>

namespace muster::inline v0::detail {

signals_seen& signals() noexcept {
  static signals_seen seen;
  return seen;
}

membership_service::membership_service(std::shared_ptr<any_store> store, std::unique_ptr<datagram_socket> words,
                                       elastic::member self, const elastic::membership_policy& policy,
                                       std::size_t steps_watched)
    : words_(std::move(words)),
      self_(self),
      policy_(policy),
      bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      works_(steps_watched),
      sorted_(steps_watched),
      protocol_(std::move(self), policy, clock::now()),
      record_(std::move(store), "elastic/record",
              {log_level::warning, "the membership",
               "training continues, and failures are handled when the store answers again"},
              {}, [this] { ring(); }) {
  thread_ = std::jthread([this](const std::stop_token& stop) {
    try {
      run(stop);
    } catch (...) {  // the rank ends with the reason, and the others go on without it
      const std::lock_guard held(mutex_);
      over_ = std::current_exception();
      end_generation("the membership of this rank failed");
    }
  });
}

membership_service::~membership_service() {
  thread_.request_stop();
  ring();
}

void membership_service::ring() const noexcept {
  const std::uint64_t one = 1;
  (void)!::write(bell_.get(), &one, sizeof one);
}

// Before any event: what the rank has done since the last one.
clock::time_point membership_service::begin_turn() {
  const auto now = clock::now();
  protocol_.wake(now);
  const auto steps = steps_.load(std::memory_order_acquire);
  if (!protocol_.has_stopped()) protocol_.committed(steps, cursor_.load(std::memory_order_relaxed));
  protocol_.worked(usual_work_.load(std::memory_order_relaxed), least_work_.load(std::memory_order_relaxed));
  return now;
}

// Something happened to the rank: the protocol hears of it at once, and the thread does what it wants done.
template <class Event>
void membership_service::tell(const Event& event) {
  {
    const std::lock_guard held(mutex_);
    event(begin_turn());
  }
  ring();
}

// ---- the thread that carries it out ----

void membership_service::run(const std::stop_token& stop) {
  const auto turn = std::chrono::duration_cast<std::chrono::milliseconds>(policy_.beat / 4);
  std::vector<pollfd> watched;
  while (!stop.stop_requested()) {
    watched.assign({{bell_.get(), POLLIN, 0}, {words_->file(), POLLIN, 0}});
    {
      const std::lock_guard held(mutex_);
      for (const auto& [id, its] : lives_) {
        if (protocol_.is_in(id) && !protocol_.is_dead(id) && its.file() >= 0)
          watched.push_back({its.file(), POLLIN, 0});
      }
    }
    (void)::poll(watched.data(), watched.size(), static_cast<int>(std::max<long long>(turn.count(), 1)));
    std::uint64_t rung = 0;
    (void)!::read(bell_.get(), &rung, sizeof rung);

    const std::lock_guard held(mutex_);
    const auto now = begin_turn();
    look_at_record(now);
    while (const auto text = words_->receive()) {
      if (const auto said = elastic::heartbeat::decode(*text)) protocol_.hear(now, *said);
    }
    look_at_lives(now);
    look_at_signals(now);
    protocol_.tick(now);
    for (auto actions = protocol_.take(); !actions.empty(); actions = protocol_.take()) {
      for (const auto& what : actions) std::visit([this](const auto& a) { perform(a); }, what);
    }
  }
}

void membership_service::look_at_record(clock::time_point now) {
  if (const auto entry = record_.take())
    protocol_.learn(now, entry->version, elastic::generation_record::decode(entry->value));
  if (record_.take_failure()) protocol_.store_failed(now);
  try {
    record_.check();
  } catch (const store_left_behind& left) {
    protocol_.left_behind(left.what());
  }
}

const life* membership_service::life_of(const elastic::member& who) {
  if (who.host != self_.host || who.id == self_.id) return nullptr;
  auto found = lives_.find(who.id);
  if (found == lives_.end()) found = lives_.emplace(who.id, life(who.process)).first;
  return &found->second;
}

void membership_service::look_at_lives(clock::time_point now) {
  for (const auto& [id, its] : lives_) {
    if (!protocol_.is_in(id) || protocol_.is_dead(id)) continue;
    if (its.ended()) {
      protocol_.prove_dead(now, id);
    } else if (protocol_.is_silent(now, id) && !protocol_.is_suspect(id) && its.is_stopped()) {
      protocol_.suspect(now, id, "its process is stopped");
    }
  }
}

void membership_service::look_at_signals(clock::time_point now) {
  if (signals().leave.exchange(false)) protocol_.leave(now);
  if (!signals().describe.exchange(false)) return;
  std::string text =
      "generation " + std::to_string(protocol_.record().generation) + " at step " + std::to_string(steps_.load()) + ":";
  int rank = 0;
  for (const auto& one : protocol_.record().members) {
    const auto reason = protocol_.reason_for(one.id);
    text += " rank " + std::to_string(rank++) + " is process " + std::to_string(one.process.process) +
            (one.id == self_.id ? " (this one)" : "") + (reason.empty() ? "" : " (" + reason + ")") + ";";
  }
  text += " " + std::to_string(protocol_.record().waiting.size()) + " wait to join";
  log(log_level::error, text);  // at whatever level: a signal asked for it
}

void membership_service::perform(const elastic::act::say& a) {
  const auto learn = [&](const elastic::member& one) {
    if (!places_.contains(one.id)) places_.emplace(one.id, words_->read_place(one.words, one.host == self_.host));
  };
  std::vector<address> places;
  for (const auto id : a.to) {
    auto found = places_.find(id);
    if (found == places_.end()) {  // a new record
      std::for_each(protocol_.record().members.begin(), protocol_.record().members.end(), learn);
      std::for_each(protocol_.record().waiting.begin(), protocol_.record().waiting.end(), learn);
      found = places_.find(id);
    }
    if (found != places_.end()) places.insert(places.end(), found->second.begin(), found->second.end());
  }
  words_->send(a.what.encode(), places);
}

void membership_service::perform(const elastic::act::swap& a) { record_.swap(a.expected, a.next.encode()); }

void membership_service::perform(const elastic::act::stop& a) {
  end_generation("generation " + std::to_string(protocol_.record().generation) + " is over (" + a.why + ")");
}

void membership_service::perform(const elastic::act::halt& a) { halt_.store(a.step, std::memory_order_release); }

void membership_service::perform(const elastic::act::kill& a) {
  log(log_level::warning, "process " + std::to_string(a.who.process.process) + " of this host is killed (" +
                              protocol_.reason_for(a.who.id) + ")");
  if (const auto* const its = life_of(a.who)) its->kill();
}

void membership_service::perform(const elastic::act::note& a) { log(log_level::warning, a.text); }

void membership_service::perform(const elastic::act::form& a) {
  present_ = std::make_shared<revocation>([this, members = a.group.members](int rank, const std::string& why) {
    const auto& who = members[static_cast<std::size_t>(rank)];
    if (who.host != self_.host) suspect(who.id, why);  // of this host there is proof, or none
  });
  to_form_ = {a.group, present_};
  stop_.store(false, std::memory_order_release);
  halt_.store(0, std::memory_order_release);
  for (const auto& one : a.group.members) (void)life_of(one);
  changed_.notify_all();
}

void membership_service::perform(const elastic::act::end& a) {
  over_ = std::make_exception_ptr(elastic::departure(a.why, a.text, a.first));
  end_generation(a.text);
}

void membership_service::end_generation(const std::string& why) {
  stop_.store(true, std::memory_order_release);
  if (present_) present_->revoke(why);
  changed_.notify_all();
}

// ---- the rank's side ----

std::optional<membership_service::next_generation> membership_service::next(clock::time_point until) {
  std::unique_lock held(mutex_);
  changed_.wait_until(held, until, [this] { return to_form_ || over_; });
  if (over_) std::rethrow_exception(over_);
  if (to_form_) {
    works_seen_ = 0;
    usual_work_ = least_work_ = clock::duration{};
  }
  return std::exchange(to_form_, std::nullopt);
}

void membership_service::worked(clock::duration work) noexcept {
  works_[works_seen_++ % works_.size()] = work;
  if (works_seen_ < works_.size()) return;
  sorted_ = works_;  // of the same size: nothing is allocated
  const auto middle = sorted_.begin() + static_cast<std::ptrdiff_t>(sorted_.size() / 2);
  std::nth_element(sorted_.begin(), middle, sorted_.end());
  usual_work_.store(*middle, std::memory_order_relaxed);
  least_work_.store(*std::min_element(sorted_.begin(), middle + 1), std::memory_order_relaxed);
}

void membership_service::stopped() {
  tell([this](clock::time_point now) { protocol_.stopped(now); });
}

void membership_service::suspect(elastic::member_id who, const std::string& why) {
  tell([&](clock::time_point now) { protocol_.suspect(now, who, why); });
}

void membership_service::leave() {
  tell([this](clock::time_point now) { protocol_.leave(now); });
}

void membership_service::wait_at(const std::string& endpoints) {
  tell([&](clock::time_point) { protocol_.wait_at(endpoints); });
}

void membership_service::await_others_leaving(clock::time_point until) {
  std::unique_lock held(mutex_);
  while (!over_ && !protocol_.may_go() && clock::now() < until) changed_.wait_for(held, std::chrono::milliseconds(2));
}

void membership_service::await_ends(const elastic::generation_record& before, const elastic::generation_record& now,
                                    clock::time_point until) {
  for (const auto& one : before.members) {
    if (now.rank_of(one.id) || one.host != self_.host || one.id == self_.id) continue;
    for (;;) {
      {
        const std::lock_guard held(mutex_);
        const auto* const its = life_of(one);
        if (its == nullptr || its->ended() || clock::now() >= until) break;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

clock::time_point membership_service::change_began() const {
  const std::lock_guard held(mutex_);
  return protocol_.change_began();
}

}  // namespace muster::inline v0::detail
