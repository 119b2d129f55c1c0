#pragma once

#include <muster/comm/comm_settings.hpp>

#include <muster/core/inline.hpp>
#include <muster/core/plugin.hpp>

namespace muster { inline namespace v0 {
namespace setting {
// from a millisecond to three years: the clock does not overflow
inline constexpr auto some_seconds = detail::value_range(0.001, 1e8);

inline constexpr setting_info transport{
    "transport", "NAME", "auto",
    "how ranks communicate: auto, self (one rank), threads (of one process), shm (processes on the "
    "same host), mpi, tcp, hierarchical (shm within a host)"};
inline constexpr setting_info between{
    "between", "NAME", "auto", "hierarchical: transport between hosts: mpi, tcp, auto (mpi under an MPI launcher)"};
inline constexpr setting_info ranks{"ranks", "N", "1", "ranks as threads in this process, without a launcher",
                                    detail::value_range(1, most_ranks)};
inline constexpr setting_info job{"job", "NAME", "auto",
                                  "name by which the processes of a job find each other; auto: from the launcher"};
inline constexpr setting_info rendezvous{
    "rendezvous", "PLACE", "auto",
    "store through which the ranks find each other: auto, tcp://host:port, etcd://host:port, file:/folder"};
inline constexpr setting_info token{
    "token", "SECRET", "auto",
    "secret by which ranks authenticate; ps shows a flag but not the variable; auto: random"};
inline constexpr setting_info host{
    "host", "NAME", "auto",
    "name for this rank's host; ranks with the same name share memory; auto: the system's name"};
inline constexpr setting_info algorithm{
    "algorithm", "RULES", "auto",
    "auto, ring, tree, chain, recursive_doubling, halving_doubling, direct, native, where a collective has it; or "
    "collective:low-high:algorithm, ..."};
inline constexpr setting_info timeout{"timeout", "SECONDS", "30", "deadline of every collective", some_seconds, true};
inline constexpr setting_info check{"check", "WHEN", "auto",
                                    "auto, or full: compare all ranks' arguments also before native collectives"};
inline constexpr setting_info progress{
    "progress", "WHEN", "auto",
    "a thread that advances asynchronous collectives: on, off, auto (on if cores are free)"};
inline constexpr setting_info pin{"pin", "WHEN", "off", "on or off: bind each rank of a host to its own core"};
inline constexpr setting_info interface {
  "interface", "NAMES", "auto",
      "tcp: where this rank listens, by interfaces, subnets or addresses: eth0,10.0.0.0/8; auto: the loopback on one "
      "host, else all interfaces"
};
inline constexpr setting_info connections{"connections", "WHEN", "all",
                                          "tcp: all, before the first collective; or lazy, each at its first use"};
inline constexpr setting_info heartbeat{
    "heartbeat", "SECONDS", "0.1", "tcp: time from one heartbeat to the next", detail::value_range(0.001, 3600), true};
inline constexpr setting_info missed_heartbeats{"missed-heartbeats", "N", "5",
                                                "tcp: missing heartbeats after which a rank counts as failed",
                                                detail::value_range(2, 1000000)};
inline constexpr setting_info checksum{"checksum", "WHEN", "off",
                                       "tcp: on or off: a checksum for all data, in addition to TCP's own"};
inline constexpr setting_info elastic{
    "elastic", "WHEN", "off",
    "on or off: ranks may leave, fail and join; the program trains in muster::elastic::session"};
inline constexpr setting_info quorum_timeout{
    "quorum-timeout", "SECONDS", "30", "elastic: how long to wait for enough ranks, or for a majority of the members",
    some_seconds,     true};
inline constexpr setting_info store_program{
    "store-program", "FILE", "auto",
    "elastic: the muster-store that rank 0 starts under mpirun and srun; auto: beside "
    "the program, in PATH, or installed"};
inline constexpr setting_info remote_servers{
    "remote-servers", "N", "0",
    "ps: servers and hot spares that are launched separately, with --role server, and join at --rendezvous",
    detail::value_range(0, most_ranks)};
inline constexpr setting_info role{
    "role", "NAME", "auto",
    "ps: server: this process was launched separately, and joins a job with --remote-servers; auto: by its rank"};

inline constexpr setting_info flight_recorder{
    "flight-recorder", "FOLDER", "off",
    "folder in which a rank that waits without success (a deadline, an abort, "
    "SIGUSR2) records its last 256 collectives; "
    "muster-launch chooses a folder by itself and prints a report"};

inline void register_settings_of_comm() {
  detail::register_settings(
      {"comm",
       "the job and its transports",
       {&ranks, &transport, &elastic, &timeout, &algorithm, &rendezvous},
       {&between, &job, &token, &host, &check, &progress, &pin, &interface, &connections, &heartbeat,
        &missed_heartbeats, &checksum, &quorum_timeout, &store_program, &remote_servers, &role, &flight_recorder}});
}

}  // namespace setting

namespace detail {

extern const plugin comm_plugin;
[[gnu::init_priority(101)]] MUSTER_INLINE const plugin comm_plugin("comm", &setting::register_settings_of_comm);

}  // namespace detail
}}  // namespace muster::v0
