// The rank's side of an elastic job: when to stop, when to go on, and with which members.
#include <algorithm>
#include <csignal>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/log.hpp>
#include <muster/elastic/elastic.hpp>
#include <muster/elastic/settings.hpp>

#include "../comm/group/group_state.hpp"
#include "../core/text.hpp"
#include "job_member.hpp"
#include "link_watch.hpp"
#include "state_transfer.hpp"
#include "timing.hpp"
#include "waiting_time.hpp"

namespace muster { inline namespace v0 { namespace detail { namespace {

// What the protocol counts: one for each step, each evaluation that was finished and each run that came to its end.
std::uint64_t progress_of(const state& of) {
  const auto at = of.position();
  return at.steps + at.evaluations + at.runs;
}

std::string milliseconds(double span) { return detail::printed("%.1f", span * 1e3); }

void on_signal(int which) {
  if (which == SIGTERM) signals.leave.store(true);
  if (which == SIGUSR1) signals.describe.store(true);
}

// The handlers of before are put back in the end.
class caught_signals {
 public:
  caught_signals() {
    signals.leave = signals.describe = false;
    struct sigaction ours {};
    ours.sa_handler = &on_signal;
    ours.sa_flags = SA_RESTART;
    (void)::sigaction(SIGTERM, &ours, &former_term_);
    (void)::sigaction(SIGUSR1, &ours, &former_usr1_);
  }
  caught_signals(const caught_signals&) = delete;
  caught_signals& operator=(const caught_signals&) = delete;
  ~caught_signals() {
    (void)::sigaction(SIGTERM, &former_term_, nullptr);
    (void)::sigaction(SIGUSR1, &former_usr1_, nullptr);
  }

 private:
  struct sigaction former_term_ {};
  struct sigaction former_usr1_ {};
};

// Behind `elastic::session`. Between two steps it looks at two atomic words of the membership; everything else
// happens when these say that the generation is over.
class elastic_backend final : public session_backend {
 public:
  elastic_backend(context& of, elastic::session_options options) : context_(of), options_(std::move(options)) {
    if (!of.elastic()) {
      throw configuration_error(
          "an elastic session needs an elastic job (--elastic is off); set --elastic on, start the job by "
          "muster-launch, or use muster::fixed_session");
    }
    const auto& mode = of.configuration().value(setting::mode);
    if (mode.starts_with("local-sgd") || mode.starts_with("gossip")) {
      throw configuration_error(of.configuration().origin(setting::mode) + " asks for " + mode +
                                " (the parameters of ranks differ between exchanges, so the death of a rank loses "
                                "updates); use allreduce, or --elastic off");
    }
    (void)policy_of(of.configuration(), of.launcher());  // what is wrong with it is said before any training
    if (of.configuration().value(setting::transport) == "mpi" && of.launcher().kind != launch_env::launcher::open_mpi) {
      throw configuration_error(of.configuration().origin(setting::transport) +
                                " asks for transport mpi (mpirun did not start this process, and over MPI a job only "
                                "shrinks); use --transport shm or tcp, over which a job also grows");
    }
    if (options_.handle_signals) signals_.emplace();
  }

  ~elastic_backend() override {
    if (group_) {
      member_->leave();
      retire_group();
    }
    former_.clear();
  }

  void prepare(state& of) override {
    if (group_ && !service().must_stop(progress_of(of))) return;
    if (!member_) join_job();
    const auto began = clock::now();
    for (;;) {
      stop_present(of);
      const auto next = service().next(clock::now() + elastic_timing::next_generation);
      if (!next) continue;
      bool is_built = false;
      try {
        build(of, *next);
        is_built = true;
        if (options_.on_rebuild) options_.on_rebuild(*group_, change_);
        if (event_sink* const sink = current_event_sink())
          sink->record({activity::rebuild, "generation", began, clock::now(), record_.generation});
        return;
      } catch (const peer_failure&) {  // and once more, with those that are left
        if (is_built && !is_of_group(of)) throw;
      } catch (const timeout_error& late) {
        if (is_built && !is_of_group(of)) throw;
        suspect_missing(late, "it did not connect: ");
      }
      if (!revocation_->revoked()) log(log_level::warning, "a generation could not be formed; its members try again");
    }
  }

  [[nodiscard]] group& ranks() override {
    if (group_) return *group_;
    throw configuration_error(
        "an elastic session has no group yet (its ranks are known when it runs); use step.group(), or on_rebuild of "
        "its options");
  }

  [[nodiscard]] std::uint64_t generation() const noexcept override { return record_.generation; }

  // What is left of its time is its own: a rank is slow when the others wait for it.
  void attempt(const std::function<void()>& f) override {
    const waiting_time waited;
    const auto began = clock::now();
    f();
    work_ = clock::now() - began - waited.sum();
  }

  // A failure of the group's, and not one of something else in the step that throws the same exceptions.
  void recover(state& of, std::exception_ptr why) override {
    const bool must_stop = service().must_stop(progress_of(of));
    bool about_ranks = must_stop;
    try {
      std::rethrow_exception(why);
    } catch (const elastic::departure&) {
      about_ranks = false;
    } catch (const peer_failure&) {
      about_ranks = must_stop || is_of_group(of);
    } catch (const timeout_error& late) {
      about_ranks = must_stop || is_of_group(of);
      if (about_ranks && group_ && group_->failed()) suspect_missing(late, "no progress: ");
    } catch (...) {
    }
    if (!about_ranks) std::rethrow_exception(why);
    limit_repetitions(of, why);
    change_.again = 1;  // the same step, however often it fails
    stop_present(of);
  }

  void committed(const state& of) noexcept override {
    say_progress(of);
    service().worked(work_);
    if (const auto judged = links_.look(group_->transport())) {
      const auto steps = static_cast<double>(context_.configuration().integer(setting::slow_steps));
      const auto named = [&](const link_watch::seen_link& one) {
        return elastic::link_seen{
            .to = one.peer < 0 ? 0 : record_.members[static_cast<std::size_t>(one.peer)].id,
            .rate = static_cast<std::uint64_t>(one.quality.bandwidth),
            .latency = static_cast<std::uint64_t>(1e6 * one.quality.latency),
            .takes = static_cast<std::uint64_t>(1e6 * static_cast<double>(one.quality.sent) /
                                                std::max(1.0, one.quality.bandwidth) / steps),
        };
      };
      std::vector<elastic::link_seen> all;  // once in many steps
      std::ranges::transform(judged->all, std::back_inserter(all), named);
      service().judged(named(judged->slowest), static_cast<std::uint64_t>(judged->usual), std::move(all));
    }
    if (first_step_) tell_first_step();
  }

 private:
  // A group that is over. Over a network its end may take a while; what it shared on this host is given back when
  // nothing made from it is left, some generations later.
  struct former_group {
    std::shared_ptr<shm_host> host;
    std::jthread farewell;
  };

  // The promise that the protocol rests on: whatever of this generation still comes, this rank is not in it any more.
  void stop_present(const state& of) {
    if (stopped_) return;
    stopped_ = true;
    if (group_) {
      if (options_.before_rebuild) options_.before_rebuild();
      retire_group();
    }
    say_progress(of);
    lap_ = service().tell([&](auto& protocol, auto now) {
      protocol.wait_at(member_->endpoints());  // what connecting it has shown of MPI
      protocol.stopped(now);
      return protocol.change_began();
    });
    change_.detect = lap();
  }

  // Also where a group that was made from it failed, or a rank has left meanwhile.
  [[nodiscard]] bool is_of_group(const state& of) {
    return (revocation_ && revocation_->any_failed()) || service().must_stop(progress_of(of));
  }

  // One that fails again and again, with the same members, will not succeed.
  void limit_repetitions(const state& of, const std::exception_ptr& why) {
    constexpr int most = 20;
    const auto at = progress_of(of);
    const bool again =
        repeated_at_ == at && repeated_among_ == record_.members.size() && change_.origin == same_ranks();
    repeated_at_ = at;
    repeated_among_ = record_.members.size();
    repetitions_ = again ? repetitions_ + 1 : 1;
    if (repetitions_ == 1) return;
    const std::string text = "step " + std::to_string(of.steps()) + " failed " + std::to_string(repetitions_) +
                             " times with the same ranks (" + describe(why) + ")";
    if (repetitions_ > most) {
      log(log_level::error, text + "; this rank gives up");
      std::rethrow_exception(why);
    }
    log(log_level::warning, text + "; it is run again");
  }
  [[nodiscard]] std::vector<int> same_ranks() const {
    std::vector<int> all(record_.members.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  void retire_group() {
    group_->abort("generation " + std::to_string(record_.generation) + " is over");
    const bool waits = group_->abilities().name == "tcp" || group_->abilities().name == "hierarchical";
    former_.push_back({std::move(host_), {}});
    if (waits) {
      former_.back().farewell =
          std::jthread([ended = std::make_shared<group>(std::move(*group_))]() mutable { ended.reset(); });
    }
    group_.reset();
  }

  void forget_oldest() {
    auto oldest = std::move(former_.front());
    former_.pop_front();
    if (oldest.farewell.joinable()) oldest.farewell.join();
    if (oldest.host) oldest.host->give_back(true);
  }

  void build(state& of, const membership_service::next_generation& next) {
    change_.agree = lap();
    revocation_ = next.end;
    before_ = std::exchange(record_, next.record);
    describe_change();
    // In the first generation one begins and the others copy; later a process that was not a member has no state to
    // give.
    const bool named = std::ranges::count(record_.state_sources, self().id) > 0;
    if (change_.rank_before < 0) holds_ = named;
    if (record_.step == self().step && named && record_.state_sources.front() == self().id)
      holds_ = true;  // the member that was to begin is gone
    stopped_ = false;
    connect();
    change_.connect = lap();
    const bool is_blank = !holds_ && record_.step > self().step;
    change_.copied = transfer_state(*group_, of, {.may_hold = holds_, .in_place = is_blank});
    holds_ = true;
    say_progress(of);
    change_.state = lap();
    first_step_ = true;
  }

  void connect() {
    const int rank = *record_.rank_of(self().id);
    set_log_rank(rank);
    // Their memory and ours are used again: no process of the generation before may still write.
    service().await_ends(before_, record_, deadline_after(elastic_timing::end_of_killed));
    if (context_.shared_memory()) context_.shared_memory()->attach_again();  // none over tcp alone
    auto made = member_->connect(record_, context_.shared_memory(), [by = revocation_] { return by->revoked(); });
    group_.emplace(
        std::make_shared<group_state>(std::move(made.transport), context_.world().settings(), nullptr, 0, revocation_));
    host_ = made.host;
    links_.begin(group_->size(), static_cast<std::size_t>(context_.configuration().integer(setting::slow_steps)));
    constexpr std::size_t former_ones_kept = 4;
    while (former_.size() > former_ones_kept) forget_oldest();
  }

  void suspect_missing(const timeout_error& late, const std::string& why) {
    if (!revocation_->revoked()) member_->suspect_missing(record_, late, why);
  }

  void say_progress(const state& of) noexcept { service().committed(progress_of(of), of.position().at.position); }

  // Written when the first step is done, which is what the change was for.
  void tell_first_step() {
    first_step_ = false;
    const auto again = std::exchange(change_.again, 0);
    if (change_.rank != 0 || change_.generation == 1) return;
    log(log_level::warning,
        "generation " + std::to_string(change_.generation) + ": " + change_.why + "; " + std::to_string(change_.size) +
            " ranks (" + std::to_string(change_.size_before) + " before), from step " + std::to_string(change_.step) +
            "; detect " + milliseconds(change_.detect) + ", agree " + milliseconds(change_.agree) + ", connect " +
            milliseconds(change_.connect) + ", state " + milliseconds(change_.state) + ", first step " +
            milliseconds(lap()) + " ms; " + std::to_string(again) + " steps run again");
  }

  // Seconds since the part before of a change was done.
  [[nodiscard]] double lap() {
    const auto now = clock::now();
    const auto before = std::exchange(lap_, now);
    return before == clock::time_point{} ? 0 : std::max(0.0, seconds(now - before).count());
  }

  void describe_change() {
    const auto rank_before = [this](elastic::member_id id) { return before_.rank_of(id).value_or(-1); };
    change_.generation = record_.generation;
    change_.why = record_.why;
    change_.rank_before = rank_before(self().id);
    change_.size_before = static_cast<int>(before_.members.size());
    change_.rank = *record_.rank_of(self().id);
    change_.size = static_cast<int>(record_.members.size());
    change_.origin.clear();
    for (const auto& one : record_.members) change_.origin.push_back(rank_before(one.id));
    change_.step = record_.step;
  }

  // At the first run: a process that still reads its data keeps no other rank waiting.
  void join_job() {
    const auto& configuration = context_.configuration();
    const auto& launch = context_.launcher();
    const std::shared_ptr<any_store> store = open_store(configuration, launch);
    log(log_level::debug, "the members use the store " + store->where());
    member_.emplace(configuration, launch, store, static_cast<std::uint64_t>(launch.rank));
  }

  [[nodiscard]] const elastic::member& self() const noexcept { return member_->self(); }
  [[nodiscard]] membership_service& service() noexcept { return member_->service(); }

  context& context_;
  elastic::session_options options_;
  std::optional<job_member> member_;  // from the first run on

  elastic::generation_record before_;
  elastic::generation_record record_;
  std::shared_ptr<revocation> revocation_;
  std::optional<group> group_;
  std::shared_ptr<shm_host> host_;  // of the present group
  std::deque<former_group> former_;
  bool holds_ = false;                             // whether this rank's state counts
  bool stopped_ = true;                            // in no generation, and the membership was told
  bool first_step_ = false;                        // of this generation, not done yet
  std::uint64_t repeated_at_ = ~std::uint64_t{0};  // the progress at the last failure of a step
  std::size_t repeated_among_ = 0;                 // members then
  int repetitions_ = 0;                            // of that step
  link_watch links_;
  clock::duration work_{};   // of its own in the last attempt
  elastic::change change_;   // the last, or under way
  clock::time_point lap_{};  // when its last part was done; none yet: this rank joins
  std::optional<caught_signals> signals_;
};

}  // namespace
}}}  // namespace muster::v0::detail

namespace muster { inline namespace v0 { namespace elastic {

muster::session session(context& of, session_options options) {
  return muster::session(std::make_unique<detail::elastic_backend>(of, std::move(options)));
}

}}}  // namespace muster::v0::elastic
