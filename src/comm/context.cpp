#include <muster/comm/context.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <optional>
#include <thread>
#include <vector>

#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/local.hpp>
#include <muster/comm/profile.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "group_state.hpp"
#include "hierarchical/connect.hpp"
#include "rank_zero.hpp"
#include "rendezvous/assembly.hpp"
#include "shm/connect.hpp"
#include "transport_choice.hpp"

namespace muster::inline v0 {
namespace {

// How long a rank that failed listens for the reasons of the others before it ends, and one that did not fail waits for
// the others to end too. Past these it goes without them: they cannot be helped any more.
constexpr seconds failure_agreement{1.0};
constexpr seconds success_agreement{600.0};

// The world of the rank that the calling thread is, while it runs a body.
thread_local group* world_of_thread = nullptr;

[[noreturn]] void refuse(const std::string& text) { throw configuration_error(text); }

// The one context of this process, while it lives.
class sole_context {
 public:
  sole_context() {
    if (lives.exchange(true))
      refuse("a second context beside one that lives (a process is one place); pass on the first");
  }
  sole_context(const sole_context&) = delete;
  sole_context& operator=(const sole_context&) = delete;
  ~sole_context() { lives = false; }

 private:
  static inline std::atomic<bool> lives = false;
};

// The profile is read where rank 0 is: its word is everyone's, and its file need not be on every host.
group_settings settings_for_groups(const settings& configuration, int rank) {
  group_settings made{
      .timeout = seconds(configuration.positive(setting::timeout)),
      .how = algorithm_rules::parse(configuration.value(setting::algorithm), configuration.origin(setting::algorithm)),
      .check_full = configuration.choice(setting::check, {"auto", "full"}) == 1};
  if (rank == 0 && configuration.value(setting::profile) != "none") {
    made.profile = std::make_shared<algorithm_profile>(
        algorithm_profile::load(configuration.value(setting::profile), configuration.origin(setting::profile)));
  }
  return made;
}

// A thread beside the caller's pays where there is a core for it: not where the ranks of the host need all of them.
bool wants_progress_thread(const settings& configuration, int ranks_here) {
  const auto asked = configuration.choice(setting::progress, {"auto", "on", "off"});
  return asked == 1 || (asked == 0 && 2 * static_cast<unsigned>(ranks_here) <= std::thread::hardware_concurrency());
}

// Whether the groups of this world can be as the settings ask; a profile that says nothing about it is a warning.
void check_for_groups(const group_settings& wanted, const transport_abilities& transport, int ranks) {
  (void)choices(transport, ranks, wanted.how, wanted.profile.get());
  const auto* const measured = wanted.profile.get();
  if (measured == nullptr || ranks == 1 || measured->fits(transport, ranks) || log_rank() > 0) return;
  log(log_level::warning, "the profile is not used (it is of " + std::to_string(measured->ranks) + " ranks over " +
                              measured->transport + ", and these are " + std::to_string(ranks) + " over " +
                              std::string(transport.name) + "); measure them with muster-info --calibrate --save FILE");
}

transport_abilities local_abilities() { return local_transport(std::make_shared<local_hub>(1), 0).abilities(); }

void apply_log_settings(const settings& configuration) {
  const auto level = configuration.choice(setting::log_level, {"debug", "info", "warning", "error", "off"});
  set_log_level(static_cast<log_level>(level), configuration.choice(setting::log_ranks, {"0", "all"}) == 1);
}

// Of several ranks that failed, the one whose word counts: the lowest that had a reason of its own, not another's.
struct outcome {
  std::exception_ptr thrown;
  bool first_hand = false;
};

// Collective, when this rank has done all: waits for the others, and finds those in a collective that never will be.
void finish(group& world) {
  try {
    detail::call last;
    last.kind = collective::finish;
    last.how.timeout = success_agreement;
    detail::run(world, std::move(last));
  } catch (const timeout_error&) {
    log(log_level::warning, "other ranks have not ended their run in 600 s; this one ends without them");
  }
}

// Collective: the ranks tell each other how they ended and agree on who speaks and on the status.
context::verdict settle_world(group& world, std::exception_ptr failure) {
  context::verdict mine{failure ? exit_status_of(failure) : 0, true, failure ? describe(failure) : ""};
  if (world.size() == 1) return mine;
  auto& state = *world.state();
  if (!failure && !state.failed()) {
    try {
      finish(world);
      mine.speaker = world.rank() == 0;
      return mine;
    } catch (...) {
      failure = std::current_exception();
    }
  }
  const auto held = state.guard();
  if (!failure) failure = state.failure();
  const bool first_hand = !state.follows();
  if (!state.failed()) state.fail(failure);
  mine = {exit_status_of(failure), first_hand, describe(failure)};
  const auto& left = state.await_departures(deadline_after(failure_agreement));
  for (int rank = world.size() - 1; rank >= 0; --rank) {
    const auto& other = left[static_cast<std::size_t>(rank)];
    if (!other || !other->first_hand) continue;
    if (first_hand && rank > world.rank()) continue;
    mine = {other->status, false, other->text};
  }
  return mine;
}

}  // namespace

struct context::implementation {
  explicit implementation(settings from) : configuration(std::move(from)) { configuration.check_numbers(); }

  void connect() {
    apply_log_settings(configuration);
    auto assembled = detail::assemble_launch(configuration, detect_launch());
    launch = std::move(assembled.launch);
    if (launch.rank == 0) store = std::move(assembled.store);
    begun = std::move(assembled.lease);
    elastic = configuration.choice(setting::elastic, {"off", "on"}) == 1;
    for_groups = settings_for_groups(configuration, launch.rank);
    if (!elastic) chosen = detail::choose_transport(configuration, launch);
    for_groups.progress_thread = wants_progress_thread(configuration, std::max({launch.local_size, chosen.threads, 1}));
    if (elastic) {
      chosen = {detail::transport_kind::self, "self", {}, 1, configuration.origin(setting::elastic) + " asks for it"};
      shared = std::make_shared<detail::segment>(detail::reserve_for(64));
      process_world.emplace(std::make_unique<any_transport>(make_self_transport()), for_groups);
      set_log_rank(launch.rank);
      return;
    }
    if (chosen.what == detail::transport_kind::local) check_for_groups(for_groups, local_abilities(), chosen.threads);
    if (chosen.what == detail::transport_kind::process) {
      adopt(detail::connect_processes(chosen, configuration, launch));
      const int size = process_world->size();
      if (launch.kind != launch_env::launcher::none && size != launch.size) {
        refuse("the launcher says " + launch.why + " and " + chosen.name + " connects " + std::to_string(size) +
               " ranks (the program and mpirun are of different MPIs, or the variables are left over); use one MPI");
      }
    } else if (chosen.what == detail::transport_kind::self) {
      adopt(std::make_unique<any_transport>(make_self_transport()));
    }
    log(log_level::info, "transport " + chosen.name + " (" + chosen.why + ")");
  }

  void adopt(std::unique_ptr<any_transport> transport) {
    auto& world = process_world.emplace(std::move(transport), group_settings{.timeout = for_groups.timeout});
    set_log_rank(world.rank());
    for_groups = detail::settings_of_rank_zero(world, for_groups, configuration);
    check_for_groups(for_groups, world.abilities(), world.size());
    world.set_settings(for_groups);
  }

  void run_as_process(const std::function<void(group&)>& body) {
    group* const before = std::exchange(world_of_thread, &*process_world);
    try {
      body(*process_world);
    } catch (...) {
      world_of_thread = before;
      const auto failure = std::current_exception();
      const auto held = process_world->state()->guard();
      process_world->state()->fail(failure);
      std::rethrow_exception(failure);
    }
    world_of_thread = before;
  }

  void run_as_threads(const std::function<void(group&)>& body) {
    const auto hub = std::make_shared<local_hub>(chosen.threads);
    std::vector<outcome> outcomes(static_cast<std::size_t>(chosen.threads));
    std::vector<std::jthread> threads;  // join even when not all can be started
    for (int rank = 0; rank < chosen.threads; ++rank) {
      threads.emplace_back([&, rank] {
        set_log_rank(rank);
        group world(std::make_unique<any_transport>(std::make_unique<local_transport>(hub, rank)), for_groups);
        world_of_thread = &world;
        try {
          body(world);
          if (!world.failed()) finish(world);
        } catch (...) {
          const bool first_hand = !world.failed() || !world.state()->follows();
          outcomes[static_cast<std::size_t>(rank)] = {std::current_exception(), first_hand};
          const auto held = world.state()->guard();
          world.state()->fail(std::current_exception());
        }
        world_of_thread = nullptr;
      });
    }
    threads.clear();
    std::exception_ptr thrown;
    for (auto it = outcomes.rbegin(); it != outcomes.rend(); ++it) {
      if (it->thrown && !thrown) thrown = it->thrown;
    }
    for (auto it = outcomes.rbegin(); it != outcomes.rend(); ++it) {
      if (it->thrown && it->first_hand) thrown = it->thrown;
    }
    if (thrown) std::rethrow_exception(thrown);
  }

  sole_context sole;
  settings configuration;
  launch_env launch;
  bool elastic = false;
  std::shared_ptr<detail::segment> shared;  // before the world: it outlives all groups
  group_settings for_groups;
  detail::transport_choice chosen;
  // Where ranks of several starts met, at rank 0: it outlives the world.
  std::optional<any_store> store;
  store_lease begun;
  std::optional<group> process_world;  // none when ranks are threads
  int exceptions_at_start = std::uncaught_exceptions();
};

context::context() : self_(std::make_unique<implementation>(settings())) { self_->connect(); }

context::context(int& argc, char** argv) : self_(std::make_unique<implementation>(settings(argc, argv))) {
  self_->connect();
}

context::context(std::unique_ptr<any_transport> transport) : self_(std::make_unique<implementation>(settings())) {
  apply_log_settings(self_->configuration);
  self_->for_groups = settings_for_groups(self_->configuration, transport->rank());
  self_->launch = detect_launch();
  self_->for_groups.progress_thread =
      wants_progress_thread(self_->configuration, std::max(self_->launch.local_size, 1));
  self_->chosen = {
      detail::transport_kind::process, std::string(transport->abilities().name), {}, 1, "the program brought it"};
  self_->adopt(std::move(transport));
}

context::~context() {
  auto& world = self_->process_world;
  if (world && std::uncaught_exceptions() > self_->exceptions_at_start) world->abort("an exception ends its program");
}

group& context::world() {
  if (world_of_thread != nullptr) return *world_of_thread;
  if (self_->process_world) return *self_->process_world;
  throw configuration_error("context.world() outside of context.run (" + std::to_string(self_->chosen.threads) +
                            " ranks are threads: here there is no rank to speak for); move the work into context.run");
}

int context::ranks() const noexcept {
  return self_->process_world ? self_->process_world->size() : self_->chosen.threads;
}

std::string context::transport_name() const { return self_->chosen.name; }
std::pmr::memory_resource* context::memory() const noexcept {
  if (self_->shared) return self_->shared.get();
  return self_->process_world ? self_->process_world->transport().memory() : nullptr;
}
bool context::elastic() const noexcept { return self_->elastic; }
const std::shared_ptr<detail::segment>& context::shared_memory() const noexcept { return self_->shared; }
const std::string& context::why() const noexcept { return self_->chosen.why; }
const launch_env& context::launcher() const noexcept { return self_->launch; }
const settings& context::configuration() const noexcept { return self_->configuration; }

void context::run(const std::function<void(group&)>& body) {
  if (self_->process_world) {
    self_->run_as_process(body);
  } else {
    self_->run_as_threads(body);
  }
}

context::verdict context::settle(std::exception_ptr failure) noexcept {
  try {
    if (self_->process_world) return settle_world(*self_->process_world, failure);
    return {failure ? exit_status_of(failure) : 0, true, failure ? describe(failure) : ""};
  } catch (...) {
    return {exit_status_of(std::current_exception()), true, describe(std::current_exception())};
  }
}

namespace detail {

std::vector<transport_abilities> all_transports(double ranks_a_core) {
  std::vector<transport_abilities> all{make_self_transport()->abilities(), local_abilities(), shm_abilities};
  for (const auto& made : registered_transports()) all.push_back(made.abilities(ranks_a_core));
  return all;
}

planned_world plan_world(const settings& configuration, const launch_env& launch) {
  const transport_choice chosen = choose_transport(configuration, launch);
  planned_world planned;
  planned.ranks = chosen.what == detail::transport_kind::process ? launch.size : chosen.threads;
  planned.why = chosen.why;
  // Of this host alone: what others have is known when they are connected.
  const double ranks_a_core =
      static_cast<double>(launch.local_size) / std::max(1u, std::thread::hardware_concurrency());
  for (const auto& transport : all_transports(ranks_a_core)) {
    if (transport.name == chosen.name) planned.transport = transport;
    if (transport.name == chosen.between) planned.transport = hierarchical_abilities(transport);
  }
  planned.for_groups = settings_for_groups(configuration, 0);
  check_for_groups(planned.for_groups, planned.transport, planned.ranks);
  return planned;
}

namespace {

void say(const char* program, const std::string& text) {
  std::string_view name(program == nullptr ? "muster" : program);
  name.remove_prefix(name.find_last_of('/') + 1);  // npos + 1 is 0
  const std::string line = std::string(name) + ": error: " + text + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// As far as it can be told when something else on the command line is wrong: ranks that are in order meet over it.
std::string transport_asked_for(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i]);
    if (word.starts_with("--transport=")) return std::string(word.substr(word.find('=') + 1));
    if (word == "--transport" && i + 1 < argc) return argv[i + 1];
  }
  return environment("MUSTER_TRANSPORT").value_or("auto");
}

// A bad flag or variable is found by all ranks before they are connected. They connect for this alone, so that one line
// says it and not one a rank.
context::verdict settle_without_context(std::exception_ptr failure, const std::string& transport) noexcept {
  // Who could not connect would only wait for the same ranks again.
  const bool is_early = exit_status_of(failure) == static_cast<int>(error_kind::configuration);
  if (!is_early) return {exit_status_of(failure), true, describe(failure)};
  try {
    const launch_env launch = detect_launch();
    const settings from_environment;
    transport_choice chosen;
    try {
      chosen = choose_transport(from_environment, launch, transport);
    } catch (const configuration_error&) {  // perhaps what is wrong is just that
      chosen = choose_transport(from_environment, launch, "auto");
    }
    const bool elastic = from_environment.value(setting::elastic) == "on";  // these do without the others
    if (launch.size > 1 && !elastic) {
      group world(connect_processes(chosen, from_environment, launch), {});
      return settle_world(world, failure);
    }
  } catch (...) {  // then each speaks for itself
  }
  return {exit_status_of(failure), true, describe(failure)};
}

}  // namespace

int run_main(int& argc, char** argv, const std::function<int(context&)>& body) noexcept {
  const char* const program = argc > 0 ? argv[0] : nullptr;
  const std::string transport = transport_asked_for(argc, argv);
  try {
    context made(argc, argv);
    std::exception_ptr failure;
    int status = 0;
    try {
      status = body(made);
    } catch (...) {
      failure = std::current_exception();
    }
    const auto agreed = made.settle(failure);
    if (!agreed.text.empty() && agreed.speaker) say(program, agreed.text);
    return agreed.status != 0 ? agreed.status : status;
  } catch (...) {
    const auto agreed = settle_without_context(std::current_exception(), transport);
    if (agreed.speaker) say(program, agreed.text);
    return agreed.status;
  }
}

}  // namespace detail
}  // namespace muster::inline v0
