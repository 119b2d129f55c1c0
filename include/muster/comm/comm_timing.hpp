// All durations that control comm: timeouts, intervals and limits, by room.
#pragma once

#include <chrono>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace detail {

struct net_timing {
  /// Time in which a connecting program must prove that it belongs to the job.
  static constexpr std::chrono::seconds handshake{5};
  /// Interval between two lookups of a host name that the name service does not know yet.
  static constexpr std::chrono::milliseconds name_retry{200};
  /// Time until the next accept after the process ran out of file descriptors.
  static constexpr std::chrono::milliseconds accept_retry{100};
};

struct group_timing {
  /// Time for which a wait spins: a peer that computes the same as this rank is rarely later, and a sleep costs a
  /// wake-up.
  static constexpr std::chrono::microseconds spin{150};
  /// A wait is unusually long after `first_position_report`: the ranks then report their positions to each other. The
  /// interval doubles after each report, up to `longest_position_interval`.
  static constexpr seconds first_position_report{0.05};
  static constexpr seconds longest_position_interval{1.0};
  /// Limits of the progress thread's sleep, which is an eighth of the time that the collective has taken so far.
  static constexpr std::chrono::microseconds shortest_nap{50};
  static constexpr std::chrono::microseconds longest_nap{1000};
  /// Longest sleep of a rank in a group that another thread may end: nothing in the rank's transport wakes it then.
  static constexpr std::chrono::milliseconds revocable_pause{1};
  /// Time in which a rank that left a group may report a reason in the parent group: an exception destroys the child
  /// group first and the parent group later. Without a reason, the ranks that need the missing rank wait this long.
  static constexpr std::chrono::milliseconds late_reason{300};
};

struct transport_timing {
  /// Shortest interval between two checks of a waiting rank for dead peers.
  static constexpr std::chrono::milliseconds death_poll{10};
  /// Time in which the reason of a rank whose connection broke may arrive: its control messages may still be in
  /// transit.
  static constexpr std::chrono::milliseconds late_control_message{50};
};

struct shm_timing {
  /// Time that a failed rank waits for a peer that is writing into its memory. A peer that takes longer counts as
  /// stopped, for instance by SIGSTOP: this rank then leaves the memory to the peer.
  static constexpr seconds peer_write{1.0};
  /// Time for which a rank 0 that cannot connect the ranks of the host still reports the reason to ranks that connect
  /// late.
  static constexpr seconds failure_report{5.0};
  /// Longest sleep of a waiting rank, which checks for dead peers afterwards.
  static constexpr seconds longest_sleep{0.02};
  /// Interval between two checks of `is_aborted` in `bootstrap_host`.
  static constexpr std::chrono::milliseconds bootstrap_poll{2};
  /// Interval between two moves to another core. The interval doubles after each move that did not last, from
  /// `shortest_move_interval` to `longest_move_interval`. A move lasts if the rank stays for `lasting_move`.
  static constexpr std::chrono::milliseconds shortest_move_interval{1};
  static constexpr std::chrono::milliseconds longest_move_interval{256};
  static constexpr std::chrono::seconds lasting_move{1};
};

struct tcp_timing {
  /// Time limit for one attempt to connect to one address; a host may have several addresses.
  static constexpr std::chrono::seconds connect_attempt{5};
  /// Interval between two attempts to connect: it doubles each time, from `first_retry` to `last_retry`.
  static constexpr std::chrono::milliseconds first_retry{5};
  static constexpr std::chrono::milliseconds last_retry{500};
  /// Interval between two calls of `is_aborted` in `tcp_mesh::await_all`.
  static constexpr std::chrono::milliseconds abort_poll{5};
  /// Interval between two checks whether this process can still accept connections.
  static constexpr std::chrono::milliseconds acceptor_poll{100};
  /// Time that ranks still have to connect once a connected rank has ended.
  static constexpr seconds others_ended{5.0};
  /// Time in which sent bytes must reach the peer before this process ends.
  static constexpr seconds drain{2.0};
};

struct mpi_timing {
  /// Time in which a failed operation may end by itself before it is abandoned.
  static constexpr seconds cancel{0.2};
  /// Interval between two checks for dead peers: a check takes locks in MPI.
  static constexpr std::chrono::milliseconds death_poll{2};
};

struct nccl_timing {
  /// Interval between two tests of a call that NCCL has not accepted or not completed.
  static constexpr std::chrono::microseconds poll{50};
  /// Time in which a group may find out which ranks have died, after NCCL has detected that a rank has.
  static constexpr seconds failed_ranks{1.0};
  /// Time in which NCCL must remove its kernels from the device after an abort.
  static constexpr seconds abort{10.0};
};

struct store_timing {
  /// Time limit of a request to one address of a store's file: a running host answers within milliseconds.
  static constexpr seconds probe{3};
  /// Time until a client connects again whose connection ended before the store was open.
  static constexpr std::chrono::milliseconds open_retry{20};
  /// Time for which a server must reject a client that counts the server as belonging to another job.
  static constexpr std::chrono::seconds rejected{1};
  /// Time for which rank 0 leaves its error in the file: the other ranks check several times meanwhile.
  static constexpr std::chrono::milliseconds error_kept{1000};
  /// Interval between two pings of a silent server, measured by the time that this process runs: a client that was
  /// itself stopped for a while does not blame the server.
  static constexpr seconds ping_interval{5};
  /// Interval between two checks of the server for clients that do not read.
  static constexpr seconds tick{0.5};
  /// Interval between two checks of the server for ended clients, while a client that opens the store waits for the
  /// result.
  static constexpr std::chrono::milliseconds ended_client_poll{20};
  /// Time in which a client that lost its connection, or its server, may connect again. Afterwards the table is cleared
  /// for later clients. The same time as the lease of an etcd client.
  static constexpr std::chrono::seconds lease{10};
  /// Time after which a client that does not read its replies is dropped.
  static constexpr seconds slow_client{30};
  /// Time limit for one member of an etcd, so that a hanging member does not use up the other members' time.
  static constexpr seconds etcd_member{5.0};
  /// Interval at which a watch is renewed: the watching thread can end within this time if the store is unreachable.
  static constexpr std::chrono::seconds watch_slice{1};
  /// Time until a failed watch is renewed.
  static constexpr std::chrono::milliseconds watch_retry{50};
  /// Time limit of a swap of a watched record. After a timeout the watch shows whether the record was written.
  static constexpr seconds swap{2.0};
};

struct exit_timing {
  /// Time that a failed rank waits for the other ranks' reasons before it ends, and time that a successful rank waits
  /// for the other ranks to end. Past these the rank ends alone.
  static constexpr seconds failure_agreement{1.0};
  static constexpr seconds success_agreement{600.0};
};

}}}  // namespace muster::v0::detail
