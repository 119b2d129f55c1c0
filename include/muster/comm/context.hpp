// The context: the start and the end of a program with one or many ranks.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/group.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/env.hpp>
#include <muster/core/function.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 {

namespace detail {
class segment;
}

/// A view of the job from a process. Detects the process's rank, connects it to the other ranks, and owns the
/// connections and shared memory. A process has one context at a time: a second is a configuration_error.
///
/// The transport is `--transport` or MUSTER_TRANSPORT if given. Otherwise it is self for a single rank and threads for
/// `--ranks N` above 1. With a launcher it is shm if the launcher reports that all ranks are on one host, and
/// hierarchical if the launcher reports several hosts or `--host` is given. If the launcher reports no hosts, it is mpi
/// under an MPI launcher if muster::mpi is linked, else tcp.
class context {
 public:
  /// Uses the environment alone.
  context();
  /// Also removes muster's own flags (`settings_help()` lists them) from the command line; the program's arguments
  /// remain.
  context(int& argc, char** argv);
  /// Uses settings that the program has read.
  explicit context(settings chosen);
  /// Uses a transport that the program made, such as `adopt_mpi(communicator)` of
  /// <muster/comm/transports/mpi/adopt.hpp>. Throws configuration_error for settings that require the context to
  /// connect ranks (another `--transport`, `--ranks`, `--elastic on`, `--rendezvous`); the worlds of ranks without such
  /// settings then fail.
  explicit context(std::unique_ptr<transport> transport, settings chosen = {});
  context(const context&) = delete;
  context& operator=(const context&) = delete;
  /// Leaves the job. During stack unwinding by an exception it aborts the world first.
  ~context();

  /// Returns the group with all ranks. With ranks as threads each thread has its own group object, inside `run` only;
  /// elsewhere this throws configuration_error.
  [[nodiscard]] group& world();
  /// Returns the world size; may be called anywhere.
  [[nodiscard]] int ranks() const noexcept;
  /// Returns the name of the transport in use: "self", "threads", "mpi".
  [[nodiscard]] std::string transport_name() const;
  /// Returns the choice of the transport and its reason, one line.
  [[nodiscard]] const std::string& why() const noexcept;
  [[nodiscard]] const launch_env& launcher() const noexcept;
  [[nodiscard]] const settings& configuration() const noexcept;
  /// Returns true if ranks may die and join (`--elastic on`). Then the context connects no ranks: its world is this
  /// process alone, and the ranks belong to `muster::elastic::session`, which shares the context's memory.
  [[nodiscard]] bool elastic() const noexcept;

  /// Runs `body` as every rank in this process: once, or on N threads with `--ranks N`, and returns when all are done.
  /// If a thread returns while others wait for it in a collective, the others get a mismatch_error. A body that throws
  /// aborts the group: ranks that wait in the group get an error, and when all have returned, `run` throws the
  /// exception of the lowest rank that failed by its own cause.
  void run(const detail::function<void(group& world)>& body);

  /// Allocates `n` zeroed elements of T, 64-byte aligned, in memory that the ranks on this host can access without a
  /// copy if the transport supports that (shm): collectives on such memory are several times as fast. Thread safe. The
  /// caller owns the elements; they must not outlive the context.
  template <class T>
  [[nodiscard]] buffer<T> allocate(std::size_t n) {
    return buffer<T>(n, memory());
  }
  /// Returns the source for that memory, for std::pmr containers; null when no memory is better than any other.
  [[nodiscard]] std::pmr::memory_resource* memory() const noexcept;

  /// The end of a run, as all ranks agree.
  struct outcome {
    int status = 0;               ///< the exit status of every rank
    bool prints_failure = false;  ///< true at the rank that prints the reason
    std::string text;             ///< the reason, one line; empty after success
  };
  /// Agrees with all ranks on the exit status. Collective over processes, once, at the end: exchanges how each process
  /// ended (null: successfully). Waits for ranks that are still running; never throws. `run_main` calls this.
  [[nodiscard]] outcome agree_on_exit_status(std::exception_ptr failure) noexcept;

  /// Returns the memory that outlives every group, for elastic sessions; null unless `elastic`.
  [[nodiscard]] const std::shared_ptr<detail::segment>& shared_memory() const noexcept;

 private:
  struct implementation;
  std::unique_ptr<implementation> self_;
};

/// Options of `run_main`.
struct main_options {
  /// The program's own part of `--help`, printed above muster's flags. Empty for a program without own flags.
  detail::function<std::string()> help{};
  /// Collective: makes the transport of the context, such as `adopt_mpi(communicator)` in a program that has
  /// initialised MPI itself. Empty: the context connects the ranks according to the settings.
  detail::function<std::unique_ptr<transport>()> connect{};
};

namespace detail {
int run_main(int& argc, char** argv, const main_options& run_options, bool has_own_arguments,
             const function<int(context&)>& body) noexcept;
}

/// Runs a program: makes a context, runs `body(context)` (which returns the exit status, or nothing), and turns an
/// exception into one line on stderr, from one rank, and the same exit status at every rank (`error_kind` lists them).
/// Like the context, it removes muster's flags from argc and argv. `--help`, `--help-all` and `--version` end with 0
/// before `body` is called.
///
/// `body(context, world)` runs once per rank, process or thread, as by `context.run`, and returns nothing. Without a
/// `help` such a program has no own arguments: arguments other than muster's flags are refused.
template <class Body>
requires std::invocable<Body&, context&> || std::invocable<Body&, context&, group&>
int run_main(int& argc, char** argv, Body body, const main_options& run_options = {}) {
  constexpr bool once_a_rank = std::invocable<Body&, context&, group&>;
  const auto once_a_process = [&](context& ctx) -> int {
    if constexpr (once_a_rank) {
      ctx.run([&](group& world) { body(ctx, world); });
      return 0;
    } else if constexpr (std::is_void_v<std::invoke_result_t<Body&, context&>>) {
      body(ctx);
      return 0;
    } else {
      return body(ctx);
    }
  };
  return detail::run_main(argc, argv, run_options, !once_a_rank || run_options.help, once_a_process);
}

/// Connects this process to the others of the job, according to the settings and the launcher's environment. Collective
/// over processes; throws within `--timeout`.
using transport_factory = std::unique_ptr<transport> (*)(const settings& configuration, const launch_env& launch);

/// Registers a transport of the program as `--transport NAME`: at every process, before the first context. Throws
/// configuration_error for a name that is taken.
void register_transport(std::string_view name, transport_factory connect);

/// Connects this process by a transport of processes, either the library's ("shm", "tcp", "mpi", "hierarchical") or a
/// registered one, for the program to wrap in a transport_decorator. Throws configuration_error for an unknown name.
[[nodiscard]] std::unique_ptr<transport> connect_transport(std::string_view name, const settings& configuration,
                                                           const launch_env& launch);

namespace detail {

/// A factory of the transport between all processes of a job; a part of muster that has such a transport registers a
/// factory here.
struct process_transport {
  std::string_view name;
  std::unique_ptr<transport> (*connect)(const settings& configuration, const launch_env& launch);
  /// Returns the abilities before any rank is connected, for `muster-info`. `ranks_a_core` is the number of ranks per
  /// core. Null for a transport of the program.
  transport_abilities (*abilities)(double ranks_a_core);
  /// Collective: connects each rank of a group `count` times, see src/comm/bootstrap/endpoints.hpp; null if the
  /// transport cannot do that.
  std::vector<std::unique_ptr<transport>> (*connect_endpoints)(const settings& configuration, group& ranks,
                                                               int count) = nullptr;
  /// For elastic sessions, collective among the members of a generation, given by rank: connects the members, which are
  /// all remaining processes of the launcher. Throws peer_failure if other processes remain, or if an earlier attempt
  /// is stuck. Throws timeout_error by `--timeout`, and configuration_error if the transport cannot do that. Null if
  /// this transport has no such function.
  std::unique_ptr<transport> (*connect_survivors)(const settings& configuration, std::span<const std::uint64_t> members,
                                                  int self, std::uint64_t generation) = nullptr;
  /// Prepares `connect_survivors` together with all of the launcher's processes. Afterwards returns true if no attempt
  /// by this process is stuck. Called before a process becomes a member: members would wait for ever for a process that
  /// cannot connect.
  bool (*can_connect_survivors)() = nullptr;
};
/// Registers a factory.
void register_process_transport(const process_transport& factory);

/// Returns the abilities, before any rank is connected, of every transport in this build except hierarchical and the
/// program's own transports. `ranks_a_core` is the number of ranks per core.
[[nodiscard]] std::vector<transport_abilities> all_transports(double ranks_a_core = 1);

/// A description of the context that these settings would make, connected to no rank. Planning throws the errors that
/// making the context would throw before it connects.
struct planned_world {
  transport_abilities transport;
  int ranks = 1;
  std::string reason;
  group_settings for_groups;
};
[[nodiscard]] planned_world plan_world(const settings& configuration, const launch_env& launch);

}  // namespace detail
}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
