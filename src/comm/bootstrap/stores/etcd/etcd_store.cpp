#include <muster/comm/bootstrap/etcd_store.hpp>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <muster/comm/bootstrap/open_store.hpp>

#include <muster/comm/comm_timing.hpp>
#include <muster/core/base64.hpp>
#include <muster/core/plugin.hpp>
#include "etcd_client.hpp"

namespace muster { inline namespace v0 {
namespace {

using detail::etcd_client;
using detail::number_in;
using detail::to_base64;
using nlohmann::json;
using lost = etcd_client::when_lost;

// Returns the first key behind all keys with that prefix.
std::string end_of(std::string prefix) {
  ++prefix.back();
  return prefix;
}

}  // namespace

struct etcd_store::implementation {
  implementation(std::string_view endpoints, std::string_view scheme, std::string_view name, clock::time_point until,
                 store_role requested_role)
      : client(endpoints, scheme), prefix("muster/" + std::string(name) + "/"), role(requested_role) {
    if (role == store_role::onlooker) return;
    register_presence(until, true);
    keeper = std::jthread([this](const std::stop_token& stop) { keep(stop); });
  }

  ~implementation() {
    if (role == store_role::onlooker) return;
    keeper.request_stop();
    keeper.join();
    leave();
  }

  [[nodiscard]] std::string key_of(std::string_view key) const { return prefix + "k/" + std::string(key); }
  [[nodiscard]] json range_of(const std::string& directory) const {
    return {{"key", to_base64(prefix + directory)}, {"range_end", to_base64(end_of(prefix + directory))}};
  }
  // Returns a condition that is true if the range has no keys.
  [[nodiscard]] json is_empty(const std::string& directory) const {
    auto condition = range_of(directory);
    condition.update({{"target", "CREATE"}, {"result", "EQUAL"}, {"create_revision", "0"}});
    return condition;
  }

  // ---- presence of the process ----
  // Registers this process in one transaction. A process that begins and finds no other process removes the existing
  // keys.
  void register_presence(clock::time_point until, bool begins) {
    const auto granted =
        client.ask("open", {}, "/v3/lease/grant", {{"TTL", std::to_string(detail::store_timing::lease.count())}}, until,
                   lost::again);  // a lease that no client uses ends by itself
    const auto lease = std::to_string(number_in(granted, "ID"));
    const auto mine = prefix + "p/" + lease;
    const json add_presence = {{"request_put", {{"key", to_base64(mine)}, {"value", ""}, {"lease", lease}}}};
    const json clear = {{"request_delete_range", range_of("k/")}};
    (void)client.ask("open", {}, "/v3/kv/txn",
                     {{"compare", json::array({is_empty("p/")})},
                      {"success", begins ? json::array({clear, add_presence}) : json::array({add_presence})},
                      {"failure", json::array({add_presence})}},
                     until, lost::again);
    presence = number_in(granted, "ID");
  }
  void leave() noexcept {
    try {
      const auto until = deadline_after(seconds(1.0));
      (void)client.ask("close", {}, "/v3/lease/revoke", {{"ID", std::to_string(presence)}}, until, lost::again);
      const json clear = {{"compare", json::array({is_empty("p/")})},
                          {"success", json::array({{{"request_delete_range", range_of("k/")}}})}};
      (void)client.ask("close", {}, "/v3/kv/txn", clear, until, lost::again);
    } catch (...) {  // the keys end by themselves, and the next process that opens the store removes them
    }
  }

  // Renews the lease of this process until a stop request.
  void keep(const std::stop_token& stop) {
    std::unique_lock held(mutex);
    while (!turn.wait_for(held, stop, detail::store_timing::lease / 4, [&] { return stop.stop_requested(); })) {
      if (stop.stop_requested()) return;
      held.unlock();
      try {
        const auto until = deadline_after(seconds(1.0));
        const auto reply =
            client.ask("lease", {}, "/v3/lease/keepalive", {{"ID", std::to_string(presence)}}, until, lost::give_up);
        // This process was disconnected for longer than the lease. The next process to begin would find no process, and
        // remove all keys.
        if (number_in(reply.value("result", json::object()), "TTL") == 0) register_presence(until, false);
      } catch (const std::exception&) {  // retried at the next turn
      }
      held.lock();
    }
  }

  // ---- keys ----
  struct snapshot {
    store_entry entry;
    std::uint64_t revision = 0;  // revision of the whole store at the time of the read
  };
  snapshot read(const char* function, std::string_view key, clock::time_point until) {
    const auto reply = client.ask(function, key, "/v3/kv/range", {{"key", to_base64(key_of(key))}}, until, lost::again);
    return {first_of(reply), number_in(reply.at("header"), "revision")};
  }
  static store_entry first_of(const json& interval) {
    const auto pairs = interval.find("kvs");
    return pairs == interval.end() || pairs->empty() ? store_entry{} : detail::entry_in(pairs->front());
  }

  etcd_client client;
  std::string prefix;
  store_role role;
  std::atomic<std::uint64_t> presence = 0;  // id of the lease
  std::mutex mutex;
  std::condition_variable_any turn;
  std::jthread keeper;
};

etcd_store::etcd_store(std::string_view endpoints, std::string_view scheme, std::string_view name,
                       clock::time_point until, store_role role)
    : self_(std::make_unique<implementation>(endpoints, scheme, name, until, role)) {}
etcd_store::etcd_store(etcd_store&&) noexcept = default;
etcd_store::~etcd_store() = default;

std::string etcd_store::where() const { return self_->client.where(); }

store_entry etcd_store::get(std::string_view key, clock::time_point until) {
  detail::check_store_key(key, where());
  return self_->read("get", key, until).entry;
}

store_swap etcd_store::compare_and_swap(std::string_view key, std::uint64_t expected,
                                        std::optional<std::string_view> value, clock::time_point until,
                                        store_life life) {
  detail::check_store_key(key, where());
  detail::check_store_value(value, where());
  if (self_->role == store_role::onlooker) {
    throw configuration_error("the store " + where() +
                              " cannot be written (it was opened by an onlooker); open it as a member");
  }
  const auto place = to_base64(self_->key_of(key));
  json write = {{"request_delete_range", {{"key", place}}}};
  if (value) {
    const auto lease = std::to_string(life == store_life::of_client ? self_->presence.load() : 0);
    write = {{"request_put", {{"key", place}, {"value", to_base64(*value)}, {"lease", lease}}}};
  }
  const json unchanged = {
      {"key", place}, {"target", "MOD"}, {"result", "EQUAL"}, {"mod_revision", std::to_string(expected)}};
  const json read = {{"request_range", {{"key", place}}}};
  const auto reply = self_->client.ask(
      "compare_and_swap", key, "/v3/kv/txn",
      {{"compare", json::array({unchanged})}, {"success", json::array({write})}, {"failure", json::array({read})}},
      until, lost::give_up);
  if (reply.value("succeeded", false)) return {true, {value ? number_in(reply.at("header"), "revision") : 0, {}}};
  return {false, implementation::first_of(reply.at("responses").at(0).at("response_range"))};
}

std::optional<store_entry> etcd_store::watch(std::string_view key, std::uint64_t known, clock::time_point until,
                                             const std::stop_token& stop) {
  detail::check_store_key(key, where());
  try {
    while (!stop.stop_requested()) {
      auto current = self_->read("watch", key, until);
      if (current.entry.version != known) return std::move(current.entry);
      if (clock::now() >= until) return std::nullopt;
      self_->client.await_change(self_->key_of(key), current.revision + 1, until, stop);
    }
    return std::nullopt;
  } catch (const timeout_error&) {
    if (clock::now() >= until) return std::nullopt;
    throw;
  }
}

namespace detail {

namespace {

template <bool over_tls>
std::unique_ptr<any_store> open(const std::string& endpoints, const store_opening& request, std::string&) {
  return std::make_unique<etcd_store>(endpoints, over_tls ? "https" : "http", request.name(), request.until,
                                      request.role);
}

}  // namespace

extern const plugin etcd_plugin;
[[gnu::init_priority(101)]] const plugin etcd_plugin("etcd", [] {
  register_store("etcd", &open<false>);
  register_store("etcds", &open<true>);
});

}  // namespace detail
}}  // namespace muster::v0
