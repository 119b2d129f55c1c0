// How long things take, and are given, in comm: every duration that steers what it does, by room.
#pragma once

#include <chrono>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace detail {

struct net_timing {
  /// What another program that connects may take to prove that it is of the job.
  static constexpr std::chrono::seconds handshake{5};
  /// Between two questions for the addresses of a name that the name service does not know yet.
  static constexpr std::chrono::milliseconds name_retry{200};
  /// Until the next try to accept, when no descriptor was left.
  static constexpr std::chrono::milliseconds accept_retry{100};
};

struct group_timing {
  /// A wait spins so long: a peer that computes the same as this rank is rarely later, and a sleep costs a wake-up.
  static constexpr std::chrono::microseconds spin{150};
  /// A wait this long is out of the ordinary: the ranks then tell each other where they stand, and again after twice
  /// the time, up to the last.
  static constexpr seconds first_inquiry{0.05};
  static constexpr seconds last_inquiry{1.0};
  /// The progress thread sleeps an eighth of what the collective has taken so far, within these.
  static constexpr std::chrono::microseconds shortest_nap{50};
  static constexpr std::chrono::microseconds longest_nap{1000};
  /// A rank that waits in a group that another thread may end sleeps no longer: nothing in its transport wakes it then.
  static constexpr std::chrono::milliseconds revocable_pause{1};
  /// What a rank that left a group may take to give a reason in the group that this one was made from: an exception
  /// ends the one first, and then whatever else it passes. Where there is no reason, the ranks that need it wait so
  /// long.
  static constexpr std::chrono::milliseconds late_reason{300};
};

struct transport_timing {
  /// A rank that waits looks for dead peers this often: so soon is a death seen.
  static constexpr std::chrono::milliseconds death_poll{10};
  /// What a rank whose connection broke may take to send its reason: its control messages may still be on the way.
  static constexpr std::chrono::milliseconds late_control_message{50};
};

struct shm_timing {
  /// A failed rank waits so long for a peer that writes into its memory just now. One that takes longer was stopped,
  /// and is left with the memory.
  static constexpr seconds writer{1.0};
  /// Rank 0 stays so long to tell ranks that come late why the ranks of the host cannot connect.
  static constexpr seconds last_word{5.0};
  /// A sleeping rank looks for dead peers this often.
  static constexpr seconds longest_sleep{0.02};
  /// Between two looks for the other ranks of the host while a group is made.
  static constexpr std::chrono::milliseconds bootstrap_poll{2};
  /// Between two moves to another core: twice as long after each that did not last, within these.
  static constexpr std::chrono::milliseconds shortest_rest{1};
  static constexpr std::chrono::milliseconds longest_rest{256};
  static constexpr std::chrono::seconds lasting_move{1};
};

struct tcp_timing {
  /// One attempt to connect to one address, of which a host may have several.
  static constexpr std::chrono::seconds connect_attempt{5};
  /// Between two attempts: twice as long each time, within these.
  static constexpr std::chrono::milliseconds first_retry{5};
  static constexpr std::chrono::milliseconds last_retry{500};
  /// Between two looks whether connecting still has a point.
  static constexpr std::chrono::milliseconds given_up_poll{5};
  /// And whether this process can still accept connections.
  static constexpr std::chrono::milliseconds trouble_poll{100};
  /// For ranks that connect late, once a rank that was connected has ended.
  static constexpr seconds others_ended{5.0};
  /// What was sent has so long to reach the other side before this process is gone.
  static constexpr seconds drain{2.0};
};

struct mpi_timing {
  /// A failed operation has so long to end by itself before it is left behind.
  static constexpr seconds cancel{0.2};
  /// Between two looks for dead peers: asking takes locks in MPI.
  static constexpr std::chrono::milliseconds death_poll{2};
};

struct nccl_timing {
  static constexpr std::chrono::microseconds poll{50};
  /// A group has so long to find out which ranks have died, after NCCL has seen that one has.
  static constexpr seconds failed_ranks{1.0};
  /// What NCCL may take to get its kernels off the device after an abort.
  static constexpr seconds abort{10.0};
};

struct store_timing {
  /// Of one address in a store's file: a host that is there, and not stopped, answers within milliseconds.
  static constexpr seconds probe{3};
  /// Rank 0 leaves the file with its problem for so long: the others look several times meanwhile.
  static constexpr std::chrono::milliseconds problem_told{1000};
  /// Between two pings of a silent server, by the clock of a process that runs: a client that was stopped for a while
  /// itself does not blame the server.
  static constexpr seconds ping_interval{5};
  /// Between two looks of the server for clients that take nothing.
  static constexpr seconds tick{0.5};
  /// Between two looks of the server for the ends of clients, while one that opens the store waits for that.
  static constexpr std::chrono::milliseconds doubt_poll{20};
  /// A client that lost its connection, or its server, has so long to connect again before the
  /// table is begun anew for later clients; as long as one of an etcd, whose lease it is.
  static constexpr std::chrono::seconds lease{10};
  /// A client that takes nothing of what it is owed is given up.
  static constexpr seconds slow_client{30};
  /// One member of an etcd that hangs does not use up the time of all.
  static constexpr seconds etcd_member{5.0};
  /// A watch is made anew this often: so soon the watching thread can end where the store is away.
  static constexpr std::chrono::seconds watch_slice{1};
  /// Until a watch that failed is made anew.
  static constexpr std::chrono::milliseconds watch_retry{50};
  /// Whether a record was written after all, the watch tells.
  static constexpr seconds swap{2.0};
};

struct exit_timing {
  /// A rank that failed listens so long for the reasons of the others before it ends, and one that did not fail waits
  /// so long for the others to end too. Past these it goes without them.
  static constexpr seconds failure_agreement{1.0};
  static constexpr seconds success_agreement{600.0};
};

}}}  // namespace muster::v0::detail
