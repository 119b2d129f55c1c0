#include <muster/core/env.hpp>

#include <unistd.h>

#include <cstdlib>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

namespace muster::inline v0 {
namespace {

constexpr number_range<double> from(double low, double high) { return {low, high}; }
constexpr auto some_ranks = from(1, most_ranks);
constexpr auto some_seconds = from(0.001, 1e8);  // from a millisecond to three years: no clock overflows

constexpr std::array<setting_info, static_cast<std::size_t>(setting::count_)> known_settings = {{
    {setting::transport, "transport", "MUSTER_TRANSPORT", "NAME", "auto",
     "how ranks talk: auto, self, local (ranks as threads), shm (processes of one host), mpi, tcp, hierarchical (shm "
     "within a host)"},
    {setting::between, "between", "MUSTER_BETWEEN", "NAME", "auto",
     "hierarchical: what joins the hosts: mpi, tcp, auto (mpi where the launcher speaks it)"},
    {setting::ranks, "ranks", "MUSTER_RANKS", "N", "1", "ranks as threads of this process, when no launcher started it",
     some_ranks},
    {setting::job, "job", "MUSTER_JOB", "NAME", "auto",
     "under which the processes of a host find each other; auto: what the launcher calls this start"},
    {setting::rendezvous, "rendezvous", "MUSTER_RENDEZVOUS", "PLACE", "auto",
     "where the ranks find each other: auto, tcp://host:port, etcd://host:port, file:/folder"},
    {setting::token, "token", "MUSTER_TOKEN", "SECRET", "auto",
     "by which ranks know each other; a flag shows in ps, a variable does not; auto: drawn at the start"},
    {setting::host, "host", "MUSTER_HOST", "NAME", "auto",
     "ranks of one name count as on one host; auto: what the system says"},
    {setting::algorithm, "algorithm", "MUSTER_ALGORITHM", "RULES", "auto",
     "auto, ring, tree, chain, recursive_doubling, halving_doubling, direct, native, where a collective has it; or "
     "collective:low-high:algorithm, ..."},
    {setting::profile, "profile", "MUSTER_PROFILE", "FILE", "none",
     "choose by what muster-info --calibrate --save FILE measured"},
    {setting::timeout, "timeout", "MUSTER_TIMEOUT", "SECONDS", "30", "deadline of every collective", some_seconds,
     true},
    {setting::check, "check", "MUSTER_CHECK", "WHEN", "auto",
     "auto, or full: compare the arguments of all ranks before each native collective too"},
    {setting::progress, "progress", "MUSTER_PROGRESS", "WHEN", "auto",
     "a thread that moves asynchronous collectives on: on, off, auto (on where cores are left over)"},
    {setting::cma, "cma", "MUSTER_CMA", "WHEN", "auto",
     "shm: a broadcast reads its root's private memory through the system: on, off, auto (to 1 MiB)"},
    {setting::pin, "pin", "MUSTER_PIN", "WHEN", "off", "on or off: bind each rank of a host to a core of its own"},
    {setting::interface, "interface", "MUSTER_INTERFACE", "NAMES", "auto",
     "tcp: where this rank is reached, by interfaces, subnets or addresses: eth0,10.0.0.0/8; auto: the loopback on one "
     "host, else all"},
    {setting::connections, "connections", "MUSTER_CONNECTIONS", "WHEN", "all",
     "tcp: all, before the first collective; or lazy, each when it is first needed"},
    {setting::streams, "streams", "MUSTER_STREAMS", "N", "1", "tcp: connections for data between two ranks",
     from(1, 64)},
    {setting::heartbeat, "heartbeat", "MUSTER_HEARTBEAT", "SECONDS", "0.1", "tcp: from one sign of life to the next",
     from(0.001, 3600), true},
    {setting::missed_beats, "missed-beats", "MUSTER_MISSED_BEATS", "N", "5",
     "tcp: signs of life that fail to come before a rank counts as lost", from(2, 1000000)},
    {setting::checksum, "checksum", "MUSTER_CHECKSUM", "WHEN", "off",
     "tcp: on or off: a checksum of all data, where that of the network is not enough"},
    {setting::optimizer, "optimizer", "MUSTER_OPTIMIZER", "NAME", "sgd",
     "of programs that train: sgd, momentum:M, nesterov:M, adam, adamw, lars[:M], adagrad; ,decay=D and more behind "
     "it"},
    {setting::compress, "compress", "MUSTER_COMPRESS", "CODEC", "none",
     "of gradients: none, float16, bfloat16, qsgd8, sign, topk:SHARE, randomk:SHARE, blockk:SHARE, powersgd:RANK"},
    {setting::elastic, "elastic", "MUSTER_ELASTIC", "WHEN", "off",
     "on or off: ranks may die and join; the program trains in muster::elastic::session"},
    {setting::min_ranks, "min-ranks", "MUSTER_MIN_RANKS", "N", "1", "elastic: with fewer ranks the job waits for more",
     some_ranks},
    {setting::max_ranks, "max-ranks", "MUSTER_MAX_RANKS", "N", "4096", "elastic: more are not taken in", some_ranks},
    {setting::patience, "patience", "MUSTER_PATIENCE", "SECONDS", "30",
     "elastic: how long to wait for enough ranks, or for a majority of them", some_seconds, true},
    {setting::slow_ranks, "slow-ranks", "MUSTER_SLOW_RANKS", "WHAT", "report",
     "elastic: ranks that take much longer for their part of a step: ignore, report, or remove them"},
    {setting::slow_factor, "slow-factor", "MUSTER_SLOW_FACTOR", "K", "3",
     "elastic: slow is who takes longer than K times what the median rank takes", from(1, 1000000), true},
    {setting::slow_steps, "slow-steps", "MUSTER_SLOW_STEPS", "N", "20", "elastic: and does so in each of N steps",
     from(1, 100000)},
    {setting::mode, "mode", "MUSTER_MODE", "NAME", "allreduce",
     "what ranks exchange in training: allreduce (gradients), allreduce-weights, local-sgd[:STEPS], "
     "gossip[:ring|:torus|:exponential], ps (a parameter server)"},
    {setting::servers, "servers", "MUSTER_SERVERS", "N", "1",
     "ps: how many ranks serve, the last ones; the others work; colocated: every rank does both", from(1, 65536), false,
     "colocated"},
    {setting::standby, "standby", "MUSTER_STANDBY", "N", "0",
     "ps: how many ranks behind them stand by, to serve when one has died or the program wants more", from(0, 65536)},
    {setting::remote_servers, "remote-servers", "MUSTER_REMOTE_SERVERS", "N", "0",
     "ps: so many of those that serve or stand by are started on their own, with --role server; all meet at "
     "--rendezvous",
     from(0, most_ranks)},
    {setting::role, "role", "MUSTER_ROLE", "NAME", "auto",
     "ps: server: this process was started on its own, and serves a job that waits for it (--remote-servers); auto: "
     "what "
     "its rank is"},
    {setting::replicas, "replicas", "MUSTER_REPLICAS", "N", "1",
     "ps: copies of all parameters beyond the first, where there are as many servers: so many may die at once",
     from(0, 16)},
    {setting::consistency, "consistency", "MUSTER_CONSISTENCY", "NAME", "async",
     "ps: how far workers may be apart: async, bounded:CLOCKS, bulk; ,drop=UPDATES or ,damp=UPDATES behind it"},
    {setting::trace, "trace", "MUSTER_TRACE", "FILE", "none",
     "write a timeline of phases, buckets and collectives of all ranks there"},
    {setting::log_level, "log-level", "MUSTER_LOG_LEVEL", "LEVEL", "warning", "debug, info, warning, error, off"},
    {setting::log_ranks, "log-ranks", "MUSTER_LOG_RANKS", "WHO", "0", "0 or all: which ranks may log"},
}};

void warn_of_unknown_variables() {
  std::vector<std::string> known;
  known.reserve(known_settings.size());
  for (const auto& row : known_settings) known.emplace_back(row.variable);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("MUSTER_") || name.starts_with("MUSTER_TEST_")) continue;
    bool found = false;
    for (const auto& variable : known) found = found || variable == name;
    if (found) continue;
    const auto meant = closest(name, known);
    log(log_level::warning,
        "unknown variable " + name + " is ignored" + (meant ? "; did you mean " + *meant + "?" : ""));
  }
}

}  // namespace

const std::array<setting_info, static_cast<std::size_t>(setting::count_)>& setting_table() noexcept {
  return known_settings;
}

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

settings::settings() {
  for (std::size_t i = 0; i < known_settings.size(); ++i) {
    entries_[i].value = known_settings[i].fallback;
    if (auto value = environment(std::string(known_settings[i].variable).c_str())) {
      entries_[i] = {std::move(*value), source::variable};
    }
  }
  warn_of_unknown_variables();
}

settings::settings(int& argc, char** argv) : settings() {
  int kept = argc > 0 ? 1 : 0;
  bool ours = true;
  for (int i = kept; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    if (argument == "--") ours = false;
    const setting_info* row = nullptr;
    for (const auto& candidate : known_settings) {
      if (!ours || !argument.starts_with("--")) break;
      const std::string_view name = argument.substr(2, argument.find('=') - 2);
      if (name == candidate.name) row = &candidate;
    }
    if (row == nullptr) {
      argv[kept++] = argv[i];
      continue;
    }
    auto& chosen = entries_[static_cast<std::size_t>(row->id)];
    chosen.from = source::flag;
    if (const auto equals = argument.find('='); equals != std::string_view::npos) {
      chosen.value = argument.substr(equals + 1);
    } else if (i + 1 < argc) {
      chosen.value = argv[++i];
    } else {
      throw configuration_error("--" + std::string(row->name) +
                                " needs a value (it is the last word of the command line)"
                                ": write --" +
                                std::string(row->name) + " " + std::string(row->placeholder));
    }
  }
  argc = kept;
  argv[argc] = nullptr;
}

const std::string& settings::value(setting which) const { return at(which).value; }
bool settings::is_default(setting which) const { return at(which).from == source::fallback; }

std::string settings::origin(setting which) const {
  const auto& row = known_settings[static_cast<std::size_t>(which)];
  switch (at(which).from) {
    case source::flag:
      return "--" + std::string(row.name);
    case source::variable:
      return std::string(row.variable);
    case source::fallback:
      break;
  }
  return "default";
}

long settings::integer(setting which) const {
  const auto& range = known_settings[static_cast<std::size_t>(which)].numbers;
  return number_from<long>(origin(which), value(which), {static_cast<long>(range.low), static_cast<long>(range.high)});
}

double settings::positive(setting which) const {
  return number_from(origin(which), value(which), known_settings[static_cast<std::size_t>(which)].numbers);
}

void settings::check_numbers() const {
  for (const auto& row : known_settings) {
    if (row.numbers.high == 0 || (!row.word.empty() && value(row.id) == row.word)) continue;
    (void)(row.fractions ? positive(row.id) : static_cast<double>(integer(row.id)));
  }
}

std::size_t settings::choice(setting which, const std::vector<std::string>& choices) const {
  std::string list;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == value(which)) return i;
    list += (i > 0 ? ", " : "") + choices[i];
  }
  const auto meant = closest(value(which), choices);
  throw configuration_error(origin(which) + " cannot be '" + value(which) + "' (known: " + list + ")" +
                            (meant ? "; did you mean " + *meant + "?" : "; choose one of these"));
}

std::string settings_help() {
  std::string text;
  for (const auto& row : known_settings) {
    std::string left = "  --" + std::string(row.name) + " " + std::string(row.placeholder);
    left.resize(std::max<std::size_t>(left.size() + 1, 26), ' ');
    const auto range = row.numbers.high == 0 ? "" : " (" + to_string(row.numbers) + ")";
    text += left + std::string(row.help) + range + " [" + std::string(row.fallback) + ", " + std::string(row.variable) +
            "]\n";
  }
  return text;
}

}  // namespace muster::inline v0
