// The rank's side of an elastic job: it decides when to stop, when to continue, and with which members.
#pragma once

#include <muster/elastic/elastic.hpp>

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
#include <muster/comm/comm_settings.hpp>
#include <muster/comm/group/group_state.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/text.hpp>
#include <muster/elastic/elastic_settings.hpp>
#include <muster/elastic/elastic_timing.hpp>
#include <muster/elastic/job_member.hpp>
#include <muster/elastic/link_watch.hpp>
#include <muster/elastic/state_transfer.hpp>
#include <muster/elastic/waiting_time.hpp>

namespace muster { inline namespace v0 {
namespace detail {  // Returns the protocol's count of progress: one per step, per finished evaluation and per finished
                    // run.
inline std::uint64_t progress_of(const state& target) {
  const auto at = target.position();
  return at.steps + at.evaluations + at.runs;
}

inline std::string milliseconds(double span) { return muster::detail::printed("%.1f", span * 1e3); }

inline void on_signal(int signal) {
  if (signal == SIGTERM) signals.leave.store(true);
  if (signal == SIGUSR1) signals.describe.store(true);
}

// Installs the signal handlers, and restores the previous handlers at its end.
class signal_handlers {
 public:
  signal_handlers() {
    signals.leave = signals.describe = false;
    struct sigaction ours {};
    ours.sa_handler = &on_signal;
    ours.sa_flags = SA_RESTART;
    (void)::sigaction(SIGTERM, &ours, &former_term_);
    (void)::sigaction(SIGUSR1, &ours, &former_usr1_);
  }
  signal_handlers(const signal_handlers&) = delete;
  signal_handlers& operator=(const signal_handlers&) = delete;
  ~signal_handlers() {
    (void)::sigaction(SIGTERM, &former_term_, nullptr);
    (void)::sigaction(SIGUSR1, &former_usr1_, nullptr);
  }

 private:
  struct sigaction former_term_ {};
  struct sigaction former_usr1_ {};
};

// The backend of `elastic::session`. Between two steps the backend reads two atomic words of the membership. All other
// work happens when these words show that the generation is over.
class elastic_backend final : public session_backend {
 public:
  elastic_backend(context& parent, elastic::session_options options) : context_(parent), options_(std::move(options)) {
    if (!parent.elastic()) {
      throw configuration_error(
          "an elastic session needs an elastic job (--elastic is off); set --elastic on, start the job by "
          "muster-launch, or use muster::fixed_session");
    }
    const auto& mode = parent.configuration().value(setting::mode);
    if (mode.starts_with("local-sgd") || mode.starts_with("gossip")) {
      throw configuration_error(parent.configuration().origin(setting::mode) + " asks for " + mode +
                                " (the parameters of ranks differ between exchanges, so the death of a rank loses "
                                "updates); use allreduce, or --elastic off");
    }
    (void)policy_of(parent.configuration(), parent.launcher());  // throws for invalid settings before any training
    if (parent.configuration().value(setting::transport) == "mpi" &&
        parent.launcher().kind != launch_env::launcher::open_mpi) {
      throw configuration_error(parent.configuration().origin(setting::transport) +
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
    former_groups_.clear();
  }

  void prepare(state& target) override {
    if (group_ && !service().must_stop(progress_of(target))) return;
    if (!member_) join_job(progress_of(target));
    const auto began = clock::now();
    for (;;) {
      stop_present(target);
      const auto next = service().next(clock::now() + elastic_timing::next_generation);
      if (!next) continue;
      bool is_built = false;
      try {
        build(target, *next);
        is_built = true;
        if (options_.on_rebuild) options_.on_rebuild(*group_, change_);
        if (event_sink* const sink = current_event_sink())
          sink->record({activity::rebuild, "generation", began, clock::now(), record_.generation});
        return;
      } catch (const peer_failure&) {  // the members that are left form the next generation
        if (is_built && !group_has_failed(target)) throw;
      } catch (const timeout_error& late) {
        if (is_built && !group_has_failed(target)) throw;
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

  // Measure the rank's own time, without the time that it waits: a rank is slow when the others wait for it.
  void begin_attempt() override {
    waited_.emplace();
    attempt_began_ = clock::now();
  }
  void end_attempt(bool is_successful) noexcept override {
    if (is_successful) work_ = clock::now() - attempt_began_ - waited_->sum();
    waited_.reset();
  }

  // Handles only failures of the group. Other code in the step may throw the same exceptions.
  void recover(state& target, std::exception_ptr failure) override {
    const bool must_stop = service().must_stop(progress_of(target));
    bool about_ranks = must_stop;
    try {
      std::rethrow_exception(failure);
    } catch (const elastic::departure&) {
      about_ranks = false;
    } catch (const peer_failure&) {
      about_ranks = must_stop || group_has_failed(target);
    } catch (const timeout_error& late) {
      about_ranks = must_stop || group_has_failed(target);
      if (about_ranks && group_ && group_->failed()) suspect_missing(late, "no progress: ");
    } catch (...) {
    }
    if (!about_ranks) std::rethrow_exception(failure);
    limit_repetitions(target, failure);
    change_.again = 1;  // counts steps: a step that fails several times is counted once
    stop_present(target);
  }

  void committed(const state& target) noexcept override {
    report_progress(target);
    service().report_step_time(work_);
    if (const auto report = links_.sample(group_->transport())) {
      const auto steps = static_cast<double>(context_.configuration().integer(setting::slow_steps));
      const auto to_link_seen = [&](const link_watch::measured_link& link) {
        return elastic::link_seen{
            .peer = link.peer < 0 ? 0 : record_.members[static_cast<std::size_t>(link.peer)].id,
            .rate = static_cast<std::uint64_t>(link.quality.bandwidth),
            .latency = static_cast<std::uint64_t>(1e6 * link.quality.latency),
            .step_microseconds = static_cast<std::uint64_t>(1e6 * static_cast<double>(link.quality.sent) /
                                                            std::max(1.0, link.quality.bandwidth) / steps),
        };
      };
      std::vector<elastic::link_seen> links;  // once in many steps
      std::ranges::transform(report->all, std::back_inserter(links), to_link_seen);
      service().report_slow_link(to_link_seen(report->slowest), static_cast<std::uint64_t>(report->best_rate),
                                 std::move(links));
    }
    if (first_step_) log_first_step();
  }

 private:
  // A group that is over. Over a network its end may take a while. Its shared memory on this host is released some
  // generations later, when no object made from it is left.
  struct former_group {
    std::shared_ptr<shm_host> host;
    std::jthread farewell;
  };

  // Makes the promise on which the protocol rests: this rank has no further part in this generation, whatever happens.
  void stop_present(const state& target) {
    if (is_between_generations_) return;
    is_between_generations_ = true;
    if (group_) {
      if (options_.before_rebuild) options_.before_rebuild();
      retire_group();
    }
    report_progress(target);
    stage_began_ = service().apply([&](auto& protocol, auto now) {
      // The connecting of this generation may have shown that MPI can no longer connect this process.
      protocol.set_endpoints(member_->endpoints());
      protocol.stopped(now);
      return protocol.change_began();
    });
    change_.detect = end_stage();
  }

  // Returns true if the group or a child group has failed, or if this rank must stop because the members change.
  [[nodiscard]] bool group_has_failed(const state& target) {
    return (revocation_ && revocation_->any_failed()) || service().must_stop(progress_of(target));
  }

  // Counts the failures of a step with the same members. Throws `failure` after more than 20 failures: such a step will
  // not succeed.
  void limit_repetitions(const state& target, const std::exception_ptr& failure) {
    constexpr int max_repetitions = 20;
    const auto progress = progress_of(target);
    const bool again =
        repeated_at_ == progress && repeated_among_ == record_.members.size() && change_.origin == unchanged_ranks();
    repeated_at_ = progress;
    repeated_among_ = record_.members.size();
    repetitions_ = again ? repetitions_ + 1 : 1;
    if (repetitions_ == 1) return;
    const std::string text = "step " + std::to_string(target.steps()) + " failed " + std::to_string(repetitions_) +
                             " times with the same ranks (" + describe(failure) + ")";
    if (repetitions_ > max_repetitions) {
      log(log_level::error, text + "; this rank abandons it");
      std::rethrow_exception(failure);
    }
    log(log_level::warning, text + "; it is run again");
  }
  [[nodiscard]] std::vector<int> unchanged_ranks() const {
    std::vector<int> ranks(record_.members.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  void retire_group() {
    group_->abort("generation " + std::to_string(record_.generation) + " is over");
    const bool waits = group_->abilities().name == "tcp" || group_->abilities().name == "hierarchical";
    former_groups_.push_back({std::move(host_), {}});
    if (waits) {
      former_groups_.back().farewell =
          std::jthread([ended = std::make_shared<group>(std::move(*group_))]() mutable { ended.reset(); });
    }
    group_.reset();
  }

  void release_oldest() {
    auto oldest = std::move(former_groups_.front());
    former_groups_.pop_front();
    if (oldest.farewell.joinable()) oldest.farewell.join();
    if (oldest.host) oldest.host->release_retired(true);
  }

  void build(state& target, const membership_service::next_generation& next) {
    change_.agree = end_stage();
    revocation_ = next.end_token;
    former_record_ = std::exchange(record_, next.record);
    describe_change();
    // In the first generation one member begins and the others copy its state. Later a process that was not a member
    // before has no state to send.
    const bool named = std::ranges::count(record_.state_sources, self().id) > 0;
    if (change_.rank_before < 0) has_state_ = named;
    if (record_.progress == self().progress && named && record_.state_sources.front() == self().id)
      has_state_ = true;  // the member that was to begin has gone
    is_between_generations_ = false;
    connect();
    change_.connect = end_stage();
    const bool is_blank = !has_state_ && record_.progress > self().progress;
    change_.copied = transfer_state(
        *group_, target, {.has_state = has_state_, .may_overwrite = is_blank, .is_start = record_.generation == 1});
    change_.step = target.steps();
    has_state_ = true;
    report_progress(target);
    change_.state = end_stage();
    first_step_ = true;
  }

  void connect() {
    const int rank = *record_.rank_of(self().id);
    set_log_rank(rank);
    // The memory of this host's former processes is used again: no former process may still write there.
    service().await_ends(former_record_, record_, deadline_after(elastic_timing::end_of_killed));
    if (context_.shared_memory()) context_.shared_memory()->attach_again();  // null for tcp alone
    auto built = member_->connect(record_, context_.shared_memory(), [by = revocation_] { return by->revoked(); });
    group_.emplace(std::make_shared<group_state>(std::move(built.transport), context_.world().settings(), nullptr, 0,
                                                 revocation_));
    host_ = built.host;
    links_.begin(group_->size(), static_cast<std::size_t>(context_.configuration().integer(setting::slow_steps)));
    constexpr std::size_t groups_kept = 4;
    while (former_groups_.size() > groups_kept) release_oldest();
  }

  void suspect_missing(const timeout_error& late, const std::string& reason) {
    if (!revocation_->revoked()) member_->suspect_missing(record_, late, reason);
  }

  void report_progress(const state& target) noexcept { service().committed(progress_of(target), target.steps()); }

  // Logs the change, at rank 0, when the new generation has done its first step.
  void log_first_step() {
    first_step_ = false;
    const auto again = std::exchange(change_.again, 0);
    if (change_.generation == 1 && change_.size < context_.launcher().size) log(log_level::warning, change_.reason);
    if (change_.rank != 0 || change_.generation == 1) return;
    log(log_level::warning, "generation " + std::to_string(change_.generation) + ": " + change_.reason + "; " +
                                std::to_string(change_.size) + " ranks (" + std::to_string(change_.size_before) +
                                " before), from step " + std::to_string(change_.step) + "; detect " +
                                milliseconds(change_.detect) + ", agree " + milliseconds(change_.agree) + ", connect " +
                                milliseconds(change_.connect) + ", state " + milliseconds(change_.state) +
                                ", first step " + milliseconds(end_stage()) + " ms; " + std::to_string(again) +
                                " steps run again");
  }

  // Ends a stage of a change, and returns its duration in seconds.
  [[nodiscard]] double end_stage() {
    const auto now = clock::now();
    const auto before = std::exchange(stage_began_, now);
    return before == clock::time_point{} ? 0 : std::max(0.0, seconds(now - before).count());
  }

  void describe_change() {
    const auto rank_before = [this](elastic::member_id id) { return former_record_.rank_of(id).value_or(-1); };
    change_.generation = record_.generation;
    change_.reason = record_.reason;
    change_.rank_before = rank_before(self().id);
    change_.size_before = static_cast<int>(former_record_.members.size());
    change_.rank = *record_.rank_of(self().id);
    change_.size = static_cast<int>(record_.members.size());
    change_.origin.clear();
    for (const auto& member : record_.members) change_.origin.push_back(rank_before(member.id));
  }

  // Joins the job at the first run. A process that still reads its data therefore delays no other rank.
  void join_job(std::uint64_t progress) {
    const auto& configuration = context_.configuration();
    const auto& launch = context_.launcher();
    const std::shared_ptr<any_store> store = open_store(configuration, launch);
    log(log_level::debug, "the members use the store " + store->where());
    member_.emplace(configuration, launch, store, static_cast<std::uint64_t>(launch.rank), progress);
  }

  [[nodiscard]] const elastic::member& self() const noexcept { return member_->self(); }
  [[nodiscard]] membership_service& service() noexcept { return member_->service(); }

  context& context_;
  elastic::session_options options_;
  std::optional<job_member> member_;  // set from the first run on

  elastic::generation_record former_record_;
  elastic::generation_record record_;
  std::shared_ptr<revocation> revocation_;
  std::optional<group> group_;
  std::shared_ptr<shm_host> host_;  // host memory of the present group
  std::deque<former_group> former_groups_;
  bool has_state_ = false;  // true if this rank's state counts
  bool is_between_generations_ =
      true;                  // true while this rank is in no generation and has reported its stop to the membership
  bool first_step_ = false;  // true until this generation's first step is done
  std::uint64_t repeated_at_ = ~std::uint64_t{0};  // the progress at the last failure of a step
  std::size_t repeated_among_ = 0;                 // number of members at that failure
  int repetitions_ = 0;                            // failures of that step
  link_watch links_;
  clock::duration work_{};  // own time of the last attempt
  clock::time_point attempt_began_{};
  std::optional<waiting_time> waited_;  // exists during an attempt
  elastic::change change_;              // the last change, or the change under way
  clock::time_point stage_began_{};     // end of its last stage; unset while this rank joins
  std::optional<signal_handlers> signals_;
};

}}}  // namespace muster::v0::detail

namespace muster { inline namespace v0 { namespace elastic {

MUSTER_INLINE muster::session session(context& parent, session_options options) {
  return muster::session(std::make_unique<muster::detail::elastic_backend>(parent, std::move(options)));
}

}}}  // namespace muster::v0::elastic
