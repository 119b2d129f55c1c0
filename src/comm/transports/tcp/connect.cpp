#include "connect.hpp"

#include <sched.h>
#include <unistd.h>

#include <numeric>

#include <muster/comm/bootstrap/exchange.hpp>
#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/context.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/error.hpp>

#include "../../../core/random_bytes.hpp"
#include "../../../core/wire.hpp"
#include "../../bootstrap/ends.hpp"
#include "transport.hpp"

namespace muster::inline v0::detail {
namespace {

constexpr std::string_view card_mark = "tcp2";  // the 2 is the version of cards

// The cores that this process may run on, 64 in a word.
std::vector<std::uint64_t> own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<std::uint64_t> words(CPU_SETSIZE / 64, 0);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {};
  for (std::size_t k = 0; k < CPU_SETSIZE; ++k) words[k / 64] |= std::uint64_t{CPU_ISSET(k, &set) != 0} << k % 64;
  while (!words.empty() && words.back() == 0) words.pop_back();
  return words;
}

}  // namespace

tcp_doors::tcp_doors(std::string_view chosen, const std::string& origin) {
  wire_writer card;
  card.add_text(card_mark);
  card.add_text(random_token());
  // The kernel's own number of this start of the machine: the same in all its containers.
  card.add_text(boot_number().empty() ? host_name() : boot_number());
  card.add_text(host_name());
  card.add(std::int64_t{::getpid()});
  const auto cores = own_cores();
  card.add(std::uint64_t{cores.size()});
  for (const auto word : cores) card.add(word);
  for (const auto& one : own_addresses(chosen, origin)) {
    sockets_.push_back(tcp_socket::reserve(one.with_port(0)));
    card.add_text(sockets_.back().local().to_string());
  }
  card_ = card.take();
}

std::vector<tcp_socket> tcp_doors::open() {
  for (const auto& one : sockets_) one.start_listening();
  return std::move(sockets_);
}

std::string interface_of(const settings& configuration, const launch_env& launch) {
  const auto& asked = configuration.value(setting::interface);
  // A process that joins an elastic job later may be on another host, unless it meets in a folder of this one.
  const bool may_grow =
      configuration.value(setting::elastic) == "on" && configuration.value(setting::rendezvous) != "auto";
  return asked == "auto" && launch.on_one_host() && !may_grow ? "here" : asked;
}

tcp_peer read_card(const std::string& card, int rank) {
  wire_reader in(card);
  tcp_peer read;
  const bool known = in.text() == card_mark;
  (void)in.text();
  read.host = in.text();
  read.name = in.text();
  read.process = in.number<std::int64_t>();
  for (auto left = in.count(sizeof(std::uint64_t)); left > 0; --left) read.cores.push_back(in.number());
  while (!in.rest().empty()) {
    if (const auto one = address::parse(in.text()); !one.empty()) read.addresses.push_back(one);
  }
  if (!known || !in.whole() || read.addresses.empty()) {
    throw error(error_kind::other,
                "what rank " + std::to_string(rank) +
                    " says of itself cannot be read (is it of another version of muster?); start all "
                    "ranks with the same build");
  }
  return read;
}

std::shared_ptr<tcp_mesh> make_mesh(const tcp_plan& plan, int rank, const std::vector<std::string>& cards,
                                    tcp_doors doors, std::string_view token) {
  std::vector<std::string_view> parts{token};
  std::vector<tcp_peer> peers;
  for (std::size_t i = 0; i < cards.size(); ++i) {
    parts.emplace_back(cards[i]);
    peers.push_back(read_card(cards[i], static_cast<int>(i)));
  }
  return std::make_shared<tcp_mesh>(plan, rank, std::move(peers), doors.open(), job_secret(parts));
}

tcp_plan plan_of(const settings& configuration) {
  tcp_plan plan;
  plan.streams = static_cast<int>(configuration.integer(setting::streams));
  plan.lazy = configuration.choice(setting::connections, {"all", "lazy"}) == 1;
  plan.beat = seconds(configuration.positive(setting::heartbeat));
  plan.missed = static_cast<int>(configuration.integer(setting::missed_beats));
  plan.patience = seconds(configuration.positive(setting::timeout));
  plan.limits.checksum = configuration.choice(setting::checksum, {"off", "on"}) == 1;
  return plan;
}

std::unique_ptr<transport> connect_tcp(const settings& configuration, const launch_env& launch) {
  const tcp_plan plan = plan_of(configuration);
  const auto until = deadline_after(plan.patience);
  tcp_doors doors(interface_of(configuration, launch), configuration.origin(setting::interface));
  std::vector<std::string> cards{doors.card()};
  std::string token;
  if (launch.size > 1) {
    const auto store = open_store(configuration, launch);
    token = common_token(*store, configuration, until);
    cards = exchange(*store, "tcp/", launch.rank, launch.size, doors.card(), until);
  }
  auto mesh = make_mesh(plan, launch.rank, cards, std::move(doors), token);
  if (!plan.lazy) mesh->await_all(until);
  std::vector<int> all(cards.size());
  std::iota(all.begin(), all.end(), 0);
  return std::make_unique<tcp_transport>(std::move(mesh), std::move(all), launch.rank, 0);
}

std::vector<std::unique_ptr<transport>> connect_tcp_ends(const settings& configuration, group& ranks, int count) {
  const tcp_plan plan = plan_of(configuration);
  std::vector<tcp_doors> doors;
  std::vector<std::string> cards;
  for (int k = 0; k < count; ++k) {
    doors.emplace_back(configuration.value(setting::interface), configuration.origin(setting::interface));
    const auto of_all = words_of_all(ranks, doors.back().card());
    cards.insert(cards.end(), of_all.begin(), of_all.end());
  }
  // The group is connected to no other process, so what rank 0 draws is known to no other.
  auto drawn = random_token();
  broadcast(ranks, std::span(reinterpret_cast<std::uint8_t*>(drawn.data()), drawn.size()), 0);
  std::vector<int> all(cards.size());
  std::iota(all.begin(), all.end(), 0);
  const auto until = deadline_after(plan.patience);
  return connect_at_once(count, [&](int k) -> std::unique_ptr<transport> {
    const int rank = k * ranks.size() + ranks.rank();
    auto mesh = make_mesh(plan, rank, cards, std::move(doors[static_cast<std::size_t>(k)]), drawn);
    if (!plan.lazy) mesh->await_all(until);
    return std::make_unique<tcp_transport>(std::move(mesh), all, rank, 0);
  });
}

bool link_tcp_store() noexcept;

bool link_tcp() noexcept {  // and the stores, which the ranks of a context may meet at
  static const bool done =
      link_tcp_store() && register_process_transport({"tcp", &connect_tcp, &tcp_abilities_with, &connect_tcp_ends});
  return done;
}

}  // namespace muster::inline v0::detail
