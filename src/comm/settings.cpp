#include <muster/comm/settings.hpp>

namespace muster::inline v0::setting {
namespace {

constexpr auto some_seconds = detail::from(0.001, 1e8);  // from a millisecond to three years: no clock overflows

}  // namespace

constexpr setting_info transport{
    "transport", "NAME", "auto",
    "how ranks talk: auto, self, local (ranks as threads), shm (processes of one host), mpi, tcp, hierarchical (shm "
    "within a host)"};
constexpr setting_info between{"between", "NAME", "auto",
                               "hierarchical: what joins the hosts: mpi, tcp, auto (mpi where the launcher speaks it)"};
constexpr setting_info ranks{"ranks", "N", "1", "ranks as threads of this process, when no launcher started it",
                             detail::from(1, most_ranks)};
constexpr setting_info job{
    "job", "NAME", "auto",
    "under which the processes of a host find each other; auto: what the launcher calls this start"};
constexpr setting_info rendezvous{
    "rendezvous", "PLACE", "auto",
    "where the ranks find each other: auto, tcp://host:port, etcd://host:port, file:/folder"};
constexpr setting_info token{
    "token", "SECRET", "auto",
    "by which ranks know each other; a flag shows in ps, a variable does not; auto: drawn at the start"};
constexpr setting_info host{"host", "NAME", "auto",
                            "ranks of one name count as on one host; auto: what the system says"};
constexpr setting_info algorithm{
    "algorithm", "RULES", "auto",
    "auto, ring, tree, chain, recursive_doubling, halving_doubling, direct, native, where a collective has it; or "
    "collective:low-high:algorithm, ..."};
constexpr setting_info profile{"profile", "FILE", "none",
                               "choose by what muster-info --calibrate --save FILE measured"};
constexpr setting_info timeout{"timeout", "SECONDS", "30", "deadline of every collective", some_seconds, true};
constexpr setting_info check{"check", "WHEN", "auto",
                             "auto, or full: compare the arguments of all ranks before each native collective too"};
constexpr setting_info progress{
    "progress", "WHEN", "auto",
    "a thread that moves asynchronous collectives on: on, off, auto (on where cores are left over)"};
constexpr setting_info cma{
    "cma", "WHEN", "auto",
    "shm: a broadcast reads its root's private memory through the system: on, off, auto (to 1 MiB)"};
constexpr setting_info pin{"pin", "WHEN", "off", "on or off: bind each rank of a host to a core of its own"};
constexpr setting_info interface {
  "interface", "NAMES", "auto",
      "tcp: where this rank is reached, by interfaces, subnets or addresses: eth0,10.0.0.0/8; auto: the loopback on "
      "one host, else all"
};
constexpr setting_info connections{"connections", "WHEN", "all",
                                   "tcp: all, before the first collective; or lazy, each when it is first needed"};
constexpr setting_info streams{"streams", "N", "1", "tcp: connections for data between two ranks", detail::from(1, 64)};
constexpr setting_info heartbeat{
    "heartbeat", "SECONDS", "0.1", "tcp: from one sign of life to the next", detail::from(0.001, 3600), true};
constexpr setting_info missed_heartbeats{"missed-heartbeats", "N", "5",
                                         "tcp: signs of life that fail to come before a rank counts as lost",
                                         detail::from(2, 1000000)};
constexpr setting_info checksum{"checksum", "WHEN", "off",
                                "tcp: on or off: a checksum of all data, where that of the network is not enough"};
constexpr setting_info elastic{"elastic", "WHEN", "off",
                               "on or off: ranks may die and join; the program trains in muster::elastic::session"};
constexpr setting_info quorum_timeout{
    "quorum-timeout", "SECONDS", "30", "elastic: how long to wait for enough ranks, or for a majority of them",
    some_seconds,     true};
constexpr setting_info remote_servers{
    "remote-servers", "N", "0",
    "ps: so many of those that serve or stand by are started on their own, with --role server; all meet at "
    "--rendezvous",
    detail::from(0, most_ranks)};
constexpr setting_info role{
    "role", "NAME", "auto",
    "ps: server: this process was started on its own, and serves a job that waits for it (--remote-servers); auto: "
    "what its rank is"};

extern "C" {
bool muster_settings_of_comm = detail::register_settings(
    {"comm",
     "the job and its transports",
     {&ranks, &transport, &elastic, &timeout, &algorithm, &rendezvous},
     {&between, &job, &token, &host, &profile, &check, &progress, &cma, &pin, &interface, &connections, &streams,
      &heartbeat, &missed_heartbeats, &checksum, &quorum_timeout, &remote_servers, &role}});
}

}  // namespace muster::inline v0::setting
