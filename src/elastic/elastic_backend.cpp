#include "elastic_backend.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>

#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>
#include <muster/elastic/settings.hpp>

#include "../core/random_bytes.hpp"
#include "state_transfer.hpp"

namespace muster::inline v0::detail {
namespace {

// A member that is done waits so long for the others to be done too.
constexpr seconds for_the_others{2.0};
constexpr seconds for_ends{2.0};  // of killed processes of this host

elastic::member_id draw_identity() {
  elastic::member_id id = 0;
  while (id == 0) fill_random(std::as_writable_bytes(std::span(&id, 1)));
  return id;
}

elastic::membership_policy policy_of(const settings& configuration, const launch_env& launch) {
  const auto span_of = [](double value) { return std::chrono::duration_cast<clock::duration>(seconds(value)); };
  elastic::membership_policy made;
  made.initial = launch.size;
  made.min = static_cast<int>(configuration.integer(setting::min_ranks));
  made.max = static_cast<int>(configuration.integer(setting::max_ranks));
  if (made.max < made.min) {
    throw configuration_error(configuration.origin(setting::max_ranks) + " is " + std::to_string(made.max) +
                              " (the job needs at least " + std::to_string(made.min) + " by " +
                              configuration.origin(setting::min_ranks) + "); raise the one or lower the other");
  }
  const double beat = configuration.positive(setting::heartbeat);
  made.beat = span_of(beat);
  made.suspicion_timeout = span_of(beat * static_cast<double>(configuration.integer(setting::missed_heartbeats)));
  if (configuration.choice(setting::slow_ranks, {"ignore", "report", "remove"}) > 0)
    made.slow_factor = configuration.positive(setting::slow_factor);
  made.slow_ones_leave = configuration.value(setting::slow_ranks) == "remove";
  made.quorum_timeout = span_of(configuration.positive(setting::quorum_timeout));
  return made;
}

double between(clock::time_point from, clock::time_point to) {
  return from == clock::time_point{} || to < from ? 0 : seconds(to - from).count();
}

std::string milliseconds(double span) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", span * 1e3);
  return text;
}

// How long a rank waits for others; the sink that was installed before gets every event as well.
class waiting_time final : public event_sink {
 public:
  void record(const event& seen) noexcept override {
    if (seen.what == activity::communication && seen.begin >= counted_until_) {
      sum_ += seen.end - seen.begin;
      counted_until_ = seen.end;
    }
    if (installed_.former() != nullptr) installed_.former()->record(seen);
  }
  [[nodiscard]] clock::duration sum() const noexcept { return sum_; }

 private:
  clock::duration sum_{};
  clock::time_point counted_until_{};
  scoped_event_sink installed_{*this};
};

struct sigaction former_term;
struct sigaction former_usr1;

void on_signal(int which) {
  if (which == SIGTERM) signals().leave.store(true);
  if (which == SIGUSR1) signals().describe.store(true);
}

}  // namespace

elastic_backend::elastic_backend(context& of, elastic::session_options options)
    : context_(of), options_(std::move(options)), for_groups_(of.world().settings()) {
  if (!of.elastic()) {
    throw configuration_error(
        "an elastic session needs an elastic job (--elastic is off); set --elastic on, start the job by muster-launch, "
        "or use muster::fixed_session");
  }
  const auto& mode = of.configuration().value(setting::mode);
  if (mode.starts_with("local-sgd") || mode.starts_with("gossip")) {
    throw configuration_error(of.configuration().origin(setting::mode) + " asks for " + mode +
                              " (the parameters of ranks differ between exchanges, so the death of a rank loses "
                              "updates); use allreduce, or --elastic off");
  }
  site_.configuration = &of.configuration();
  site_.memory = of.shared_memory();
  (void)policy_of(of.configuration(), of.launcher());  // what is wrong with it is said before any training
  if (of.configuration().value(setting::transport) == "mpi" && of.launcher().kind != launch_env::launcher::open_mpi) {
    throw configuration_error(of.configuration().origin(setting::transport) +
                              " asks for transport mpi (mpirun did not start this process, and over MPI a job only "
                              "shrinks); use --transport shm or tcp, over which a job also grows");
  }
  if (options_.handle_signals) catch_signals();
}

// At the first run: a process that still reads its data keeps no other rank waiting.
void elastic_backend::join_job() {
  const auto& configuration = context_.configuration();
  const auto& launch = context_.launcher();
  const auto until = deadline_after(seconds(configuration.positive(setting::timeout)));
  const auto policy = policy_of(configuration, launch);
  const std::shared_ptr<any_store> store = open_store(configuration, launch);
  log(log_level::debug, "the members use the store " + store->where());
  site_.token = common_token(*store, configuration, until);
  auto words = std::make_unique<datagram_socket>(interface_of(configuration, launch),
                                                 configuration.origin(setting::interface), site_.token);
  self_.id = draw_identity();
  self_.host = digest().add(host_identity(configuration)).add(process_numbers()).value();
  self_.order = static_cast<std::uint64_t>(launch.rank);
  self_.process = process_identity::own();
  self_.words = words->place();
  self_.endpoints = open_doors();
  service_ = std::make_unique<membership_service>(store, std::move(words), self_, policy,
                                                  static_cast<std::size_t>(configuration.integer(setting::slow_steps)));
}

elastic_backend::~elastic_backend() {
  try {
    if (group_) {
      service_->leave();
      // A process that ends because of an error does not wait for the others.
      if (std::uncaught_exceptions() == 0) service_->await_others_leaving(deadline_after(for_the_others));
      service_->stopped();
    }
  } catch (...) {  // it leaves without announcing it: the others see that soon
  }
  if (group_) retire_group();
  former_.clear();
  service_.reset();
  if (signals_caught_) restore_signals();
}

group& elastic_backend::ranks() {
  if (group_) return *group_;
  throw configuration_error(
      "an elastic session has no group yet (its ranks are known when it runs); use step.group(), or on_rebuild of its "
      "options");
}

// What the protocol counts: one for each step, each evaluation that was finished and each run that came to its end.
std::uint64_t elastic_backend::progress_of(const state& of) noexcept {
  const auto at = of.position();
  return at.steps + at.evaluations + at.runs;
}

void elastic_backend::committed(const state& of) noexcept {
  service_->committed(progress_of(of), of.position().at.position);
  service_->worked(work_);
  if (first_step_) tell_first_step();
}

void elastic_backend::prepare(state& of) {
  if (group_ && !service_->must_stop(progress_of(of))) return;
  if (!service_) join_job();
  const auto began = clock::now();
  for (;;) {
    stop_present(of);
    const auto next = service_->next(clock::now() + std::chrono::seconds(1));
    if (!next) continue;
    try {
      build(of, *next);
      if (event_sink* const sink = current_event_sink())
        sink->record({activity::rebuild, "generation", began, clock::now(), record_.generation});
      return;
    } catch (const peer_failure&) {  // and once more, with those that are left
    } catch (const timeout_error& late) {
      suspect_missing(late, "it did not connect: ");
    }
    if (!revocation_->revoked()) log(log_level::warning, "a generation could not be formed; its members try again");
  }
}

// The promise that the protocol rests on: whatever of this generation still comes, this rank is not in it any more.
void elastic_backend::stop_present(const state& of) {
  if (stopped_) return;
  stopped_ = true;
  watch_ = {};
  if (group_) {
    if (options_.before_rebuild) options_.before_rebuild();
    retire_group();
  }
  service_->committed(progress_of(of), of.position().at.position);
  service_->wait_at(listener_endpoints(*doors_, context_.configuration()));  // what connecting it has shown of MPI
  service_->stopped();
  watch_.stopped = clock::now();
}

void elastic_backend::retire_group() {
  group_->abort("generation " + std::to_string(record_.generation) + " is over");
  const bool waits = group_->abilities().name == "tcp" || group_->abilities().name == "hierarchical";
  former_.push_back({std::move(host_), {}});
  if (waits) {
    former_.back().farewell =
        std::jthread([ended = std::make_shared<group>(std::move(*group_))]() mutable { ended.reset(); });
  }
  group_.reset();
}

void elastic_backend::forget_oldest() {
  auto oldest = std::move(former_.front());
  former_.pop_front();
  if (oldest.farewell.joinable()) oldest.farewell.join();
  if (oldest.host) oldest.host->give_back(true);
}

// What is left of its time is its own: a rank is slow when the others wait for it.
void elastic_backend::attempt(const std::function<void()>& f) {
  const waiting_time waited;
  const auto began = clock::now();
  f();
  work_ = clock::now() - began - waited.sum();
}

void elastic_backend::recover(state& of, std::exception_ptr why) {
  bool about_ranks = service_->must_stop(progress_of(of));
  try {
    std::rethrow_exception(why);
  } catch (const elastic::departure&) {
    about_ranks = false;
  } catch (const peer_failure&) {
    about_ranks = true;
  } catch (const timeout_error& late) {
    about_ranks = true;
    if (group_ && group_->failed()) suspect_missing(late, "no progress: ");
  } catch (...) {
  }
  if (!about_ranks) std::rethrow_exception(why);
  ++again_;
  stop_present(of);
}

// The members that a timeout names; those of a generation that is over anyway are late for that reason.
void elastic_backend::suspect_missing(const timeout_error& late, const std::string& why) {
  if (revocation_->revoked()) return;
  for (const int rank : late.missing())
    service_->suspect(record_.members[static_cast<std::size_t>(rank)].id, why + late.what());
}

void elastic_backend::build(state& of, const membership_service::next_generation& next) {
  watch_.began = service_->change_began();
  watch_.agreed = clock::now();
  revocation_ = next.end;
  before_ = std::exchange(record_, next.record);
  const bool was_in = before_.rank_of(self_.id).has_value();
  // In the first generation one begins and the others copy; later a process that was not a member has no state to give.
  const bool named = std::count(record_.state_sources.begin(), record_.state_sources.end(), self_.id) > 0;
  if (!was_in) holds_ = named;
  if (record_.step == self_.step && named && record_.state_sources.front() == self_.id)
    holds_ = true;  // the member that was to begin is gone
  stopped_ = false;
  connect();
  const bool is_blank = !holds_ && record_.step > self_.step;
  const bool copied = transfer_state(*group_, of, {.may_hold = holds_, .in_place = is_blank});
  holds_ = true;
  service_->committed(progress_of(of), of.position().at.position);
  watch_.same_state = clock::now();
  first_step_ = true;
  if (options_.on_rebuild) options_.on_rebuild(*group_, describe(copied));
}

void elastic_backend::connect() {
  const int rank = *record_.rank_of(self_.id);
  set_log_rank(rank);
  // Their memory and ours are used again: no process of the generation before may still write.
  service_->await_ends(before_, record_, deadline_after(for_ends));
  site_.memory->attach_again();
  tcp_listeners known = std::move(*doors_);
  service_->wait_at(open_doors());
  auto made = connect_members(site_, record_, rank, std::move(known), [by = revocation_] { return by->revoked(); });
  std::vector<int> names;
  for (std::size_t r = 0; r < record_.members.size(); ++r) names.push_back(static_cast<int>(r));
  group_.emplace(std::make_unique<revocable_transport>(std::move(made.transport), revocation_, std::move(names)),
                 for_groups_);
  host_ = made.host;
  constexpr std::size_t former_ones_kept = 4;
  while (former_.size() > former_ones_kept) forget_oldest();
  watch_.connected = clock::now();
}

std::string elastic_backend::open_doors() {
  const auto& configuration = context_.configuration();
  doors_.emplace(interface_of(configuration, context_.launcher()), configuration.origin(setting::interface));
  return listener_endpoints(*doors_, configuration);
}

elastic::change elastic_backend::describe(bool copied) const {
  elastic::change what;
  what.generation = record_.generation;
  what.why = record_.why;
  what.rank_before = before_.rank_of(self_.id).value_or(-1);
  what.size_before = static_cast<int>(before_.members.size());
  what.rank = *record_.rank_of(self_.id);
  what.size = static_cast<int>(record_.members.size());
  for (const auto& one : record_.members) what.origin.push_back(before_.rank_of(one.id).value_or(-1));
  what.step = record_.step;
  what.copied = copied;
  what.again = again_;
  what.detect = between(watch_.began, watch_.stopped);
  what.agree = between(watch_.stopped, watch_.agreed);
  what.connect = between(watch_.agreed, watch_.connected);
  what.state = between(watch_.connected, watch_.same_state);
  return what;
}

// Written when the first step is done, which is what the change was for.
void elastic_backend::tell_first_step() {
  first_step_ = false;
  const auto what = describe(false);
  again_ = 0;
  if (what.rank != 0 || what.generation == 1) return;
  log(log_level::warning, "generation " + std::to_string(what.generation) + ": " + what.why + "; " +
                              std::to_string(what.size) + " ranks (" + std::to_string(what.size_before) +
                              " before), from step " + std::to_string(what.step) + "; detect " +
                              milliseconds(what.detect) + ", agree " + milliseconds(what.agree) + ", connect " +
                              milliseconds(what.connect) + ", state " + milliseconds(what.state) + ", first step " +
                              milliseconds(between(watch_.same_state, clock::now())) + " ms; " +
                              std::to_string(what.again) + " steps run again");
}

void elastic_backend::catch_signals() {
  signals().leave = signals().describe = false;
  struct sigaction ours {};
  ours.sa_handler = &on_signal;
  ours.sa_flags = SA_RESTART;
  signals_caught_ = ::sigaction(SIGTERM, &ours, &former_term) == 0 && ::sigaction(SIGUSR1, &ours, &former_usr1) == 0;
}

void elastic_backend::restore_signals() noexcept {
  (void)::sigaction(SIGTERM, &former_term, nullptr);
  (void)::sigaction(SIGUSR1, &former_usr1, nullptr);
}

}  // namespace muster::inline v0::detail

namespace muster::inline v0::elastic {

muster::session session(context& of, session_options options) {
  return muster::session(std::make_unique<detail::elastic_backend>(of, std::move(options)));
}

}  // namespace muster::inline v0::elastic
