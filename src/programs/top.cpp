#include "top.hpp"

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>

#ifndef MUSTER_HAS_TCP

int watch_job(int /*argc*/, char** /*argv*/, const char* /*usage*/) {
  throw muster::configuration_error(
      "top cannot contact a job (this muster was built without tcp); build it with MUSTER_TCP=ON");
}

#else

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/clock.hpp>

#include <muster/comm/bootstrap/stores/tcp/store_file.hpp>
#include <muster/comm/net/socket.hpp>
#include <muster/core/text.hpp>
#include <muster/elastic/job_member.hpp>
#include <muster/elastic/membership/datagrams.hpp>
#include <muster/elastic/membership/record.hpp>
#include "print.hpp"

namespace {

using muster::clock;
using muster::detail::store_presence;
using muster::elastic::heartbeat;
using muster::elastic::member_id;

constexpr std::chrono::seconds interval{1};
constexpr std::chrono::milliseconds patience{500};  // Timeout for a rank's answer.

[[noreturn]] void refuse(const std::string& text) { throw muster::configuration_error("top " + text); }

// The state of a job in its store.
struct job {
  std::string name;
  std::string token;
  muster::elastic::generation_record record;
};

// Returns the store file of the job, among the files that this user's running stores have in the folder.
std::string store_file_in(const std::string& folder, const muster::settings& configuration) {
  const auto& asked = configuration.value(muster::setting::job);
  const auto prefix = muster::detail::store_name("");
  std::vector<std::string> found;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(folder, failed), end; at != end; at.increment(failed)) {
    const auto name = at->path().filename().string();
    if (!name.starts_with(prefix) || (asked != "auto" && name != muster::detail::store_name(asked))) continue;
    try {
      const auto place = muster::detail::read_store_file(at->path());
      if (muster::detail::probe_store(place) == store_presence::serves) found.push_back(name.substr(prefix.size()));
    } catch (const muster::detail::socket_error&) {  // The file belongs to another user, or does not exist.
    }
  }
  if (found.size() == 1) return folder + "/" + prefix + found.front();
  if (found.empty()) {
    refuse("finds no running job" + (asked == "auto" ? "" : " '" + asked + "'") +
           " (no store of this user is named in " + folder +
           "); for a store elsewhere, set --rendezvous to the address of its ranks");
  }
  std::ranges::sort(found);
  refuse("finds " + std::to_string(found.size()) + " running jobs (" + muster::detail::joined(found, ", ") +
         "); choose a job by --job NAME");
}

// Reads the job's state. The store is open only for a moment: a job that restarts must see that all members have left.
job read_job(const muster::settings& configuration) {
  const auto& place = configuration.value(muster::setting::rendezvous);
  const auto until = muster::deadline_after(std::chrono::seconds(3));
  job found;
  found.token = configuration.value(muster::setting::token);
  std::unique_ptr<muster::any_store> store;
  if (place.starts_with("tcp://")) {
    store = std::make_unique<muster::tcp_store>(place.substr(6), found.token == "auto" ? "" : found.token, until);
    found.name = configuration.value(muster::setting::job);
    if (found.name == "auto")
      found.name = place;
    else
      store = muster::detail::of_job(std::move(store), found.name);
  } else if (place.starts_with("etcd")) {
    store = muster::open_store(configuration, muster::launch_env{}, muster::store_role::onlooker);
    found.name = configuration.value(muster::setting::job);
  } else {
    const auto file =
        store_file_in(place.starts_with("file:/") ? place.substr(5) : muster::temporary_folder(), configuration);
    store = std::make_unique<muster::tcp_store>(std::string(muster::detail::store_file_scheme) + file, "", until);
    found.name = std::filesystem::path(file).filename().string().substr(muster::detail::store_name("").size());
    if (!store->get("elastic/record", until)) store = muster::detail::of_job(std::move(store), found.name);
    if (const auto drawn = store->get("token", until)) {
      found.token = drawn.value;
    } else if (found.token == "auto") {
      found.token = muster::detail::read_store_file(file).token;  // muster-launch passes the same token to its ranks.
    }
  }
  if (found.token == "auto") found.token = store->get("token", until).value;
  const auto record = store->get("elastic/record", until);
  if (record) found.record = muster::elastic::generation_record::decode(record.value);
  if (found.record.members.empty()) {
    refuse("finds no group in the job at " + store->where() +
           " (the job is not elastic, has not begun, or has a name); wait, or choose it by --job NAME");
  }
  return found;
}

// The replies of the members, and the time of the request.
struct answers {
  clock::time_point at;
  std::map<member_id, heartbeat> of;
};

answers ask(const job& of) {
  muster::detail::datagram_socket words("auto", "muster-info", of.token);
  std::vector<muster::detail::address> places;
  for (const auto& member : of.record.members) {
    const auto addresses = words.parse_endpoints(member.datagram_endpoints, false);
    places.insert(places.end(), addresses.begin(), addresses.end());
  }
  answers received{.at = clock::now(), .of = {}};
  words.send(heartbeat{}.encode(), places);
  const auto until = muster::deadline_after(patience);
  while (received.of.size() < of.record.members.size() && muster::detail::wait_for(words.file(), POLLIN, until)) {
    for (std::size_t most = 65536; const auto text = words.receive(most);) {
      if (auto answer = heartbeat::decode(*text); answer && of.record.rank_of(answer->sender))
        received.of[answer->sender] = *answer;
    }
  }
  return received;
}

// Rounds to three digits.
double rounded(double value) { return std::strtod(muster::detail::printed("%.3g", value).c_str(), nullptr); }

json describe(const job& of, const answers& before, const answers& now) {
  json ranks = json::array();
  std::uint64_t furthest = 0;
  for (const auto& member : of.record.members) {
    const auto earlier = before.of.find(member.id);
    const auto found = now.of.find(member.id);
    const auto answer = found == now.of.end() ? heartbeat() : found->second;
    json row = {{"rank", ranks.size()},          {"process", member.process.process},
                {"answers", answer.sender != 0}, {"steps_per_second", nullptr},
                {"own_step_ms", nullptr},        {"links", json::array()}};
    furthest = std::max(furthest, answer.steps);
    if (earlier != before.of.end() && answer.steps >= earlier->second.steps) {
      const auto steps = static_cast<double>(answer.steps - earlier->second.steps);
      row["steps_per_second"] = rounded(steps / muster::seconds(now.at - before.at).count());
    }
    if (answer.own_step_microseconds > 0)
      row["own_step_ms"] = rounded(1e-3 * static_cast<double>(answer.own_step_microseconds));
    for (const auto& link : answer.links) {
      const auto peer = of.record.rank_of(link.peer);
      if (!peer) continue;
      row["links"].push_back({{"to", *peer},
                              {"megabytes_per_second", rounded(1e-6 * static_cast<double>(link.rate))},
                              {"round_trip_ms", rounded(1e-3 * static_cast<double>(link.latency))}});
    }
    ranks.push_back(std::move(row));
  }
  return {{"job", of.name},
          {"generation", of.record.generation},
          {"step", furthest},
          {"waiting", of.record.waiting.size()},
          {"ranks", std::move(ranks)}};
}

// Prints this host's ranks only. Returns 0 if these ranks reply, otherwise `top_none_here` or `top_silent`.
int show_ranks_of_host(const job& of, std::uint64_t host, bool as_json) {
  const auto now = ask(of);
  auto all = describe(of, {}, now);
  json own = json::array();
  int status = top_none_here;
  for (std::size_t rank = 0; rank < of.record.members.size(); ++rank) {
    if (of.record.members[rank].host != host) continue;
    if (status != top_silent) status = now.of.contains(of.record.members[rank].id) ? 0 : top_silent;
    own.push_back(all["ranks"][rank]);
  }
  all["ranks"] = std::move(own);
  show(all, as_json);
  return status;
}

}  // namespace

int watch_job(int argc, char** argv, const char* usage) {
  const muster::settings configuration(argc, argv);
  if (const auto text = muster::output_for(configuration.requested(), usage); !text.empty()) {
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  bool as_json = false;
  bool here = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i]);
    if (word != "--json" && word != "--here") throw muster::unknown_argument(argv[i], {"--json", "--here"});
    (word == "--json" ? as_json : here) = true;
  }
  auto found = read_job(configuration);
  if (here) return show_ranks_of_host(found, muster::detail::host_number(configuration), as_json);
  const bool again = !as_json && ::isatty(STDOUT_FILENO) != 0;
  auto before = ask(found);
  for (;;) {
    std::this_thread::sleep_until(before.at + interval);
    auto now = ask(found);
    if (again) std::fputs("\x1b[H\x1b[J", stdout);
    show(describe(found, before, now), as_json);
    if (!again) return 0;
    std::fflush(stdout);
    before = std::move(now);
    try {
      found = read_job(configuration);
    } catch (const muster::error&) {
      std::printf("the job has ended\n");
      return 0;
    }
  }
}

#endif
