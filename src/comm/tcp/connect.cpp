#include "connect.hpp"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <fstream>
#include <numeric>
#include <sstream>

#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/context.hpp>
#include <muster/comm/rendezvous/exchange.hpp>
#include <muster/comm/rendezvous/open_store.hpp>
#include <muster/core/error.hpp>

#include "../ends.hpp"
#include "transport.hpp"

namespace muster::inline v0::detail {
namespace {

std::string first_line_of(const char* file) {
  std::string line;
  std::ifstream in(file);
  std::getline(in, line);
  return line;
}

std::string host_name() {
  char name[256] = "unknown";
  (void)::gethostname(name, sizeof name - 1);
  return name;
}

std::string in_hexadecimal(std::span<const std::byte> bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += digits[std::to_integer<unsigned>(b) >> 4];
    text += digits[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

// The cores that this process may run on, 64 in a word of hexadecimal digits.
std::string own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::string text = "0";
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return text;
  for (int first = 0; first < CPU_SETSIZE; first += 64) {
    std::uint64_t word = 0;
    for (int k = 0; k < 64; ++k) word |= std::uint64_t{CPU_ISSET(first + k, &set) != 0} << k;
    char digits[16];
    const auto end = std::to_chars(digits, digits + sizeof digits, word, 16).ptr;
    text += "," + std::string(digits, end);
  }
  while (text.ends_with(",0")) text.resize(text.size() - 2);
  return text;
}

}  // namespace

tcp_doors::tcp_doors(std::string_view chosen, const std::string& origin) {
  std::string list;
  for (const auto& one : own_addresses(chosen, origin)) {
    sockets_.push_back(tcp_socket::reserve(one.with_port(0)));
    list += " " + sockets_.back().local().to_string();
  }
  std::array<std::byte, 16> salt{};
  fill_random(salt);
  // The kernel's own number of this start of the machine: the same in all its containers.
  std::string machine = first_line_of("/proc/sys/kernel/random/boot_id");
  if (machine.empty()) machine = host_name();
  card_ = "tcp1 " + in_hexadecimal(salt) + " " + machine + " " + host_name() + " " + std::to_string(::getpid()) + " " +
          own_cores() + list;
}

std::vector<tcp_socket> tcp_doors::open() {
  for (const auto& one : sockets_) one.start_listening();
  return std::move(sockets_);
}

std::string interface_of(const settings& configuration, const launch_env& launch) {
  const auto& asked = configuration.value(setting::interface);
  // Who joins an elastic job later may be on another host, unless it meets in a folder of this one.
  const bool may_grow =
      configuration.value(setting::elastic) == "on" && configuration.value(setting::rendezvous) != "auto";
  return asked == "auto" && launch.on_one_host() && !may_grow ? "here" : asked;
}

tcp_peer read_card(const std::string& card, int rank) {
  std::istringstream words(card);
  std::string version;
  std::string salt;
  std::string cores;
  tcp_peer read;
  words >> version >> salt >> read.host >> read.name >> read.process >> cores;
  for (std::size_t at = cores.find(','); at != std::string::npos; at = cores.find(',', at + 1)) {
    std::uint64_t word = 0;
    std::from_chars(cores.data() + at + 1, cores.data() + cores.size(), word, 16);
    read.cores.push_back(word);
  }
  for (std::string word; words >> word;) {
    if (const auto one = address::parse(word); !one.empty()) read.addresses.push_back(one);
  }
  if (version != "tcp1" || read.addresses.empty()) {
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
    any_store store = open_store(configuration, launch);
    token = job_token(store, configuration, launch, until);
    cards = exchange(store, "tcp/", launch.rank, launch.size, doors.card(), until);
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
  // The group is connected to nobody else, so what rank 0 draws is known to nobody else.
  std::array<std::uint8_t, 32> drawn{};
  if (ranks.rank() == 0) fill_random(std::as_writable_bytes(std::span(drawn)));
  broadcast(ranks, std::span(drawn), 0);
  std::vector<int> all(cards.size());
  std::iota(all.begin(), all.end(), 0);
  const auto until = deadline_after(plan.patience);
  return connect_at_once(count, [&](int k) -> std::unique_ptr<transport> {
    const int rank = k * ranks.size() + ranks.rank();
    auto mesh = make_mesh(plan, rank, cards, std::move(doors[static_cast<std::size_t>(k)]),
                          in_hexadecimal(std::as_bytes(std::span(drawn))));
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
