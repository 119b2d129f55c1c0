#pragma once

#include <muster/ps/job.hpp>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include <muster/comm/bootstrap/endpoints.hpp>
#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/bootstrap/memory_store.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/comm/group/words.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/number.hpp>
#include <muster/core/random_bytes.hpp>
#include <muster/elastic/departure.hpp>
#include <muster/elastic/rank_comparison.hpp>
#include <muster/ps/job_checks.hpp>
#include <muster/ps/ps_settings.hpp>
#include <muster/ps/runtime/server_process.hpp>
#include <muster/ps/runtime/worker_process.hpp>

namespace muster { inline namespace v0 { namespace ps {
namespace detail {

inline clock::duration span_of(seconds span) { return std::chrono::duration_cast<clock::duration>(span); }

inline protocol_settings protocol_of(const job_options& options, const settings& configuration) {
  const auto unheard =
      configuration.number(setting::heartbeat) * static_cast<double>(configuration.integer(setting::missed_heartbeats));
  protocol_settings protocol{.model = options.consistency_model,
                             .retry = span_of(options.retry),
                             .detection_silence = span_of(options.server_silence.value_or(seconds(1.0))),
                             .worker_silence = span_of(options.timeout),
                             .quorum = span_of(seconds(configuration.number(setting::quorum_timeout)))};
  protocol.one_sided_break = std::max(protocol.one_sided_break, span_of(seconds(unheard)));
  return protocol;
}

// Returns the time for which a server may be silent if the program sets no time. The connections or the host report the
// end of a process, so a silent process usually waits for a processor, or was stopped for a while.
inline clock::duration silence_limit_of_servers(group& ranks, const job_options& options, const settings& configuration,
                                                const protocol_settings& protocol) {
  if (options.server_silence) return {};
  const auto hosts = muster::detail::allgather_strings(ranks, host_identity(configuration));
  const bool on_one_host = std::ranges::count(hosts, hosts.front()) == std::ssize(hosts);
  return on_one_host ? protocol.worker_silence / 2 : protocol.one_sided_break;
}

// Returns the key prefix under which the job keeps its map, unique in the store.
inline std::string name_of_job(group& ranks) {
  return "ps/" + muster::detail::broadcast_string(ranks, muster::detail::random_token().substr(0, 16), 0);
}

// Returns one store for all threads of a process, or for processes the store that the settings and the launcher select.
inline std::shared_ptr<any_store> store_for(context& ctx, group& ranks) {
  const std::string transport = ctx.transport_name();
  if (transport != "threads" && transport != "self") return open_store(ctx.configuration(), ctx.launcher());
  return muster::detail::construct_on_rank_zero(ranks, [] { return std::make_shared<memory_store>(); });
}

// Returns the first map of a job. Places are ranks of the launch. The ranks in `present` have joined.
inline shard_map map_of(const job_options& options, const table_layout& layout, node_id workers,
                        std::span<const node_id> present) {
  std::vector<member> working;
  std::vector<server_entry> serving;
  for (const auto at : present) {
    if (at < workers)
      working.push_back({at, 1});
    else if (options.colocated || at < workers + static_cast<node_id>(options.servers))
      serving.push_back({{at, 1}});
  }
  return first_map(serving, working, layout.ranges(), options.replicas);
}

// Number of servers and hot spares, or with co-located servers the number of ranks.
inline int servers_of(const job_options& options, const group& ranks) {
  return options.colocated ? ranks.size() : options.servers + options.standby;
}

#ifdef MUSTER_HAS_TCP
// The keys that the processes of an elastic job write to the store.
inline constexpr const char* map_key = "ps/map";
inline constexpr const char* options_key = "ps/options";
inline constexpr const char* difference_key = "ps/difference";
inline constexpr const char* places_key = "ps/places";
inline constexpr const char* name_key = "ps/name";

// Returns the unique name of the job, which the first process chooses and stores.
inline std::string shared_job_name(any_store& store, clock::time_point until) {
  return store.compare_and_swap(name_key, 0, muster::detail::random_token().substr(0, 16), until).now.value;
}

// Compares this process with the first process of the job. Returns the first difference; empty if there is none. Before
// the job begins, a difference is an error at every process: it is stored before this process joins.
inline std::string difference_from_job(any_store& store, const std::string& own_name,
                                       const std::vector<compared_property>& properties, clock::time_point until) {
  const std::string own = muster::detail::packed(properties);
  const auto swapped = store.compare_and_swap(options_key, 0, own_name + "\n" + own, until);
  if (swapped.swapped) return {};
  const std::string_view first = swapped.now.value;
  const auto line = std::min(first.find('\n'), first.size() - 1);
  const auto difference =
      muster::detail::first_difference(first.substr(line + 1), std::string(first.substr(0, line)), own, own_name);
  if (!difference.empty()) (void)store.compare_and_swap(difference_key, 0, difference, until);
  return difference;
}

// Throws mismatch_error at a process that differs from the job, and at every process of a job that has not begun and
// in which one differs.
inline void refuse_difference(any_store& store, const std::string& own_difference, bool has_begun,
                              clock::time_point until) {
  if (!own_difference.empty() && has_begun) {
    throw mismatch_error("this process cannot join the job at " + store.where() + " (" + own_difference +
                         "); start it with the same program, options and data");
  }
  if (!has_begun) muster::detail::require_no_difference(store.get(difference_key, until).value);
}

// Returns the place of the launch, or an unused place if the job has begun.
inline node_id take_place(any_store& store, const launch_env& launch, clock::time_point until) {
  const bool has_begun = store.get(map_key, until).version != 0;
  const auto size = std::to_string(launch.size);
  auto entry = store.compare_and_swap(places_key, 0, size, until).now;
  if (!has_begun) return static_cast<node_id>(launch.rank);
  for (entry = store.get(places_key, until);;) {
    const auto place = parse_number<node_id>(entry.value).value_or(most_nodes);
    if (place >= most_nodes) {
      throw configuration_error("the job at " + store.where() + " accepts no more processes (" +
                                std::to_string(most_nodes) + " have joined); start it again");
    }
    auto swapped = store.compare_and_swap(places_key, entry.version, std::to_string(place + 1), until);
    if (swapped.swapped) return place;
    entry = std::move(swapped.now);
  }
}
#endif

}  // namespace detail

struct job::implementation {
  implementation(group& all, const job_options& given_options, const std::shared_ptr<any_store>& store,
                 const settings& job_settings)
      : options(given_options),
        configuration(job_settings),
        serves_store(store->is_served_here()),
        layout(given_options.tables, static_cast<std::size_t>(detail::servers_of(given_options, all))),
        ranks(checked(all)),
        working(ranks.split(is_worker() ? 0 : 1)) {
    // Places are ranks. If every rank is a worker and a server, the servers' places follow the workers' places.
    const auto size = static_cast<node_id>(ranks.size());
    const auto self = static_cast<node_id>(ranks.rank());
    const auto workers = options.colocated ? size : size - static_cast<node_id>(detail::servers_of(options, ranks));
    std::vector<node_id> all_places(workers + static_cast<std::size_t>(detail::servers_of(options, ranks)));
    std::iota(all_places.begin(), all_places.end(), node_id{0});
    const std::vector<node_id> can_serve(all_places.begin() + workers, all_places.end());
    const auto first = detail::map_of(options, layout, workers, all_places);
    const auto name = detail::name_of_job(ranks);
    auto protocol = detail::protocol_of(options, configuration);
    protocol.least_server_silence = detail::silence_limit_of_servers(ranks, options, configuration, protocol);
    const auto setup_of = [&](node_id place, transport& over) {
      return detail::process_setup{{place, 1}, options, protocol, layout,  over, store,
                                   name,       first,   nullptr,  nullptr, name};
    };
    if (options.colocated) {
      for (auto& end : muster::detail::connect_endpoints(configuration, ranks, 2))
        ends.emplace_back(std::move(end), ranks.settings());
      worker = std::make_unique<detail::worker_process>(setup_of(self, ends[0].transport()), can_serve);
      server = std::make_unique<detail::server_process>(setup_of(size + self, ends[1].transport()));
      serving = std::jthread([this, rank = log_rank()] { serve_beside(rank); });
    } else if (is_worker()) {
      worker = std::make_unique<detail::worker_process>(setup_of(self, ranks.transport()), can_serve);
    } else {
      server = std::make_unique<detail::server_process>(setup_of(self, ranks.transport()));
    }
  }
#ifdef MUSTER_HAS_TCP
  // In an elastic job the processes are in no group. Each process has its own group, and is connected to the present
  // members.
  implementation(context& ctx, group& alone, const job_options& given_options)
      : options(given_options),
        configuration(ctx.configuration()),
        serves_store(false),
        layout(given_options.tables, static_cast<std::size_t>(given_options.servers + given_options.standby)),
        ranks(alone.duplicate()),
        working(alone.duplicate()) {
    const auto& launch = ctx.launcher();
    detail::check_options(options, launch.size);
    static std::atomic<bool> had_one = false;  // the job's records stay in the store
    if (had_one.exchange(true))
      throw configuration_error("an elastic job has one parameter server (this is a second); use --elastic off");
    if (options.colocated) {
      throw configuration_error(
          "co-located servers cannot be in an elastic job (a process would join with tables of other processes); "
          "choose "
          "--servers N, or --elastic off");
    }
    const auto until = deadline_after(options.timeout);
    const std::shared_ptr<any_store> store = open_store(configuration, launch);
    serves_store = store->is_served_here();
    const bool joins = store->get(detail::map_key, until).version != 0;
    const auto difference =
        detail::difference_from_job(*store, joins ? "this process" : "rank " + std::to_string(launch.rank),
                                    detail::properties_of(options, layout), until);
    if (joins) detail::refuse_difference(*store, difference, true, until);
    const node_id self = detail::take_place(*store, launch, until);
    links = std::make_shared<muster::detail::member_links>(ctx, store, self);
    muster::detail::member_links::generation_links linked;
    links->await_new_links([&](const auto& connected, const auto&) { linked = connected; });
    if (!linked.member_transport->abilities().any_source)
      detail::refuse_transport(linked.member_transport->abilities());
    const auto workers = static_cast<node_id>(launch.size - options.servers - options.standby);
    const auto found =
        store->get(detail::map_key, deadline_after(options.timeout));  // the process may have waited for long
    detail::refuse_difference(*store, difference, found.version != 0, deadline_after(options.timeout));
    const auto serve = [&](node_id node) {
      return node >= workers && node < workers + static_cast<node_id>(options.servers);
    };
    if (found.version == 0 && std::ranges::none_of(linked.orders, serve)) {
      throw elastic::departure(elastic::exit_reason::never_started,
                               "the job did not begin (" + std::to_string(linked.orders.size()) + " of " +
                                   std::to_string(launch.size) + " processes joined, and none is a server)");
    }
    auto first =
        found.version != 0 ? shard_map::decode(found.value) : detail::map_of(options, layout, workers, linked.orders);
    // An invalid map is refused when the process opens it.
    if (!first) first = detail::map_of(options, layout, workers, linked.orders);
    // A process that is started again as a server becomes a worker if no server is missing.
    const bool is_new = self >= static_cast<node_id>(launch.size);
    const bool serves =
        static_cast<node_id>(launch.rank) >= workers && (!is_new || first->servers.size() < first->target_servers);
    auto protocol = detail::protocol_of(options, configuration);
    // The membership detects deaths, and processes that are stopped or cut off. Silence may be due to a slow host.
    protocol.detection_silence = std::max(protocol.detection_silence, protocol.worker_silence / 2);
    const detail::process_setup setup{{self, 1},
                                      options,
                                      protocol,
                                      layout,
                                      ranks.transport(),
                                      store,
                                      detail::map_key,
                                      *first,
                                      links.get(),
                                      &linked,
                                      detail::shared_job_name(*store, deadline_after(options.timeout))};
    if (serves)
      server = std::make_unique<detail::server_process>(setup);
    else
      worker = std::make_unique<detail::worker_process>(setup);
  }
#endif
  implementation(const implementation&) = delete;
  implementation& operator=(const implementation&) = delete;
  ~implementation() {
    if (serving.joinable()) {
      if (!ended) server->stop();
      serving.join();
    }
    if (ended) return;
    const auto reason = "rank " + std::to_string(ranks.rank()) + " has left the parameter server's job";
    ranks.abort(reason);
    for (auto& end : ends) end.abort(reason);
  }

  // This process' worker continues if the other servers have fenced its server: they have its ranges.
  void serve_beside(int rank) {
    set_log_rank(rank);
    try {
      server->serve();
    } catch (const std::exception& failure) {
      log(log_level::warning, std::string("this process' server has ended: ") + failure.what());
    }
  }
  [[nodiscard]] bool is_worker() const {
    return options.colocated || ranks.rank() < ranks.size() - detail::servers_of(options, ranks);
  }
  group checked(group& all) {
    detail::check_ranks(all, options, layout);
    return all.duplicate();
  }

  job_options options;
  settings configuration;
  bool serves_store;
  table_layout layout;
  group ranks;  // all ranks, in an elastic job this process alone; and the ranks with the same role
  group working;
  // In an elastic job. Destroyed after its users. Shared, because its destructor is not available without tcp.
  std::shared_ptr<muster::detail::member_links> links;
  std::vector<group> ends;  // co-located: the connections of the worker and of the server
  std::unique_ptr<detail::server_process> server;
  std::unique_ptr<detail::worker_process> worker;
  bool ended = false;    // the rank has finished regularly
  std::jthread serving;  // co-located
};

MUSTER_INLINE tables_lost::tables_lost(const table_layout& layout, range_id range)
    : peer_failure({},
                   "range " + std::to_string(range) + " of table '" + layout.table_of(range).name +
                       "' is lost (all servers that held it have died); start the job again from the tables that it "
                       "saved last, or run it with more servers and --replicas",
                   status) {}

MUSTER_INLINE job_options chosen_options(const settings& configuration, std::vector<table_spec> tables) {
  job_options options;
  options.tables = std::move(tables);
  options.colocated = configuration.value(setting::servers) == "colocated";
  if (!options.colocated) options.servers = static_cast<int>(configuration.integer(setting::servers));
  options.standby = static_cast<int>(configuration.integer(setting::standby));
  detail::check_remote(configuration, options);
  options.replicas = static_cast<std::uint32_t>(configuration.integer(setting::replicas));
  options.consistency_model = parse_consistency(configuration.value(setting::consistency));
  options.compress = parse_compression(configuration.value(setting::compress));
  options.timeout = seconds(configuration.number(setting::timeout));
  return options;
}

MUSTER_INLINE job::job(group& ranks, const job_options& options, std::shared_ptr<any_store> store)
    : self_(std::make_unique<implementation>(ranks, options, std::move(store), settings())) {}
MUSTER_INLINE job::job(context& ctx, group& ranks, const job_options& options) {
#ifdef MUSTER_HAS_TCP
  if (ctx.elastic()) {
    self_ = std::make_unique<implementation>(ctx, ranks, options);
    return;
  }
#endif
  self_ = std::make_unique<implementation>(ranks, options, detail::store_for(ctx, ranks), ctx.configuration());
}
MUSTER_INLINE job::job(job&&) noexcept = default;
MUSTER_INLINE job::~job() = default;

MUSTER_INLINE bool job::is_server() const noexcept { return self_->worker == nullptr; }
MUSTER_INLINE int job::workers() const noexcept {
  if (self_->links) return static_cast<int>(self_->worker ? self_->worker->core().map().workers.size() : 0);
  return self_->ranks.size() - (self_->options.colocated ? 0 : detail::servers_of(self_->options, self_->ranks));
}
MUSTER_INLINE int job::worker() const noexcept {
  return self_->links && self_->worker ? static_cast<int>(self_->worker->core().self().place) : self_->ranks.rank();
}
MUSTER_INLINE const table_layout& job::layout() const noexcept { return self_->layout; }

MUSTER_INLINE void job::serve(const std::string& folder) {
  if (self_->worker) throw configuration_error("this rank is a worker (it serves nothing itself); use tables()");
  self_->server->save_into(folder);
  self_->server->serve();
  self_->ended = true;
}

MUSTER_INLINE client& job::tables() {
  if (!self_->worker) throw configuration_error("this rank is a server (it has no tables to push to); call serve()");
  return self_->worker->tables;
}

MUSTER_INLINE group job::connect_workers() {
  if (!self_->worker) throw configuration_error("this rank is a server (it is not among the workers); call serve()");
  if (self_->links) {
    throw configuration_error(
        "the workers of an elastic job cannot form a group (workers leave and join); use leases, or --elastic off");
  }
  auto endpoints = muster::detail::connect_endpoints(self_->configuration, self_->working, 1);
  return group(std::move(endpoints.front()), self_->ranks.settings());
}

MUSTER_INLINE void job::finish() {
  if (!self_->worker)
    throw configuration_error("this rank is a server (serve() ends by itself); call finish() at workers");
  self_->worker->finish();
  if (self_->serves_store) self_->worker->serve_until_others_finish();
  self_->ended = true;
  if (self_->serving.joinable()) self_->serving.join();
}

}}}  // namespace muster::v0::ps
