#include <muster/ps/job.hpp>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <sstream>
#include <thread>

#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/bootstrap/memory_store.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/log.hpp>
#include <muster/core/number.hpp>
#include <muster/elastic/departure.hpp>
#include <muster/ps/settings.hpp>

#include "../comm/bootstrap/endpoints.hpp"
#include "../comm/group/words.hpp"
#include "../core/random_bytes.hpp"
#include "job_checks.hpp"
#include "runtime/server_process.hpp"
#include "runtime/worker_process.hpp"

namespace muster { inline namespace v0 { namespace ps {
namespace {

clock::duration span_of(seconds span) { return std::chrono::duration_cast<clock::duration>(span); }

protocol_settings protocol_of(const job_options& options, const settings& chosen) {
  const auto unheard =
      chosen.positive(setting::heartbeat) * static_cast<double>(chosen.integer(setting::missed_heartbeats));
  protocol_settings made{.how = options.how,
                         .retry = span_of(options.retry),
                         .silence = span_of(options.silence.value_or(seconds(1.0))),
                         .worker_silence = span_of(options.timeout),
                         .quorum = span_of(seconds(chosen.positive(setting::quorum_timeout)))};
  made.one_sided = std::max(made.one_sided, span_of(seconds(unheard)));
  return made;
}

// How long a server may be silent where the program gives no time. The end of a process is told by its connections or
// its host: silence is most of all a sign of a process that waits for a processor, or was stopped for a while.
clock::duration patience_with_servers(group& ranks, const job_options& options, const settings& chosen,
                                      const protocol_settings& protocol) {
  if (options.silence) return {};
  const auto hosts = muster::detail::words_of_all(ranks, host_identity(chosen));
  const bool on_one_host = std::ranges::count(hosts, hosts.front()) == std::ssize(hosts);
  return on_one_host ? protocol.worker_silence / 2 : protocol.one_sided;
}

// Under which the job keeps its map: new for every job in a store.
std::string name_of_job(group& ranks) {
  return "ps/" + muster::detail::word_of(ranks, muster::detail::random_token().substr(0, 16), 0);
}

// One for all threads of a process; for processes what the settings and the launcher lead to.
std::shared_ptr<any_store> store_for(context& of, group& ranks) {
  const std::string transport = of.transport_name();
  if (transport != "local" && transport != "self") return open_store(of.configuration(), of.launcher());
  return muster::detail::made_by_first(ranks, [] { return std::make_shared<memory_store>(); });
}

// The map as a job begins: places are ranks of the launch, of which these are there.
shard_map map_of(const job_options& options, const table_layout& layout, node_id workers,
                 std::span<const node_id> there) {
  std::vector<member> working;
  std::vector<server_entry> serving;
  for (const auto at : there) {
    if (at < workers)
      working.push_back({at, 1});
    else if (options.colocated || at < workers + static_cast<node_id>(options.servers))
      serving.push_back({{at, 1}});
  }
  return first_map(serving, working, layout.ranges(), options.replicas);
}

// Servers and hot spares, or as many servers as ranks.
int servers_of(const job_options& options, const group& ranks) {
  return options.colocated ? ranks.size() : options.servers + options.standby;
}

#ifdef MUSTER_HAS_TCP
// What the processes of an elastic job leave in its store.
constexpr const char* map_key = "ps/map";
constexpr const char* options_key = "ps/options";
constexpr const char* places_key = "ps/places";

// Before it does anything there: a process of another program or configuration changes nothing.
void refuse_stranger(any_store& store, const std::string& own, clock::time_point until) {
  const auto left = store.compare_and_swap(options_key, 0, own, until);
  if (left.swapped || left.now.value == own) return;
  std::istringstream mine(own), theirs(left.now.value);
  std::string here, there;
  while (here == there && std::getline(mine, here) && std::getline(theirs, there)) {
  }
  throw mismatch_error("this process cannot join the job at " + store.where() + " (it has " + here +
                       ", and the job has " + there + "); start it with the same program and options");
}

// That of the launch, or one that no process had before where the job has begun.
node_id take_place(any_store& store, const launch_env& launch, clock::time_point until) {
  const bool has_begun = store.get(map_key, until).version != 0;
  const auto size = std::to_string(launch.size);
  auto now = store.compare_and_swap(places_key, 0, size, until).now;
  if (!has_begun) return static_cast<node_id>(launch.rank);
  for (now = store.get(places_key, until);;) {
    const auto place = parse_number<node_id>(now.value).value_or(most_nodes);
    if (place >= most_nodes) {
      throw configuration_error("the job at " + store.where() + " takes no more processes in (" +
                                std::to_string(most_nodes) + " have joined); start it again");
    }
    auto tried = store.compare_and_swap(places_key, now.version, std::to_string(place + 1), until);
    if (tried.swapped) return place;
    now = std::move(tried.now);
  }
}
#endif

}  // namespace

struct job::implementation {
  implementation(group& all, const job_options& given, const std::shared_ptr<any_store>& store, const settings& chosen)
      : options(given),
        configuration(chosen),
        serves_store(store->is_served_here()),
        layout(given.tables, static_cast<std::size_t>(servers_of(given, all))),
        ranks(checked(all)),
        working(ranks.split(is_worker() ? 0 : 1)) {
    // Places are ranks; where every rank has two, those of its server lie behind those of all workers.
    const auto size = static_cast<node_id>(ranks.size());
    const auto self = static_cast<node_id>(ranks.rank());
    const auto workers = options.colocated ? size : size - static_cast<node_id>(servers_of(options, ranks));
    std::vector<node_id> all_places(workers + static_cast<std::size_t>(servers_of(options, ranks)));
    std::iota(all_places.begin(), all_places.end(), node_id{0});
    const std::vector<node_id> can_serve(all_places.begin() + workers, all_places.end());
    const auto first = map_of(options, layout, workers, all_places);
    const auto name = name_of_job(ranks);
    auto protocol = protocol_of(options, configuration);
    protocol.server_silence = patience_with_servers(ranks, options, configuration, protocol);
    const auto seat_of = [&](node_id at, transport& over) {
      return detail::seat{{at, 1}, options, protocol, layout, over, store, name, first};
    };
    if (options.colocated) {
      for (auto& end : muster::detail::connect_endpoints(configuration, ranks, 2))
        ends.emplace_back(std::move(end), ranks.settings());
      worker = std::make_unique<detail::worker_process>(seat_of(self, ends[0].transport()), can_serve);
      server = std::make_unique<detail::server_process>(seat_of(size + self, ends[1].transport()));
      serving = std::jthread([this, rank = log_rank()] { serve_beside(rank); });
    } else if (is_worker()) {
      worker = std::make_unique<detail::worker_process>(seat_of(self, ranks.transport()), can_serve);
    } else {
      server = std::make_unique<detail::server_process>(seat_of(self, ranks.transport()));
    }
  }
#ifdef MUSTER_HAS_TCP
  // Of an elastic job. Its processes are in no group: each is one of its own, and linked to the members of the moment.
  implementation(context& of, group& alone, const job_options& given)
      : options(given),
        configuration(of.configuration()),
        serves_store(false),
        layout(given.tables, static_cast<std::size_t>(given.servers + given.standby)),
        ranks(alone.duplicate()),
        working(alone.duplicate()) {
    const auto& launch = of.launcher();
    detail::check_options(options, launch.size);
    static std::atomic<bool> had_one = false;  // its records stay in the store
    if (had_one.exchange(true))
      throw configuration_error("an elastic job has one parameter server (this is a second); use --elastic off");
    if (options.colocated) {
      throw configuration_error(
          "co-located servers cannot be in an elastic job (a process would join with tables that others have); choose "
          "--servers N, or --elastic off");
    }
    const auto until = deadline_after(options.timeout);
    const std::shared_ptr<any_store> store = open_store(configuration, launch);
    serves_store = store->is_served_here();
    refuse_stranger(*store, detail::description_of(options, layout), until);
    const node_id self = take_place(*store, launch, until);
    links = std::make_shared<muster::detail::member_links>(of, store, self);
    muster::detail::member_links::connected linked;
    links->await([&](const auto& now, const auto&) { linked = now; });
    if (!linked.over->abilities().any_source) detail::refuse_transport(linked.over->abilities());
    const auto workers = static_cast<node_id>(launch.size - options.servers - options.standby);
    const auto found = store->get(map_key, deadline_after(options.timeout));  // it may have waited for long
    const auto serve = [&](node_id at) {
      return at >= workers && at < workers + static_cast<node_id>(options.servers);
    };
    if (found.version == 0 && std::ranges::none_of(linked.orders, serve)) {
      throw elastic::departure(elastic::exit_reason::never_started,
                               "the job did not begin (" + std::to_string(linked.orders.size()) + " of " +
                                   std::to_string(launch.size) + " processes came, and no server is among them)");
    }
    auto first = found.version != 0 ? shard_map::decode(found.value) : map_of(options, layout, workers, linked.orders);
    if (!first) first = map_of(options, layout, workers, linked.orders);  // what is there is refused when it is opened
    // One that is started again as a server works where no server is missing.
    const bool is_new = self >= static_cast<node_id>(launch.size);
    const bool serves =
        static_cast<node_id>(launch.rank) >= workers && (!is_new || first->servers.size() < first->wanted);
    auto protocol = protocol_of(options, configuration);
    // The membership sees deaths, and processes that are stopped or cut off: silence may come of a slow host.
    protocol.silence = std::max(protocol.silence, protocol.worker_silence / 2);
    const detail::seat at{{self, 1}, options, protocol, layout,      ranks.transport(),
                          store,     map_key, *first,   links.get(), &linked};
    if (serves)
      server = std::make_unique<detail::server_process>(at);
    else
      worker = std::make_unique<detail::worker_process>(at);
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
    const auto reason = "rank " + std::to_string(ranks.rank()) + " has left the job of its parameter server";
    ranks.abort(reason);
    for (auto& end : ends) end.abort(reason);
  }

  // The worker of this process goes on when the others have gone on without its server: they have what that had.
  void serve_beside(int rank) {
    set_log_rank(rank);
    try {
      server->serve();
    } catch (const std::exception& failure) {
      log(log_level::warning, std::string("the server of this process has ended: ") + failure.what());
    }
  }
  [[nodiscard]] bool is_worker() const {
    return options.colocated || ranks.rank() < ranks.size() - servers_of(options, ranks);
  }
  group checked(group& all) {
    detail::check_ranks(all, options, layout);
    return all.duplicate();
  }

  job_options options;
  settings configuration;
  bool serves_store;
  table_layout layout;
  group ranks;  // of all, in an elastic job of this process alone; and those that do as this one does
  group working;
  // Of an elastic job: they go after what uses them. Shared, as their destructor is not there without tcp.
  std::shared_ptr<muster::detail::member_links> links;
  std::vector<group> ends;  // co-located: the worker's connections, and the server's
  std::unique_ptr<detail::server_process> server;
  std::unique_ptr<detail::worker_process> worker;
  bool ended = false;    // as it should
  std::jthread serving;  // co-located
};

tables_lost::tables_lost(const table_layout& layout, range_id range)
    : peer_failure({},
                   "range " + std::to_string(range) + " of table '" + layout.table_of(range).name +
                       "' is lost (all servers that held it have died); start the job again from the tables that it "
                       "saved last, or run it with more servers and --replicas",
                   status) {}

job_options chosen_options(const settings& chosen, std::vector<table_spec> tables) {
  job_options made;
  made.tables = std::move(tables);
  made.colocated = chosen.value(setting::servers) == "colocated";
  if (!made.colocated) made.servers = static_cast<int>(chosen.integer(setting::servers));
  made.standby = static_cast<int>(chosen.integer(setting::standby));
  detail::check_remote(chosen, made);
  made.replicas = static_cast<std::uint32_t>(chosen.integer(setting::replicas));
  made.how = parse_consistency(chosen.value(setting::consistency));
  made.compress = parse_compression(chosen.value(setting::compress));
  made.timeout = seconds(chosen.positive(setting::timeout));
  return made;
}

job::job(group& ranks, const job_options& options, std::shared_ptr<any_store> store)
    : self_(std::make_unique<implementation>(ranks, options, std::move(store), settings())) {}
job::job(context& of, group& ranks, const job_options& options) {
#ifdef MUSTER_HAS_TCP
  if (of.elastic()) {
    self_ = std::make_unique<implementation>(of, ranks, options);
    return;
  }
#endif
  self_ = std::make_unique<implementation>(ranks, options, store_for(of, ranks), of.configuration());
}
job::job(job&&) noexcept = default;
job::~job() = default;

bool job::is_server() const noexcept { return self_->worker == nullptr; }
int job::workers() const noexcept {
  if (self_->links) return static_cast<int>(self_->worker ? self_->worker->core().map().workers.size() : 0);
  return self_->ranks.size() - (self_->options.colocated ? 0 : servers_of(self_->options, self_->ranks));
}
int job::worker() const noexcept {
  return self_->links && self_->worker ? static_cast<int>(self_->worker->core().self().at) : self_->ranks.rank();
}
const table_layout& job::layout() const noexcept { return self_->layout; }

void job::serve(const std::string& folder) {
  if (self_->worker)
    throw configuration_error("this rank is a worker (it has nothing to serve by itself); use tables()");
  self_->server->save_into(folder);
  self_->server->serve();
  self_->ended = true;
}

client& job::tables() {
  if (!self_->worker) throw configuration_error("this rank is a server (it has no tables to push to); call serve()");
  return self_->worker->tables;
}

group job::connect_workers() {
  if (!self_->worker) throw configuration_error("this rank is a server (it is not among the workers); call serve()");
  if (self_->links) {
    throw configuration_error(
        "the workers of an elastic job cannot be a group (they leave and join); use leases, or --elastic off");
  }
  auto made = muster::detail::connect_endpoints(self_->configuration, self_->working, 1);
  return group(std::move(made.front()), self_->ranks.settings());
}

void job::finish() {
  if (!self_->worker)
    throw configuration_error("this rank is a server (serve() ends by itself); call finish() at workers");
  self_->worker->finish();
  if (self_->serves_store) self_->worker->see_off();
  self_->ended = true;
  if (self_->serving.joinable()) self_->serving.join();
}

}}}  // namespace muster::v0::ps
