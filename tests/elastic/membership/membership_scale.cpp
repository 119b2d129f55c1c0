// The membership protocol with many members: it behaves as with few, and its cost is measured.
#include <muster/elastic/membership/membership.hpp>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "../actions.hpp"
#include "catch.hpp"

namespace {

using namespace std::chrono_literals;
namespace elastic = muster::elastic;
using elastic::member_id;
using muster::clock;

constexpr std::uint64_t members_per_host = 8;
constexpr clock::duration turn = 10ms;  // turn of every member; a message sent in a turn is received in the next turn
constexpr clock::duration step_time = 50ms;  // a step, which all members take together

/// All members of a job in one thread, with a network without losses and a store that replies in the next turn.
class job {
 public:
  explicit job(std::uint64_t size) {
    policy_.slow_factor = 3;
    for (std::uint64_t id = 1; id <= size; ++id) record_.members.push_back(start(id));
    record_.generation = version_ = 1;
    record_.state_sources = {1};
    run(policy_.heartbeat_interval + turn);
  }

  void run(clock::duration span) {
    for (const auto until = now_ + span; now_ < until;) run_turn();
  }
  /// Returns the time until the present generation has so many members and all of them have formed it; 3 s if that
  /// takes longer.
  clock::duration formed(std::size_t members) {
    const auto began = now_;
    const auto is_there = [&] {
      return record_.members.size() == members &&
             std::all_of(record_.members.begin(), record_.members.end(),
                         [&](const auto& peer) { return at(peer.id).generation == record_.generation; });
    };
    while (now_ - began < 3s && !is_there()) run_turn();
    return now_ - began;
  }

  void kill(member_id id) {
    at(id).lives = false;
    for (auto& peer : processes_) {
      if (peer.lives && peer.self.host == at(id).self.host) peer.protocol->prove_dead(now_, id);
    }
  }
  void cut_host_of(member_id id) {
    for (auto& peer : processes_) peer.lives = peer.lives && peer.self.host != at(id).self.host;
  }
  void leave(member_id id) { at(id).protocol->leave(now_); }
  void join() { (void)start(processes_.size() + 1); }
  void slow_down(member_id id) { at(id).work = 10 * step_time; }

  [[nodiscard]] const elastic::generation_record& record() const { return record_; }
  [[nodiscard]] bool is_noted_by_all(const std::string& text) const {
    return std::all_of(processes_.begin(), processes_.end(),
                       [&](const auto& peer) { return peer.note.find(text) != std::string::npos; });
  }

  /// The cost per member since the last call: time in the protocol, messages sent and received.
  struct cost {
    double milliseconds, sent, received;
  };
  cost spent() {
    const auto members = static_cast<double>(record_.members.size());
    const cost result{cpu_ * 1e3 / members, static_cast<double>(sent_) / members,
                      static_cast<double>(received_) / members};
    cpu_ = 0;
    sent_ = received_ = 0;
    return result;
  }

 private:
  struct process {
    elastic::member self;
    std::unique_ptr<recorded_actions> outlet = std::make_unique<recorded_actions>();
    std::unique_ptr<elastic::membership> protocol;
    clock::duration work = step_time / 5;
    std::vector<std::shared_ptr<const elastic::heartbeat>> inbox;
    std::string note;
    std::uint64_t known_version = 0;  // version of the record that it has read
    std::uint64_t generation = 0;     // the generation in which it works
    std::uint64_t halt = 0;
    bool lives = true;
    bool is_to_stop = false;
  };

  process& at(member_id id) { return processes_[id - 1]; }
  const elastic::member& start(member_id id) {
    processes_.emplace_back();
    auto& created = processes_.back();
    // The texts are as long as real ones.
    created.self = {id, (id - 1) / members_per_host, id, 0, {}, std::string(100, 'c'), std::string(60, 'd')};
    created.protocol = std::make_unique<elastic::membership>(created.self, policy_, *created.outlet, now_);
    return created.self;
  }

  static double processor_time() {
    timespec spent{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return static_cast<double>(spent.tv_sec) + static_cast<double>(spent.tv_nsec) * 1e-9;
  }

  void run_turn() {
    now_ += turn;
    const double began = processor_time();
    for (auto& peer : processes_) {
      if (peer.lives) take_turn(peer);
    }
    cpu_ += processor_time() - began;
    for (auto& peer : processes_) {
      for (const auto& requested : peer.outlet->take()) {
        std::visit([&](const auto& a) { perform(peer, a); }, requested);
      }
    }
    take_step();
  }
  void take_turn(process& peer) {
    peer.protocol->wake(now_);
    peer.protocol->report_step_time(peer.work);
    // Members read the first record in turn, so that not all send all their messages at the same time.
    const bool knows_first = clock::duration((peer.self.id * 7) % 10 * turn) < now_.time_since_epoch();
    if (peer.known_version < version_ && knows_first) {
      peer.known_version = version_;
      peer.protocol->on_record(now_, version_, record_);
    }
    for (const auto& message : std::exchange(peer.inbox, {})) peer.protocol->on_heartbeat(now_, *message);
    if (peer.is_to_stop) peer.protocol->stopped(now_);
    peer.is_to_stop = false;
    peer.protocol->tick(now_);
  }
  // Commits a step when all members of the present record take part and none has stopped.
  void take_step() {
    const bool all_take_part = std::all_of(record_.members.begin(), record_.members.end(), [&](const auto& m) {
      return at(m.id).lives && at(m.id).generation == record_.generation && !at(m.id).protocol->has_stopped();
    });
    if (!all_take_part || now_ - stepped_ < step_time) return;
    stepped_ = now_;
    ++step_;
    for (const auto& m : record_.members) {
      auto& peer = at(m.id);
      peer.protocol->committed(step_, step_);
      peer.is_to_stop = peer.is_to_stop || (peer.halt != 0 && step_ >= peer.halt);
    }
  }

  void perform(process&, const act::send& a) {
    const auto message = std::make_shared<const elastic::heartbeat>(a.message);
    sent_ += a.recipients.size();
    for (const auto id : a.recipients) {
      if (!at(id).lives) continue;
      at(id).inbox.push_back(message);
      ++received_;
    }
  }
  void perform(process& peer, const act::swap& a) {
    if (a.expected == version_) {
      ++version_;
      record_ = a.next;
    } else {
      peer.known_version = 0;
    }
  }
  void perform(process& peer, const act::stop&) { peer.is_to_stop = true; }
  void perform(process& peer, const act::halt& a) { peer.halt = a.step; }
  void perform(process& peer, const act::form& a) {
    peer.generation = a.group.generation;
    peer.halt = 0;
    peer.is_to_stop = false;
    peer.protocol->committed(std::max(step_, a.group.progress), step_);  // its state is copied instantly
  }
  void perform(process& peer, const act::note& a) { peer.note = a.text; }
  void perform(process& peer, const act::end&) { peer.lives = false; }
  void perform(process&, const act::kill& a) { kill(a.peer.id); }

  elastic::membership_policy policy_;
  clock::time_point now_{};
  std::vector<process> processes_;  // by id, from 1
  std::uint64_t version_ = 0;
  elastic::generation_record record_;
  std::uint64_t step_ = 0;
  clock::time_point stepped_{};
  double cpu_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

}  // namespace

TEST_CASE("a thousand members go on without those that die, fall silent and leave, and take others in", "[slow]") {
  constexpr std::size_t members = 1024;
  const elastic::membership_policy policy;
  job all(members);
  all.run(1s);
  REQUIRE(all.record().generation == 1);

  all.kill(500);
  CHECK(all.formed(members - 1) < 100ms);
  CHECK(all.record().reason == "rank 499 died: proof");

  all.cut_host_of(801);
  CHECK(all.formed(members - 1 - members_per_host) < policy.suspicion_timeout + 2 * policy.heartbeat_interval);

  all.leave(3);
  CHECK(all.formed(members - 2 - members_per_host) < 1s);
  CHECK(all.record().reason == "rank 2 left");

  all.join();
  CHECK(all.formed(members - 1 - members_per_host) < 1s);
  CHECK(all.record().reason == "1 joined");
  CHECK(all.record().generation == 5);
}

TEST_CASE("all members learn of a slow one, however many they are") {
  job all(64);
  all.slow_down(40);
  all.run(3s);
  CHECK(all.is_noted_by_all("rank 39 is slow"));
}

// Prints the table of docs/elastic.md.
TEST_CASE("what a member says and hears does not grow with the job", "[cost][slow]") {
  std::printf("members  in a second of training, for each member     a death, until the next generation\n");
  std::printf("         msgs sent   msgs rcvd   ms of a processor  msgs sent   ms of a processor\n");
  for (const std::uint64_t members : {16, 64, 256, 1024}) {
    job all(members);
    (void)all.spent();
    all.run(1s);
    const auto usual = all.spent();
    all.kill(5);
    (void)all.formed(members - 1);
    const auto change = all.spent();
    std::printf("%7llu  %10.0f  %11.0f  %17.3f  %10.0f  %17.3f\n", static_cast<unsigned long long>(members), usual.sent,
                usual.received, usual.milliseconds, change.sent, change.milliseconds);
    CHECK(usual.sent <= 1.1 * 20 * 10);  // 16 monitors and 4 others in turn, 10 times a second
    CHECK(usual.received <= 1.1 * 20 * 10);
    CHECK(all.record().members.size() == members - 1);
  }
}
