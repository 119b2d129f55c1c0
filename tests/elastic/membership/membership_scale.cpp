// The membership protocol with many members: that it does what it does with few, and what that costs.
#include "elastic/membership/membership.hpp"

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

constexpr std::uint64_t on_a_host = 8;
constexpr clock::duration turn = 10ms;       // of every member; what one says in a turn is heard in the next
constexpr clock::duration of_a_step = 50ms;  // which all take together

/// All members of a job in one thread, with a network that loses nothing and a store that answers in the next turn.
class job {
 public:
  explicit job(std::uint64_t size) {
    policy_.slow_factor = 3;
    for (std::uint64_t id = 1; id <= size; ++id) record_.members.push_back(start(id));
    record_.generation = version_ = 1;
    record_.state_sources = {1};
    run(policy_.beat + turn);
  }

  void run(clock::duration span) {
    for (const auto until = now_ + span; now_ < until;) run_turn();
  }
  /// How long it takes until the present generation has so many members and all of them have formed it; 3 s when they
  /// have not by then.
  clock::duration formed(std::size_t members) {
    const auto began = now_;
    const auto is_there = [&] {
      return record_.members.size() == members &&
             std::all_of(record_.members.begin(), record_.members.end(),
                         [&](const auto& one) { return at(one.id).generation == record_.generation; });
    };
    while (now_ - began < 3s && !is_there()) run_turn();
    return now_ - began;
  }

  void kill(member_id id) {
    at(id).lives = false;
    for (auto& one : processes_) {
      if (one.lives && one.self.host == at(id).self.host) one.protocol->prove_dead(now_, id);
    }
  }
  void cut_host_of(member_id id) {
    for (auto& one : processes_) one.lives = one.lives && one.self.host != at(id).self.host;
  }
  void leave(member_id id) { at(id).protocol->leave(now_); }
  void join() { (void)start(processes_.size() + 1); }
  void slow_down(member_id id) { at(id).work = 10 * of_a_step; }

  [[nodiscard]] const elastic::generation_record& record() const { return record_; }
  [[nodiscard]] bool is_noted_by_all(const std::string& text) const {
    return std::all_of(processes_.begin(), processes_.end(),
                       [&](const auto& one) { return one.note.find(text) != std::string::npos; });
  }

  /// Of each member since the last call: its time in the protocol, the words that it said and heard.
  struct cost {
    double milliseconds, said, heard;
  };
  cost spent() {
    const auto members = static_cast<double>(record_.members.size());
    const cost of{cpu_ * 1e3 / members, static_cast<double>(said_) / members, static_cast<double>(heard_) / members};
    cpu_ = 0;
    said_ = heard_ = 0;
    return of;
  }

 private:
  struct process {
    elastic::member self;
    std::unique_ptr<recorded_actions> wanted = std::make_unique<recorded_actions>();
    std::unique_ptr<elastic::membership> protocol;
    clock::duration work = of_a_step / 5;
    std::vector<std::shared_ptr<const elastic::heartbeat>> inbox;
    std::string note;
    std::uint64_t known = 0;       // version of the record
    std::uint64_t generation = 0;  // that it works in
    std::uint64_t halt = 0;
    bool lives = true;
    bool is_to_stop = false;
  };

  process& at(member_id id) { return processes_[id - 1]; }
  const elastic::member& start(member_id id) {
    processes_.emplace_back();
    auto& made = processes_.back();
    made.self = {
        id, (id - 1) / on_a_host, id, 0, {}, std::string(100, 'c'), std::string(60, 'd')};  // as long as real ones
    made.protocol = std::make_unique<elastic::membership>(made.self, policy_, *made.wanted, now_);
    return made.self;
  }

  static double processor_time() {
    timespec spent{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return static_cast<double>(spent.tv_sec) + static_cast<double>(spent.tv_nsec) * 1e-9;
  }

  void run_turn() {
    now_ += turn;
    const double began = processor_time();
    for (auto& one : processes_) {
      if (one.lives) take_turn(one);
    }
    cpu_ += processor_time() - began;
    for (auto& one : processes_) {
      for (const auto& what : one.wanted->take()) {
        std::visit([&](const auto& a) { perform(one, a); }, what);
      }
    }
    take_step();
  }
  void take_turn(process& one) {
    one.protocol->wake(now_);
    one.protocol->worked(one.work);
    // The first record is learned in turn, so that not all members say all their words at the same time.
    const bool knows_first = clock::duration((one.self.id * 7) % 10 * turn) < now_.time_since_epoch();
    if (one.known < version_ && knows_first) {
      one.known = version_;
      one.protocol->learn(now_, version_, record_);
    }
    for (const auto& said : std::exchange(one.inbox, {})) one.protocol->hear(now_, *said);
    if (one.is_to_stop) one.protocol->stopped(now_);
    one.is_to_stop = false;
    one.protocol->tick(now_);
  }
  // All that the present record has, as long as none of them has stopped.
  void take_step() {
    const bool all_take_part = std::all_of(record_.members.begin(), record_.members.end(), [&](const auto& m) {
      return at(m.id).lives && at(m.id).generation == record_.generation && !at(m.id).protocol->has_stopped();
    });
    if (!all_take_part || now_ - stepped_ < of_a_step) return;
    stepped_ = now_;
    ++step_;
    for (const auto& m : record_.members) {
      auto& one = at(m.id);
      one.protocol->committed(step_, step_);
      one.is_to_stop = one.is_to_stop || (one.halt != 0 && step_ >= one.halt);
    }
  }

  void perform(process&, const act::say& a) {
    const auto said = std::make_shared<const elastic::heartbeat>(a.what);
    said_ += a.to.size();
    for (const auto id : a.to) {
      if (!at(id).lives) continue;
      at(id).inbox.push_back(said);
      ++heard_;
    }
  }
  void perform(process& one, const act::swap& a) {
    if (a.expected == version_) {
      ++version_;
      record_ = a.next;
    } else {
      one.known = 0;
    }
  }
  void perform(process& one, const act::stop&) { one.is_to_stop = true; }
  void perform(process& one, const act::halt& a) { one.halt = a.step; }
  void perform(process& one, const act::form& a) {
    one.generation = a.group.generation;
    one.halt = 0;
    one.is_to_stop = false;
    one.protocol->committed(std::max(step_, a.group.step), step_);  // its state is copied in no time
  }
  void perform(process& one, const act::note& a) { one.note = a.text; }
  void perform(process& one, const act::end&) { one.lives = false; }
  void perform(process&, const act::kill& a) { kill(a.peer.id); }

  elastic::membership_policy policy_;
  clock::time_point now_{};
  std::vector<process> processes_;  // by id, from 1
  std::uint64_t version_ = 0;
  elastic::generation_record record_;
  std::uint64_t step_ = 0;
  clock::time_point stepped_{};
  double cpu_ = 0;
  std::uint64_t said_ = 0;
  std::uint64_t heard_ = 0;
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
  CHECK(all.record().why == "rank 499 died: proof");

  all.cut_host_of(801);
  CHECK(all.formed(members - 1 - on_a_host) < policy.suspicion_timeout + 2 * policy.beat);

  all.leave(3);
  CHECK(all.formed(members - 2 - on_a_host) < 1s);
  CHECK(all.record().why == "rank 2 left");

  all.join();
  CHECK(all.formed(members - 1 - on_a_host) < 1s);
  CHECK(all.record().why == "1 joined");
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
  std::printf("         words said  words heard  ms of a processor  words said  ms of a processor\n");
  for (const std::uint64_t members : {16, 64, 256, 1024}) {
    job all(members);
    (void)all.spent();
    all.run(1s);
    const auto usual = all.spent();
    all.kill(5);
    (void)all.formed(members - 1);
    const auto change = all.spent();
    std::printf("%7llu  %10.0f  %11.0f  %17.3f  %10.0f  %17.3f\n", static_cast<unsigned long long>(members), usual.said,
                usual.heard, usual.milliseconds, change.said, change.milliseconds);
    CHECK(usual.said <= 1.1 * 20 * 10);  // 16 monitors and 4 others in turn, 10 times a second
    CHECK(usual.heard <= 1.1 * 20 * 10);
    CHECK(all.record().members.size() == members - 1);
  }
}
