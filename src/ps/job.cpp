#include <muster/ps/job.hpp>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include <muster/comm/bootstrap/memory_store.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>
#include <muster/ps/settings.hpp>

#include "../comm/bootstrap/endpoints.hpp"
#include "runtime/server_process.hpp"
#include "runtime/worker_process.hpp"

namespace muster::inline v0::ps {
namespace {

clock::duration span_of(seconds span) { return std::chrono::duration_cast<clock::duration>(span); }

protocol_settings protocol_of(const job_options& options, const settings& chosen) {
  const auto unheard =
      chosen.positive(setting::heartbeat) * static_cast<double>(chosen.integer(setting::missed_heartbeats));
  protocol_settings made{.how = options.how,
                         .retry = span_of(options.retry),
                         .silence = span_of(options.silence),
                         .worker_silence = span_of(options.timeout)};
  made.one_sided = std::max(made.one_sided, span_of(seconds(unheard)));
  return made;
}

std::uint64_t digest_of(const job_options& options, const table_layout& layout) {
  return digest()
      .add(layout.digest())
      .add(static_cast<std::uint64_t>(options.servers))
      .add(static_cast<std::uint64_t>(options.standby))
      .add(std::uint64_t{options.colocated})
      .add(std::uint64_t{options.replicas})
      .add(to_string(options.how))
      .add(to_string(options.compress))
      .value();
}

// Whether pushes to these tables can be encoded so.
void check(const compression& how, const std::vector<table_spec>& tables) {
  if (how.method == compression_method::powersgd) {
    throw configuration_error("--compress " + to_string(how) +
                              " cannot be used with a parameter server (its matrices are multiplied by all ranks "
                              "together); use another method");
  }
  if (!any_codec(how).is_biased()) return;
  for (const auto& one : tables) {
    if (one.size != 0 || one.leases) continue;
    throw configuration_error(
        "--compress " + to_string(how) + " cannot be used with the sparse table '" + one.name +
        "' (sparse tables have no residuals for what the codec leaves out); use float16, bfloat16 or qsgd8");
  }
}

void check(group& ranks, const job_options& options, const table_layout& layout) {
  check(options.compress, options.tables);
  const bool nobody_works = options.servers + options.standby >= ranks.size();
  if (!options.colocated && (options.servers < 1 || options.standby < 0 || nobody_works)) {
    throw configuration_error("of " + std::to_string(ranks.size()) + " ranks " +
                              std::to_string(options.servers + options.standby) +
                              " cannot serve (at least one rank serves and one works); " +
                              (ranks.size() < 2 ? "start two ranks or more"
                                                : "choose --servers from 1 to " + std::to_string(ranks.size() - 1)));
  }
  if (!ranks.abilities().any_source) {
    throw configuration_error("transport " + std::string(ranks.abilities().name) +
                              " cannot carry a parameter server (it has no receives from any source); use shm, tcp, "
                              "local or mpi");
  }
  const std::uint64_t mine[] = {digest_of(options, layout)};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(ranks.size()));
  allgather(ranks, mine, all);
  const auto other = std::ranges::find_if(all, [&](std::uint64_t its) { return its != all[0]; });
  if (other == all.end()) return;
  throw mismatch_error("ranks 0 and " + std::to_string(other - all.begin()) +
                       " were given different tables, servers, replicas, consistency or compression (all ranks must "
                       "have the same); start all with the same options");
}

void check_remote(const settings& chosen, const job_options& options) {
  const auto remote = chosen.integer(setting::remote_servers);
  if (remote == 0 || (!options.colocated && remote <= options.servers + options.standby)) return;
  throw configuration_error(chosen.origin(setting::remote_servers) + " is " + std::to_string(remote) + " (" +
                            (options.colocated ? "co-located servers are in the processes of the workers"
                                               : "there are fewer servers and hot spares") +
                            "); choose --servers " + std::to_string(remote));
}

// Under which the job keeps its map: new for every job in a store.
std::string name_of_job(group& ranks) {
  std::uint64_t number[] = {0};
  if (ranks.rank() == 0) number[0] = (std::uint64_t{std::random_device()()} << 32) ^ std::random_device()();
  broadcast(ranks, std::span(number), 0);
  return "ps/" + std::to_string(number[0]);
}

// One for all threads of a process; for processes what the settings and the launcher lead to.
std::shared_ptr<any_store> store_for(context& of, group& ranks) {
  if (of.elastic()) {
    throw configuration_error(of.configuration().origin(setting::elastic) +
                              " makes an elastic job, which cannot have a parameter server (its ranks connect once); "
                              "start it with muster-launch --elastic off, or by mpirun");
  }
  const std::string transport = of.transport_name();
  if (transport != "local" && transport != "self") return open_store(of.configuration(), of.launcher());
  std::shared_ptr<any_store> store;
  std::uint64_t where[] = {0};
  if (ranks.rank() == 0) {
    store = std::make_shared<memory_store>();
    where[0] = reinterpret_cast<std::uint64_t>(&store);
  }
  broadcast(ranks, std::span(where), 0);
  if (ranks.rank() != 0) store = *reinterpret_cast<const std::shared_ptr<any_store>*>(where[0]);
  barrier(ranks);  // rank 0's stays until all have theirs
  return store;
}

// Servers and hot spares, or as many servers as ranks.
int servers_of(const job_options& options, const group& ranks) {
  return options.colocated ? ranks.size() : options.servers + options.standby;
}

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
    std::vector<member> working_ones;
    for (node_id at = 0; at < workers; ++at) working_ones.push_back({at, 1});
    std::vector<node_id> can_serve(static_cast<std::size_t>(servers_of(options, ranks)));
    std::iota(can_serve.begin(), can_serve.end(), workers);
    std::vector<server_entry> serving_ones;
    for (const auto at : can_serve) serving_ones.push_back({{at, 1}});
    if (!options.colocated) serving_ones.resize(static_cast<std::size_t>(options.servers));
    const auto first = first_map(serving_ones, working_ones, layout.ranges(), options.replicas);
    const auto name = name_of_job(ranks);
    const auto protocol = protocol_of(options, configuration);
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
    check(all, options, layout);
    return all.duplicate();
  }

  job_options options;
  settings configuration;
  bool serves_store;
  table_layout layout;
  group ranks;
  group working;            // of those that do as this one does
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
  check_remote(chosen, made);
  made.replicas = static_cast<std::uint32_t>(chosen.integer(setting::replicas));
  made.how = parse_consistency(chosen.value(setting::consistency));
  made.compress = parse_compression(chosen.value(setting::compress));
  made.timeout = seconds(chosen.positive(setting::timeout));
  return made;
}

job::job(group& ranks, const job_options& options, std::shared_ptr<any_store> store)
    : self_(std::make_unique<implementation>(ranks, options, std::move(store), settings())) {}
job::job(context& of, group& ranks, const job_options& options)
    : self_(std::make_unique<implementation>(ranks, options, store_for(of, ranks), of.configuration())) {}
job::job(job&&) noexcept = default;
job::~job() = default;

bool job::is_server() const noexcept { return self_->worker == nullptr; }
int job::workers() const noexcept {
  return self_->ranks.size() - (self_->options.colocated ? 0 : servers_of(self_->options, self_->ranks));
}
int job::worker() const noexcept { return self_->ranks.rank(); }
const table_layout& job::layout() const noexcept { return self_->layout; }

void job::serve() {
  if (self_->worker)
    throw configuration_error("this rank is a worker (it has nothing to serve by itself); use tables()");
  self_->server->serve();
  self_->ended = true;
}

client& job::tables() {
  if (!self_->worker) throw configuration_error("this rank is a server (it has no tables to push to); call serve()");
  return self_->worker->tables;
}

group job::connect_workers() {
  if (!self_->worker) throw configuration_error("this rank is a server (it is not among the workers); call serve()");
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

}  // namespace muster::inline v0::ps
