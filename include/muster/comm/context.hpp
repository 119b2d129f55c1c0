// The context: where a program of one or many ranks begins and ends.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
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

namespace muster { inline namespace v0 {

namespace detail {
class segment;
}

/// Detects the rank of this process, connects it to the other ranks, and owns the connections and shared memory. One a
/// process at a time: a second is a configuration_error.
///
/// The transport: `--transport` or MUSTER_TRANSPORT if given; else shm where the launcher says that all ranks are on
/// one host, mpi under an MPI launcher if muster::mpi is linked, tcp under any other; local (threads) for
/// `--ranks N` above 1; self for one rank alone.
class context {
 public:
  /// From the environment alone.
  context();
  /// Also takes muster's own flags (`settings_help()` lists them) out of the command line: what is left is the
  /// program's.
  context(int& argc, char** argv);
  /// From settings that the program has read.
  explicit context(settings chosen);
  /// Over a transport that the program made, such as `adopt_mpi(communicator)` of
  /// <muster/comm/transports/mpi/adopt.hpp>. Throws configuration_error, at all ranks, for settings that would have the
  /// context connect ranks: another `--transport`, `--ranks`, `--elastic on`, `--rendezvous`.
  explicit context(std::unique_ptr<transport> transport, settings chosen = {});
  context(const context&) = delete;
  context& operator=(const context&) = delete;
  /// Leaves the job. During stack unwinding by an exception it aborts the world first.
  ~context();

  /// The group of all ranks. With ranks as threads each thread has its own, inside `run` only;
  /// elsewhere this throws configuration_error.
  [[nodiscard]] group& world();
  /// The world size; may be called anywhere.
  [[nodiscard]] int ranks() const noexcept;
  /// The name of the transport in use: "self", "local", "mpi".
  [[nodiscard]] std::string transport_name() const;
  /// The choice of the transport and its reason, one line.
  [[nodiscard]] const std::string& why() const noexcept;
  [[nodiscard]] const launch_env& launcher() const noexcept;
  [[nodiscard]] const settings& configuration() const noexcept;
  /// Whether ranks may die and join (`--elastic on`). Then the context connects no ranks: its world is this process
  /// alone, and the ranks are those of `muster::elastic::session`, which share its memory.
  [[nodiscard]] bool elastic() const noexcept;

  /// Runs `body` as every rank of this process: once, or on N threads with `--ranks N`, and returns when all are done.
  /// If a thread returns while others wait for it in a collective, they get a mismatch_error. A body that throws aborts
  /// the group: ranks that wait in it get an error, and when all have returned, `run` throws the exception of the
  /// lowest rank that failed by itself.
  void run(const std::function<void(group& world)>& body);

  /// `n` zeroed elements of T, 64-byte aligned, in memory that the ranks of this host reach without a copy where the
  /// transport can do that (shm): collectives on it are several times as fast. Thread safe. The caller owns them;
  /// they must not outlive the context.
  template <class T>
  [[nodiscard]] buffer<T> allocate(std::size_t n) {
    return buffer<T>(n, memory());
  }
  /// The source of that memory, for std::pmr containers; null when no memory is better than any other.
  [[nodiscard]] std::pmr::memory_resource* memory() const noexcept;

  /// How a run ended, as all ranks agree.
  struct outcome {
    int status = 0;        ///< what every rank should exit with
    bool speaker = false;  ///< whether this rank prints the reason
    std::string text;      ///< the reason, one line; empty after success
  };
  /// Collective over processes, once, at the end: exchanges how each process ended (null: successfully). Waits for
  /// ranks that are still running; never throws. `run_main` calls it.
  [[nodiscard]] outcome settle(std::exception_ptr failure) noexcept;

  /// For elastic sessions: the memory that outlives every group; null unless `elastic`.
  [[nodiscard]] const std::shared_ptr<detail::segment>& shared_memory() const noexcept;

 private:
  struct implementation;
  std::unique_ptr<implementation> self_;
};

/// Options of `run_main`.
struct main_options {
  /// The program's own part of `--help`, printed above muster's flags. Empty for a program without own flags.
  std::function<std::string()> help{};
  /// Collective: makes the transport of the context, such as `adopt_mpi(communicator)` in a program that has begun MPI
  /// itself. Empty: the context connects the ranks as the settings say.
  std::function<std::unique_ptr<transport>()> connect{};
};

namespace detail {
int run_main(int& argc, char** argv, const main_options& how, bool has_own_words,
             const std::function<int(context&)>& body) noexcept;
}

/// Everything that `main` needs: makes a context, runs `body(context)` (which returns the exit status, or nothing), and
/// turns an exception into one line on stderr, from one rank, and the same exit status at every rank (`error_kind`
/// lists them). As the context does, it takes muster's flags out of argc and argv. `--help`, `--help-all` and
/// `--version` end with 0 before `body` is called.
///
/// `body(context, world)` runs once a rank, process or thread, as by `context.run`, and returns nothing. Without a
/// `help` such a program has no own arguments: others than muster's flags are refused.
template <class Body>
requires std::invocable<Body&, context&> || std::invocable<Body&, context&, group&>
int run_main(int& argc, char** argv, Body body, const main_options& how = {}) {
  constexpr bool once_a_rank = std::invocable<Body&, context&, group&>;
  const auto once_a_process = [&](context& made) -> int {
    if constexpr (once_a_rank) {
      made.run([&](group& world) { body(made, world); });
      return 0;
    } else if constexpr (std::is_void_v<std::invoke_result_t<Body&, context&>>) {
      body(made);
      return 0;
    } else {
      return body(made);
    }
  };
  return detail::run_main(argc, argv, how, !once_a_rank || how.help, once_a_process);
}

/// Connects this process to the others of the job, as the settings and the launcher's environment say. Collective over
/// processes; throws within `--timeout`.
using transport_factory = std::unique_ptr<transport> (*)(const settings& configuration, const launch_env& launch);

/// Registers a transport of the program as `--transport NAME`: at every process, before the first context. Throws
/// configuration_error for a name that is taken.
void register_transport(std::string_view name, transport_factory connect);

/// Connects this process by one of the library's transports of processes ("shm", "tcp", "mpi") or a registered one, for
/// the program to wrap in a transport_decorator. Throws configuration_error for an unknown name.
[[nodiscard]] std::unique_ptr<transport> connect_transport(std::string_view name, const settings& configuration,
                                                           const launch_env& launch);

namespace detail {

/// What makes the transport of all processes of a job; a part of muster that can registers itself here.
struct process_transport {
  std::string_view name;
  std::unique_ptr<transport> (*connect)(const settings& configuration, const launch_env& launch);
  /// As they are before any rank is connected, for `muster-info`, with so many ranks for each core.
  transport_abilities (*abilities)(double ranks_a_core);
  /// Collective: connects each rank of a group so many times, see src/comm/bootstrap/endpoints.hpp; null where that
  /// cannot be.
  std::vector<std::unique_ptr<transport>> (*connect_endpoints)(const settings& configuration, group& ranks,
                                                               int count) = nullptr;
  /// For elastic sessions, collective among the members of a generation, given by rank: connects them, which are all
  /// that are left of the launcher's processes. Throws peer_failure where other processes are left, or an earlier
  /// attempt is stuck; timeout_error by `--timeout`; configuration_error where that cannot be. Null: not by this
  /// transport.
  std::unique_ptr<transport> (*connect_survivors)(const settings& configuration, std::span<const std::uint64_t> members,
                                                  int self, std::uint64_t generation) = nullptr;
  /// Begins what that takes, with all of the launcher's processes; then whether no attempt of this one is stuck. Asked
  /// before a process is a member: members that wait for one that would become a member would wait for ever.
  bool (*can_connect_survivors)() = nullptr;
};
/// Returns true, so that it can start an inline variable.
bool register_process_transport(const process_transport& made);

/// Every transport of this build, connected to no rank, with so many ranks for each core.
[[nodiscard]] std::vector<transport_abilities> all_transports(double ranks_a_core = 1);

/// What a context with these settings would be, connected to no rank. Throws what making one would throw before.
struct planned_world {
  transport_abilities transport;
  int ranks = 1;
  std::string why;
  group_settings for_groups;
};
[[nodiscard]] planned_world plan_world(const settings& configuration, const launch_env& launch);

#ifdef MUSTER_HAS_MPI
// Linking muster::mpi is what puts it into every context: this reference pulls it out of its archive. Each unit has its
// own: of an inline variable a process has one, also where several of its plug-ins contain muster, and each must ask.
bool link_mpi() noexcept;
[[maybe_unused]] static const bool mpi_is_linked = link_mpi();
#endif
#ifdef MUSTER_HAS_TCP
bool link_tcp() noexcept;
[[maybe_unused]] static const bool tcp_is_linked = link_tcp();
#endif
#ifdef MUSTER_HAS_ETCD
bool link_etcd_store() noexcept;
[[maybe_unused]] static const bool etcd_is_linked = link_etcd_store();
#endif

}  // namespace detail
}}  // namespace muster::v0
