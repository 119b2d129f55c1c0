#pragma once

#include <muster/comm/context.hpp>

#include <algorithm>
#include <atomic>
#include <optional>

#include <muster/comm/algorithms/chooser.hpp>
#include <muster/comm/bootstrap/assembly.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/bootstrap/rank_threads.hpp>
#include <muster/comm/bootstrap/transport_choice.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/comm/group/group_state.hpp>
#include <muster/comm/transports/shm/connect_shm.hpp>
#include <muster/comm/transports/threads.hpp>
#include <muster/core/descriptor.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/plugin.hpp>
#include <muster/core/source_patience.hpp>

namespace muster { inline namespace v0 {
namespace detail {

[[noreturn]] inline void refuse(const std::string& text) { throw configuration_error(text); }

// Ensures that a process has at most one context at a time.
class sole_context {
 public:
  sole_context() {
    if (lives.exchange(true))
      refuse(
          "cannot make a second context (a process has one at a time, and the first one still exists); pass the first "
          "one on");
  }
  sole_context(const sole_context&) = delete;
  sole_context& operator=(const sole_context&) = delete;
  ~sole_context() { lives = false; }

 private:
  static inline std::atomic<bool> lives = false;
};

inline void apply_diagnostics(const settings& configuration) {
  const auto level = configuration.choice(setting::log_level, {"debug", "info", "warning", "error", "off"});
  set_log_level(static_cast<log_level>(level), configuration.choice(setting::log_ranks, {"0", "all"}) == 1);
  const auto& records = configuration.value(setting::flight_recorder);
  detail::set_flight_record_folder(records == "off" ? "" : records);
}

}  // namespace detail

struct context::implementation {
  explicit implementation(settings chosen_settings) : configuration(std::move(chosen_settings)) {
    detail::prepare_process();
    configuration.check_numbers();
  }

  void connect() {
    detail::apply_diagnostics(configuration);
    auto assembled = detail::assemble_launch(configuration, detect_launch());
    launch = std::move(assembled.launch);
    if (launch.rank == 0) store = std::move(assembled.store);
    elastic = configuration.choice(setting::elastic, {"off", "on"}) == 1;
    if (elastic) require_elastic_job();
    if (!elastic) chosen = detail::choose_transport(configuration, launch);
    for_groups = detail::settings_for_groups(configuration, std::max(launch.local_size, chosen.threads));
    if (elastic || chosen.threads > 1) bound_source_patience();
    if (elastic) {
      chosen = {"self", {}, 1, configuration.origin(setting::elastic) + " asks for it"};
      if (configuration.value(setting::transport) != "tcp")
        shared = std::make_shared<detail::segment>(detail::reserve_for(64));
      process_world.emplace(make_self_transport(), for_groups);
      set_log_rank(launch.rank);
      return;
    }
    if (chosen.name == "threads")
      (void)algorithm_selector(detail::thread_abilities(), chosen.threads, for_groups.algorithm);
    if (chosen.is_of_processes()) {
      adopt(detail::connect_processes(chosen, configuration, launch));
      const int process_count = process_world->size();
      if (launch.kind != launch_env::launcher::none && process_count != launch.size) {
        detail::refuse(
            "the launcher set " + launch.reason + " and " + chosen.name + " connects " + std::to_string(process_count) +
            " ranks (the program and mpirun belong to different MPI libraries, or the variables are from an earlier "
            "launch); use one MPI library");
      }
    } else if (chosen.name == "self") {
      adopt(make_self_transport());
    }
    log(log_level::info, "transport " + chosen.name + " (" + chosen.reason + ")");
  }

  // Refuses settings that connect ranks, because the program has already connected them.
  void refuse_connecting_settings(std::string_view name) const {
    const auto& requested = configuration.value(setting::transport);
    const bool is_other = requested != "auto" && requested != name;
    for (const auto* const setting : {&setting::transport, &setting::ranks, &setting::elastic, &setting::rendezvous}) {
      if (setting == &setting::transport ? !is_other : configuration.value(*setting) == setting->fallback) continue;
      detail::refuse(configuration.origin(*setting) + " is " + configuration.value(*setting) +
                     " (the program has connected its ranks, over " + std::string(name) + "); leave it out");
    }
  }

  // Refuses an elastic job that would not form a group: each process would train alone, on all of the data.
  void require_elastic_job() const {
    const std::string origin = configuration.origin(setting::elastic);
    if (configuration.integer(setting::ranks) > 1) {
      detail::refuse(origin + " is on and " + configuration.origin(setting::ranks) + " asks for " +
                     std::to_string(configuration.integer(setting::ranks)) +
                     " ranks as threads (threads neither leave nor die alone); drop one setting");
    }
    if (detail::find_registered("tcp") == nullptr) {
      detail::refuse(origin + " is on (" + detail::linked_without("tcp") +
                     ", over which the members find each other); link "
                     "muster::tcp from a build with OpenSSL, or set --elastic off");
    }
  }

  void adopt(std::unique_ptr<transport> transport) {
    auto& world = process_world.emplace(std::move(transport), group_settings{.timeout = for_groups.timeout});
    set_log_rank(world.rank());
    for_groups = detail::settings_of_rank_zero(world, for_groups, configuration);
    world.set_settings(for_groups);
    if (world.size() > 1) bound_source_patience();
  }

  // The other ranks wait in a collective while this rank waits for a server of data. They must hear of the server
  // before their deadline.
  void bound_source_patience() const { detail::limit_source_patience(0.8 * for_groups.timeout); }

  void run_as_process(const detail::function<void(group&)>& body) {
    const detail::rank_of_thread current_rank(*process_world);
    try {
      body(*process_world);
    } catch (...) {
      const auto failure = std::current_exception();
      const auto held = process_world->state()->guard();
      process_world->state()->fail(failure);
      std::rethrow_exception(failure);
    }
  }

  detail::sole_context sole;
  settings configuration;
  launch_env launch;
  bool elastic = false;
  std::shared_ptr<detail::segment> shared;  // declared before the world, because it must outlive all groups
  group_settings for_groups;
  detail::transport_choice chosen;
  // The store through which a launcher's ranks and separately started servers met (`assembled_launch::store`), at rank
  // 0; otherwise null. It outlives the world.
  std::unique_ptr<any_store> store;
  std::optional<group> process_world;  // empty when ranks are threads
  int exceptions_at_start = std::uncaught_exceptions();
  bool has_failed = false;  // true if this rank passed a failure to `agree_on_exit_status`
};

MUSTER_INLINE context::context() : self_(std::make_unique<implementation>(settings())) { self_->connect(); }

MUSTER_INLINE context::context(int& argc, char** argv) : context(settings(argc, argv)) {}

MUSTER_INLINE context::context(settings chosen) : self_(std::make_unique<implementation>(std::move(chosen))) {
  self_->connect();
}

MUSTER_INLINE context::context(std::unique_ptr<transport> transport, settings chosen)
    : self_(std::make_unique<implementation>(std::move(chosen))) {
  detail::apply_diagnostics(self_->configuration);
  self_->launch = detect_launch();
  self_->for_groups = detail::settings_for_groups(self_->configuration, self_->launch.local_size);
  // The program may wait in calls of its own to MPI, such as MPI_Recv, while a work is outstanding.
  const auto abilities = transport->abilities();
  if (self_->configuration.value(setting::progress) == "auto" && abilities.concurrent_groups && abilities.name == "mpi")
    self_->for_groups.progress_thread = true;
  self_->chosen = {std::string(transport->abilities().name), {}, 1, "given by the program"};
  const std::string name = self_->chosen.name;
  self_->adopt(std::move(transport));
  try {
    self_->refuse_connecting_settings(name);
  } catch (...) {
    const auto held = self_->process_world->state()->guard();
    self_->process_world->state()->fail(std::current_exception());
    throw;
  }
}

MUSTER_INLINE context::~context() {
  auto& world = self_->process_world;
  const bool is_thrown = std::uncaught_exceptions() > self_->exceptions_at_start;
  if (world && is_thrown) world->abort("an exception ends its program");
  if (!self_->elastic || self_->launch.size == 1 || is_thrown || self_->has_failed || detail::store_was_opened())
    return;
  log(log_level::warning, "the " + std::to_string(self_->launch.size) + " ranks of the job never met (" +
                              self_->configuration.origin(setting::elastic) +
                              " is on, and the program began no elastic session: each rank ran alone); set --elastic "
                              "off, or use a muster::training or muster::elastic::session");
}

MUSTER_INLINE group& context::world() {
  if (group* const world = detail::rank_of_thread::world()) return *world;
  if (self_->process_world) return *self_->process_world;
  throw configuration_error(
      "context.world() was called outside of context.run (" + std::to_string(self_->chosen.threads) +
      " ranks are threads, and the calling thread is not a rank); move the call into context.run");
}

MUSTER_INLINE int context::ranks() const noexcept {
  return self_->process_world ? self_->process_world->size() : self_->chosen.threads;
}

MUSTER_INLINE std::string context::transport_name() const { return self_->chosen.name; }
MUSTER_INLINE std::pmr::memory_resource* context::memory() const noexcept {
  if (self_->shared) return self_->shared.get();
  return self_->process_world ? self_->process_world->transport().memory() : nullptr;
}
MUSTER_INLINE bool context::elastic() const noexcept { return self_->elastic; }
MUSTER_INLINE const std::shared_ptr<detail::segment>& context::shared_memory() const noexcept { return self_->shared; }
MUSTER_INLINE const std::string& context::why() const noexcept { return self_->chosen.reason; }
MUSTER_INLINE const launch_env& context::launcher() const noexcept { return self_->launch; }
MUSTER_INLINE const settings& context::configuration() const noexcept { return self_->configuration; }

MUSTER_INLINE void context::run(const detail::function<void(group&)>& body) {
  if (self_->process_world) {
    self_->run_as_process(body);
  } else {
    detail::run_as_threads(self_->chosen.threads, self_->for_groups, body);
  }
}

MUSTER_INLINE context::outcome context::agree_on_exit_status(std::exception_ptr failure) noexcept {
  self_->has_failed = failure != nullptr;
  try {
    if (self_->process_world) return detail::agree_on_exit_status_of_world(*self_->process_world, failure);
    return {failure ? exit_status_of(failure) : 0, true, failure ? describe(failure) : ""};
  } catch (...) {
    return {exit_status_of(std::current_exception()), true, describe(std::current_exception())};
  }
}

}}  // namespace muster::v0
