#include "connection.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include <muster/comm/bootstrap/exchange.hpp>
#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/comm/context.hpp>
#include <muster/comm/transports/threads.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/plugin.hpp>

namespace muster::torch_backend {
namespace {

using bytes = std::vector<std::uint8_t>;

/// A store of torch as muster's. A value is stored with its version, so that a version is never used twice; a removed
/// key keeps its last version.
class torch_store final : public muster::any_store {
 public:
  explicit torch_store(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  muster::store_entry get(std::string_view key, muster::clock::time_point /*until*/) override {
    return parsed(raw(name_of(key)));
  }

  muster::store_swap compare_and_swap(std::string_view key, std::uint64_t expected,
                                      std::optional<std::string_view> value, muster::clock::time_point /*until*/,
                                      muster::store_life life) override {
    if (life != muster::store_life::of_store)
      throw muster::configuration_error("a store of torch has no keys that end with their client; use another store");
    const std::string name = name_of(key);
    const bytes before = raw(name);
    const muster::store_entry present = parsed(before);
    if (present.version != expected) return {false, present};
    const auto version = static_cast<std::uint64_t>(store_->add("muster/versions", 1));
    std::string text = std::to_string(version) + (value ? ":" : "-") + std::string(value.value_or(""));
    const bytes wanted(text.begin(), text.end());
    const bytes after = store_->compareSet(name, before, wanted);
    if (after == wanted) return {true, {version, {}}};
    return {false, parsed(after)};
  }

  std::optional<muster::store_entry> watch(std::string_view key, std::uint64_t known, muster::clock::time_point until,
                                           const std::stop_token& stop) override {
    for (auto nap = std::chrono::microseconds(200);; nap = std::min(2 * nap, std::chrono::microseconds(10000))) {
      const muster::store_entry present = get(key, until);
      if (present.version != known) return present;
      if (stop.stop_requested() || muster::clock::now() >= until) return std::nullopt;
      std::this_thread::sleep_for(nap);
    }
  }

  [[nodiscard]] std::string where() const override { return "torch's store"; }

 private:
  static std::string name_of(std::string_view key) { return "muster/" + std::string(key); }

  bytes raw(const std::string& name) {
    if (!store_->check({name})) return {};
    return store_->get(name);
  }

  static muster::store_entry parsed(const bytes& stored) {
    const std::string text(stored.begin(), stored.end());
    const std::size_t end = text.find_first_not_of("0123456789");
    if (end == std::string::npos || text[end] == '-') return {};
    return {std::stoull(text.substr(0, end)), text.substr(end + 1)};
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

// The stores of process groups that are connecting, by the name in their rendezvous.
std::mutex stores_mutex;
std::map<std::string, c10::intrusive_ptr<c10d::Store>> stores;

std::unique_ptr<muster::any_store> open_torch_store(const std::string& place,
                                                    const muster::detail::store_opening& /*asked*/,
                                                    std::string& why_not) {
  const std::lock_guard lock(stores_mutex);
  const auto found = stores.find(place);
  if (found == stores.end()) {
    why_not = "no process group with that name is connecting";
    return nullptr;
  }
  return std::make_unique<torch_store>(found->second);
}

const muster::plugin torch_store_plugin("torch store",
                                        [] { muster::detail::register_store("torch", open_torch_store); });

std::string random_name() {
  std::random_device source;
  std::uint64_t drawn = 0;
  for (int k = 0; k < 4; ++k) drawn = drawn << 16 ^ source();
  return std::to_string(drawn) + "." + std::to_string(::getpid());
}

muster::settings settings_of(const std::vector<std::string>& flags) {
  std::vector<std::string> words{"torch"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int count = static_cast<int>(words.size());
  return {count, arguments.data()};
}

struct ranks_by_host {
  bool on_one_host = true;
  int local_rank = 0;
  int local_size = 0;
};

ranks_by_host hosts_of(const std::vector<std::string>& hosts, int rank) {
  ranks_by_host found;
  const auto& own = hosts[static_cast<std::size_t>(rank)];
  for (int r = 0; r < static_cast<int>(hosts.size()); ++r) {
    if (hosts[static_cast<std::size_t>(r)] != own) {
      found.on_one_host = false;
      continue;
    }
    if (r < rank) ++found.local_rank;
    ++found.local_size;
  }
  return found;
}

std::shared_ptr<connection> joined(const std::vector<std::string>& hosts, int rank, std::vector<std::string> flags,
                                   const std::string& job, const connect_options& options) {
  const double seconds = std::chrono::duration<double>(options.timeout).count();
  const auto size = static_cast<int>(hosts.size());
  const ranks_by_host places = hosts_of(hosts, rank);
  flags.push_back("--job=" + job);
  flags.push_back("--timeout=" + std::to_string(std::clamp(seconds, 0.1, 86000.0)));
  const muster::settings configuration = settings_of(flags);
  muster::launch_env launch;
  launch.kind = muster::launch_env::launcher::generic;
  launch.rank = rank;
  launch.size = size;
  launch.local_rank = places.local_rank;
  launch.local_size = places.local_size;
  launch.start_name = job;
  launch.reason = "torch.distributed";
  muster::group_settings settings{.timeout = muster::seconds(seconds)};
  settings.algorithm = muster::detail::plan_world(configuration, muster::launch_env()).for_groups.algorithm;
  if (size == 1)
    return std::make_shared<connection>(muster::group(muster::make_self_transport(), settings),
                                        muster::group(muster::make_self_transport(), settings));
  const std::string name = options.transport != "auto" ? options.transport
                           : places.on_one_host        ? "shm"
                                                       : "hierarchical";
  muster::group ranks(muster::connect_transport(name, configuration, launch), settings);
  muster::group messages = ranks.duplicate();
  return std::make_shared<connection>(std::move(ranks), std::move(messages));
}

}  // namespace

std::atomic<int> connection::forks = 0;

struct connection::parts {
  parts(muster::group&& collectives, muster::group&& messages)
      : ranks(std::move(collectives)), port(std::move(messages)) {}
  std::mutex mutex;
  muster::group ranks;
  muster::detail::message_port port;
};

connection::connection(muster::group&& collectives, muster::group&& messages)
    : parts_(std::make_unique<parts>(std::move(collectives), std::move(messages))),
      mutex(parts_->mutex),
      ranks(parts_->ranks),
      port(parts_->port) {}

connection::~connection() {
  if (made_in_ != forks) (void)parts_.release();
}

void connection::abort(const std::string& reason) {
  if (made_in_ != forks) return;
  {
    const std::lock_guard lock(reason_mutex_);
    if (is_aborted) return;
    reason_ = reason;
  }
  is_aborted = true;
  port.fail(std::make_exception_ptr(muster::peer_failure({}, reason)));
  const std::lock_guard lock(mutex);
  ranks.abort(reason);
}

void connection::check() const {
  if (made_in_ != forks)
    throw muster::configuration_error(
        "the process group belongs to the parent process (fork() copied it, but neither "
        "its threads nor its place among the ranks); use spawn, or make a group here");
  if (!is_aborted) return;
  const std::lock_guard lock(reason_mutex_);
  throw muster::peer_failure({}, reason_);
}

std::shared_ptr<connection> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                    const connect_options& options) {
  const auto until = muster::deadline_after(std::chrono::duration<double>(options.timeout));
  torch_store shared(store);
  const std::string host = muster::host_identity(muster::settings());
  const std::string mine = random_name() + "\n" + host;
  const auto all = muster::exchange(shared, "group", rank, size, mine, until);
  std::vector<std::string> hosts;
  for (const auto& one : all) hosts.push_back(one.substr(one.find('\n') + 1));
  const std::string job = "torch." + all[0].substr(0, all[0].find('\n'));
  const std::string place = job + "." + std::to_string(rank);
  {
    const std::lock_guard lock(stores_mutex);
    stores[place] = store;
  }
  const auto forget = [&] {
    const std::lock_guard lock(stores_mutex);
    stores.erase(place);
  };
  try {
    auto made = joined(hosts, rank, {"--rendezvous=torch://" + place}, job, options);
    forget();
    return made;
  } catch (...) {
    forget();
    throw;
  }
}

struct reconnectable::implementation {
  std::string token = random_name();
  muster::store_server server{":0", token};
};

namespace {

// A handle: the host, the address of the store, and its secret, in lines.
struct handle_words {
  std::string host, address, token;
};

handle_words words_of(const std::string& handle) {
  const std::size_t first = handle.find('|'), second = handle.rfind('|');
  if (first == std::string::npos || second == first)
    throw muster::configuration_error("'" + handle + "' is no handle of this backend; pass get_reconfigure_handle()");
  return {handle.substr(0, first), handle.substr(first + 1, second - first - 1), handle.substr(second + 1)};
}

}  // namespace

reconnectable::reconnectable() : self_(std::make_unique<implementation>()) {
  const std::string host = muster::host_identity(muster::settings());
  handle_ = muster::detail::host_name() + "/" + std::to_string(muster::digest().add(host).value()) + "|" +
            muster::detail::host_name() + ":" + std::to_string(self_->server.port()) + "|" + self_->token;
}

reconnectable::~reconnectable() = default;

std::shared_ptr<connection> reconnectable::connect(const std::vector<std::string>& handles, std::int64_t number,
                                                   const connect_options& options) const {
  const auto own = std::find(handles.begin(), handles.end(), handle_);
  if (own == handles.end())
    throw muster::configuration_error("the handles of reconfigure() do not have this process's own; pass all members'");
  std::vector<std::string> hosts;
  muster::digest members;
  for (const auto& handle : handles) {
    hosts.push_back(words_of(handle).host);
    members.add(handle);
  }
  const handle_words first = words_of(handles[0]);
  const std::string job = "torch." + std::to_string(number) + "." + std::to_string(members.value());
  return joined(hosts, static_cast<int>(own - handles.begin()),
                {"--rendezvous=tcp://" + first.address, "--token=" + first.token}, job, options);
}

}  // namespace muster::torch_backend
