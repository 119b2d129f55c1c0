#include <muster/comm/etcd/store.hpp>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <muster/comm/rendezvous/open_store.hpp>

#include "base64.hpp"
#include "client.hpp"

namespace muster::inline v0 {
namespace {

using detail::etcd_client;
using detail::number_in;
using detail::to_base64;
using nlohmann::json;
using lost = etcd_client::when_lost;

// By this the others see that somebody has the store open.
constexpr seconds presence_ttl{10.0};
constexpr std::chrono::milliseconds keeper_turn{50};

// The first key behind all that begin with it.
std::string end_of(std::string prefix) {
  ++prefix.back();
  return prefix;
}

struct kept_lease {
  seconds ttl{};
  clock::time_point good_until{};
  clock::time_point next{};
  bool held = true;
};

}  // namespace

struct etcd_store::implementation {
  implementation(std::string_view endpoints, std::string_view scheme, std::string_view name, clock::time_point until)
      : client(endpoints, scheme), prefix("muster/" + std::string(name) + "/") {
    come_in(until);
    keeper = std::jthread([this](const std::stop_token& stop) { keep(stop); });
  }

  ~implementation() {
    for (auto* const thread : {&keeper, &listener}) {
      thread->request_stop();
      if (thread->joinable()) thread->join();
    }
    leave();
  }

  [[nodiscard]] std::string key_of(std::string_view key) const { return prefix + "k/" + std::string(key); }
  [[nodiscard]] json whole(const std::string& part) const {
    return {{"key", to_base64(prefix + part)}, {"range_end", to_base64(end_of(prefix + part))}};
  }
  // True of a range without keys.
  [[nodiscard]] json is_empty(const std::string& part) const {
    auto condition = whole(part);
    condition.update({{"target", "CREATE"}, {"result", "EQUAL"}, {"create_revision", "0"}});
    return condition;
  }

  // ---- being there ----
  // In one transaction: who finds nobody clears what lies here.
  void come_in(clock::time_point until) {
    presence = begin_lease(presence_ttl, until);
    const auto mine = prefix + "p/" + std::to_string(presence);
    const json here = {{"request_put", {{"key", to_base64(mine)}, {"value", ""}, {"lease", std::to_string(presence)}}}};
    const auto said = client.ask("open", {}, "/v3/kv/txn",
                                 {{"compare", json::array({is_empty("p/")})},
                                  {"success", json::array({{{"request_delete_range", whole("k/")}}, here})},
                                  {"failure", json::array({here})}},
                                 until, lost::again);
    heard = number_in(said.at("header"), "revision");
  }
  void leave() noexcept {
    try {
      const auto until = deadline_after(seconds(1.0));
      for (const auto& [id, lease] : leases) end_lease(id, until);
      const json clear = {{"compare", json::array({is_empty("p/")})},
                          {"success", json::array({{{"request_delete_range", whole("k/")}}})}};
      (void)client.ask("close", {}, "/v3/kv/txn", clear, until, lost::again);
    } catch (...) {  // then they end by themselves, and the next that opens it clears it
    }
  }

  // ---- leases ----
  std::uint64_t begin_lease(seconds ttl, clock::time_point until) {
    const auto asked = clock::now();
    const auto whole_seconds = static_cast<std::uint64_t>(std::ceil(ttl.count()));
    const auto said = client.ask("lease", {}, "/v3/lease/grant", {{"TTL", std::to_string(whole_seconds)}}, until,
                                 lost::again);  // one that nobody knows of ends by itself
    const auto id = number_in(said, "ID");
    const std::lock_guard held(mutex);
    leases[id] = {ttl, asked + span_of(ttl), asked + span_of(ttl / 4), true};
    return id;
  }
  static clock::duration span_of(seconds ttl) { return std::chrono::duration_cast<clock::duration>(ttl); }

  void end_lease(std::uint64_t id, clock::time_point until) {
    try {
      (void)client.ask("lease", {}, "/v3/lease/revoke", {{"ID", std::to_string(id)}}, until, lost::again);
    } catch (const store_lease_ended&) {  // all the better
    }
  }

  void keep(const std::stop_token& stop) {
    std::unique_lock held(mutex);
    while (!stop.stop_requested()) {
      (void)turn.wait_for(held, stop, keeper_turn, [] { return false; });
      const auto now = clock::now();
      std::vector<std::uint64_t> due;
      for (const auto& [id, lease] : leases) {
        if (lease.held && now >= lease.next) due.push_back(id);
      }
      held.unlock();
      for (const auto id : due) keep_one(id);
      held.lock();
    }
  }
  void keep_one(std::uint64_t id) {
    const auto asked = clock::now();
    bool lives = true;
    bool answered = false;
    try {
      const auto said = client.ask("lease", {}, "/v3/lease/keepalive", {{"ID", std::to_string(id)}},
                                   deadline_after(seconds(1.0)), lost::give_up);
      answered = true;
      const auto result = said.find("result");
      lives = result != said.end() && number_in(*result, "TTL") > 0;
    } catch (const store_lease_ended&) {
      lives = false;
    } catch (const error&) {  // not now
    }
    const std::lock_guard held(mutex);
    const auto found = leases.find(id);
    if (found == leases.end()) return;
    auto& lease = found->second;
    lease.held = lease.held && lives;
    lease.next = asked + span_of(lease.ttl / 4);
    if (answered && lives) lease.good_until = asked + span_of(lease.ttl);
  }
  [[nodiscard]] bool is_held(std::uint64_t id) {
    const std::lock_guard held(mutex);
    const auto found = leases.find(id);
    return found != leases.end() && found->second.held && clock::now() < found->second.good_until;
  }

  // ---- keys ----
  struct seen {
    store_entry entry;
    std::uint64_t revision = 0;  // of the whole store, when it was looked at
  };
  seen look(const char* call, std::string_view key, clock::time_point until) {
    const auto said = client.ask(call, key, "/v3/kv/range", {{"key", to_base64(key_of(key))}}, until, lost::again);
    return {first_of(said), number_in(said.at("header"), "revision")};
  }
  static store_entry first_of(const json& range) {
    const auto pairs = range.find("kvs");
    return pairs == range.end() || pairs->empty() ? store_entry{} : detail::entry_in(pairs->front());
  }

  // ---- changes ----
  // A call that waits for changes of a key: from before it looks at the key, so that it misses none.
  struct watcher {
    watcher(implementation& store, std::string_view key) : in(store), place(store.key_of(key)) {
      const std::lock_guard held(in.mutex);
      in.watchers.push_back(this);
      if (!in.listener.joinable()) in.listener = std::jthread([&to = in](const std::stop_token& s) { to.listen(s); });
    }
    watcher(const watcher&) = delete;
    watcher& operator=(const watcher&) = delete;
    ~watcher() {
      const std::lock_guard held(in.mutex);
      std::erase(in.watchers, this);
    }
    // Whether it may have changed since the store was at that revision; false at the deadline.
    [[nodiscard]] bool await(std::uint64_t seen, clock::time_point until) {
      std::unique_lock held(in.mutex);
      return in.changed.wait_until(held, until, [&] { return revision > seen; });
    }

    implementation& in;
    std::string place;
    std::uint64_t revision = 0;  // of the last change; with the mutex
  };

  // Hears of all changes since this opened the store.
  void listen(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      try {
        client.follow(whole("k/"), heard + 1, stop, [this](std::string_view line) { hear(line); });
      } catch (const std::exception&) {  // no memory: again, as after a connection that broke
      }
      std::unique_lock held(mutex);
      (void)turn.wait_for(held, stop, keeper_turn, [] { return false; });
    }
  }
  void hear(std::string_view line) {
    const auto said = json::parse(line, nullptr, false);
    const auto result = said.is_object() ? said.find("result") : said.end();
    if (!said.is_object() || result == said.end()) return;
    const std::lock_guard held(mutex);
    // The etcd has forgotten what came up to there (it was compacted): who looked before that looks again.
    if (const auto compacted = number_in(*result, "compact_revision"); compacted > heard) {
      heard = compacted - 1;
      for (auto* const one : watchers) one->revision = std::max(one->revision, compacted);
    }
    for (const auto& change : result->value("events", json::array())) {
      const auto& pair = change.at("kv");
      heard = number_in(pair, "mod_revision");
      const auto place = detail::from_base64(pair.value("key", std::string()));
      for (auto* const one : watchers) {
        if (one->place == place) one->revision = heard;
      }
    }
    changed.notify_all();
  }

  etcd_client client;
  std::string prefix;
  std::uint64_t presence = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::condition_variable_any turn;
  std::map<std::uint64_t, kept_lease> leases;
  std::vector<watcher*> watchers;
  std::uint64_t heard = 0;  // the revision up to which changes were heard; the listener's
  std::jthread keeper;
  std::jthread listener;  // from the first watch on
};

etcd_store::etcd_store(std::string_view endpoints, std::string_view scheme, std::string_view name,
                       clock::time_point until)
    : self_(std::make_shared<implementation>(endpoints, scheme, name, until)) {}
etcd_store::etcd_store(etcd_store&&) noexcept = default;
etcd_store::~etcd_store() = default;

std::string etcd_store::where() const { return self_->client.where(); }

store_entry etcd_store::get(std::string_view key, clock::time_point until) {
  detail::check_store_key(key, where());
  return self_->look("get", key, until).entry;
}

store_swap etcd_store::compare_and_swap(std::string_view key, std::uint64_t expected,
                                        std::optional<std::string_view> value, clock::time_point until,
                                        std::uint64_t lease) {
  detail::check_store_key(key, where());
  detail::check_store_value(value, where());
  const auto place = to_base64(self_->key_of(key));
  json write = {{"request_delete_range", {{"key", place}}}};
  if (value) {
    write = {{"request_put", {{"key", place}, {"value", to_base64(*value)}, {"lease", std::to_string(lease)}}}};
  }
  const json unchanged = {
      {"key", place}, {"target", "MOD"}, {"result", "EQUAL"}, {"mod_revision", std::to_string(expected)}};
  const json read = {{"request_range", {{"key", place}}}};
  const auto said = self_->client.ask(
      "compare_and_swap", key, "/v3/kv/txn",
      {{"compare", json::array({unchanged})}, {"success", json::array({write})}, {"failure", json::array({read})}},
      until, lost::give_up);
  if (said.value("succeeded", false)) return {true, {value ? number_in(said.at("header"), "revision") : 0, {}}};
  return {false, implementation::first_of(said.at("responses").at(0).at("response_range"))};
}

std::optional<store_entry> etcd_store::watch(std::string_view key, std::uint64_t known, clock::time_point until) {
  detail::check_store_key(key, where());
  try {
    for (implementation::watcher mine(*self_, key);;) {
      auto now = self_->look("watch", key, until);
      if (now.entry.version != known) return std::move(now.entry);
      if (!mine.await(now.revision, until)) return std::nullopt;
    }
  } catch (const timeout_error&) {
    if (clock::now() >= until) return std::nullopt;
    throw;
  }
}

store_lease etcd_store::lease(seconds ttl, clock::time_point until) {
  class holder final : public store_lease::holder {
   public:
    holder(std::weak_ptr<implementation> store, std::uint64_t id) : store_(std::move(store)), id_(id) {}
    ~holder() override {
      const auto open = store_.lock();
      if (!open) return;
      {
        const std::lock_guard held(open->mutex);
        open->leases.erase(id_);
      }
      try {
        open->end_lease(id_, deadline_after(seconds(1.0)));
      } catch (const error&) {  // nobody keeps it alive any more
      }
    }
    [[nodiscard]] std::uint64_t id() const noexcept override { return id_; }
    [[nodiscard]] bool held() const noexcept override {
      const auto open = store_.lock();
      return open && open->is_held(id_);
    }

   private:
    std::weak_ptr<implementation> store_;
    std::uint64_t id_;
  };

  detail::check_store_ttl(ttl, where());
  return store_lease(std::make_unique<holder>(self_, self_->begin_lease(ttl, until)));
}

namespace detail {

bool link_etcd_store() {
  static const auto open = [](std::string_view scheme, const std::string& endpoints, const store_opening& asked) {
    return any_store(std::make_unique<etcd_store>(endpoints, scheme, asked.name(), asked.until));
  };
  static const bool done =
      register_store("etcd",
                     [](auto& place, auto& asked, auto&) { return std::optional(open("http", place, asked)); }) &&
      register_store("etcds",
                     [](auto& place, auto& asked, auto&) { return std::optional(open("https", place, asked)); });
  return done;
}

}  // namespace detail
}  // namespace muster::inline v0
