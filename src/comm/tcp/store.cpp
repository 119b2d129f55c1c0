#include <poll.h>

#include <algorithm>
#include <thread>

#include <muster/comm/tcp/store.hpp>
#include <muster/core/error.hpp>

#include "../net/store_client.hpp"
#include "../net/store_guest.hpp"

namespace muster::inline v0 {
namespace {

using detail::handshake;
using detail::socket_error;
using detail::tcp_socket;

std::vector<detail::address> addresses_of(std::string_view list) {
  std::vector<detail::address> all;
  for (;;) {
    const auto comma = list.find(',');
    const auto more = detail::resolve(detail::parse_host_port(list.substr(0, comma), "the address of a store"));
    all.insert(all.end(), more.begin(), more.end());
    if (comma == std::string_view::npos) return all;
    list.remove_prefix(comma + 1);
  }
}

// Proves to the server that it is one of the job, and the other way round.
void introduce(const tcp_socket& to, const detail::job_secret& secret, const std::string& where,
               clock::time_point until) {
  using state = handshake::state;
  bool proved = false;
  auto said = handshake::connect(secret, {detail::store_client_name, detail::store_server_name, 0, 1});
  try {
    while (said.now() != state::done) {
      if (said.now() == state::sending) {
        to.write_exactly(said.output(), until);
        said.sent(said.output().size());
      } else if (said.now() == state::reading) {
        std::vector<std::byte> room(said.wanted());
        to.read_exactly(room, until);
        said.received(room);
        proved = true;  // it answers, so what follows is a proof
      } else {
        throw socket_error(ECONNRESET, "it does not know the token");
      }
    }
  } catch (const socket_error& failed) {
    if (!proved || !failed.closed()) throw;
    throw configuration_error(
        "whoever serves at " + where +
        " does not know this job's token (it is the store of another job, or no store of muster); "
        "give all ranks the same MUSTER_TOKEN, or choose another port");
  }
}

std::unique_ptr<detail::store_client> connect(std::string_view where, std::string_view token, clock::time_point until) {
  const std::string name = "tcp://" + std::string(where);
  const auto addresses = addresses_of(where);
  const auto secret = detail::store_secret(token);
  auto nap = std::chrono::milliseconds(5);
  for (;;) {
    try {
      // An address that does not answer, a server that says nothing: not the whole time is spent on one attempt.
      const auto attempt = std::min(until, deadline_after(seconds(5) * static_cast<double>(addresses.size())));
      auto made = tcp_socket::connect(addresses, attempt);
      made.set_no_delay();
      made.set_liveness(seconds(5), seconds(10));
      made.set_acknowledged_within(seconds(10));
      introduce(made, secret, name, attempt);
      return std::make_unique<detail::store_client>(std::move(made), name);
    } catch (const socket_error& failed) {
      if (clock::now() + nap >= until) {
        throw timeout_error("opening the store", {},
                            "no store at " + name + " answered in time (" + failed.what() +
                                "); see whether rank 0 runs and serves there, or raise --timeout / MUSTER_TIMEOUT");
      }
    }
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, std::chrono::milliseconds(200));
  }
}

}  // namespace

struct tcp_store::implementation {
  explicit implementation(std::unique_ptr<detail::store_client> made) : client(std::move(made)) {}

  detail::store_client::answer call(const char* name, const detail::store_request& asked, clock::time_point until) {
    auto came = client->call(asked, until);
    if (!came) detail::store_timed_out(name, asked.key, client->where());
    if (came->status == detail::store_status::full) {
      throw error(error_kind::other,
                  "the store " + client->where() +
                      " takes no more (256 MiB in all; 4096 leases and as many watches of a client); "
                      "remove what is not needed");
    }
    if (came->status == detail::store_status::ended) {
      throw store_lease_ended("a lease at the store " + client->where() +
                              " has ended (its holder was silent for longer than it lives, or let it go); begin anew");
    }
    return std::move(*came);
  }

  std::unique_ptr<detail::store_client> client;
};

tcp_store::tcp_store(std::string_view where, std::string_view token, clock::time_point until,
                     std::unique_ptr<store_server> own)
    : own_(std::move(own)), self_(std::make_shared<implementation>(connect(where, token, until))) {}
tcp_store::tcp_store(tcp_store&&) noexcept = default;
tcp_store::~tcp_store() = default;

std::string tcp_store::where() const { return self_->client->where(); }

store_entry tcp_store::get(std::string_view key, clock::time_point until) {
  detail::check_store_key(key, where());
  auto came = self_->call("get", {.what = detail::store_call::get, .key = key}, until);
  return {came.number, std::move(came.value)};
}

store_swap tcp_store::compare_and_swap(std::string_view key, std::uint64_t expected,
                                       std::optional<std::string_view> value, clock::time_point until,
                                       std::uint64_t lease) {
  detail::check_store_key(key, where());
  detail::check_store_value(value, where());
  const detail::store_request asked{
      .what = detail::store_call::swap, .number = expected, .lease = lease, .key = key, .value = value};
  auto came = self_->call("compare_and_swap", asked, until);
  return {came.status == detail::store_status::done, {came.number, std::move(came.value)}};
}

std::optional<store_entry> tcp_store::watch(std::string_view key, std::uint64_t known, clock::time_point until) {
  detail::check_store_key(key, where());
  auto came = self_->client->call({.what = detail::store_call::watch, .number = known, .key = key}, until);
  if (!came) return std::nullopt;
  if (came->status == detail::store_status::full) {
    throw error(error_kind::other,
                "the store " + where() + " takes no more watches of this client; wait for fewer keys");
  }
  return store_entry{came->number, std::move(came->value)};
}

store_lease tcp_store::lease(seconds ttl, clock::time_point until) {
  class holder final : public store_lease::holder {
   public:
    holder(std::weak_ptr<implementation> store, std::uint64_t id) : store_(std::move(store)), id_(id) {}
    ~holder() override {
      if (const auto open = store_.lock()) open->client->end_keeping(id_);
    }
    [[nodiscard]] std::uint64_t id() const noexcept override { return id_; }
    [[nodiscard]] bool held() const noexcept override {
      const auto open = store_.lock();
      return open && open->client->is_kept(id_);
    }

   private:
    std::weak_ptr<implementation> store_;
    std::uint64_t id_;
  };

  detail::check_store_ttl(ttl, where());
  const auto asked = clock::now();
  const auto microseconds = static_cast<std::uint64_t>(ttl.count() * 1e6);
  const auto came = self_->call("lease", {.what = detail::store_call::lease, .number = microseconds}, until);
  self_->client->begin_keeping(came.number, ttl, asked);
  return store_lease(std::make_unique<holder>(self_, came.number));
}

}  // namespace muster::inline v0
