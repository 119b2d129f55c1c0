// Upper limit for the share of a transfer between two hosts that a computation can hide. Two programs send each other
// as many bytes as an allreduce of two ranks moves, by blocking calls on a plain socket in two threads, and sum
// nothing. Meanwhile the computing thread does the arithmetic of bench/gradients. The part that is not hidden here is
// the time that the system's TCP, the emulated link and the machine's caches take from the computation.
//
//   overlap_limit RANK ADDRESS_OF_RANK_0 [MEGABYTES [ROUNDS [LONGER]]]     # bench/overlap.py --limit starts both
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "../outer_products.hpp"

namespace {

constexpr std::uint16_t port = 29577;
constexpr std::size_t piece = std::size_t{1} << 20;

[[noreturn]] void fail(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

/// A connection between the two programs. Retries for ten seconds.
class connection {
 public:
  connection(int rank, const char* address) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    if (rank != 0 && inet_pton(AF_INET, address, &at.sin_addr) != 1) fail("inet_pton");
    const auto open = [] { return ::socket(AF_INET, SOCK_STREAM, 0); };
    const auto* const where = reinterpret_cast<const sockaddr*>(&at);
    if (rank == 0) {
      const int door = open(), yes = 1;
      ::setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      if (::bind(door, where, sizeof at) != 0 || ::listen(door, 1) != 0) fail("listen");
      file_ = ::accept(door, nullptr, nullptr);
      ::close(door);
    } else {
      file_ = open();
      for (int tries = 0; ::connect(file_, where, sizeof at) != 0; ++tries) {
        if (tries == 1000) fail("connect");
        ::close(file_);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        file_ = open();
      }
    }
    const int yes = 1;
    const timeval patience{60, 0};
    if (file_ < 0 || ::setsockopt(file_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0 ||
        ::setsockopt(file_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0)
      fail("socket");
  }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  ~connection() { ::close(file_); }

  void exchange(const std::vector<char>& out, std::vector<char>& in) const {
    const std::jthread sender([&] { send(out.data(), out.size()); });
    receive(in.data(), in.size());
  }
  void meet() const {
    char word = 0;
    send(&word, 1);
    receive(&word, 1);
  }

 private:
  void send(const char* from, std::size_t bytes) const {
    while (bytes > 0) {
      const auto sent = ::send(file_, from, std::min(bytes, piece), MSG_NOSIGNAL);
      if (sent <= 0) fail("send");
      from += sent;
      bytes -= static_cast<std::size_t>(sent);
    }
  }
  void receive(char* to, std::size_t bytes) const {
    while (bytes > 0) {
      const auto got = ::recv(file_, to, std::min(bytes, piece), 0);
      if (got <= 0) fail("recv");
      to += got;
      bytes -= static_cast<std::size_t>(got);
    }
  }

  int file_ = -1;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Returns the milliseconds until both programs have finished the call.
template <class Call>
double timed(const connection& between, Call call) {
  between.meet();
  const auto begin = std::chrono::steady_clock::now();
  call();
  between.meet();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

void measure(int rank, const connection& between, std::size_t bytes, int rounds, double longer) {
  constexpr std::size_t layer = bench::outer_products::outputs * bench::outer_products::inputs;
  const bench::outer_products products;
  std::vector<char> out(bytes, 1), in(bytes);
  std::vector<float> gradients(bytes / sizeof(float) / layer * layer);
  std::size_t rows = 10;
  const auto pass = [&] {
    for (std::size_t at = 0; at < gradients.size(); at += layer)
      products.gradient(std::span(gradients).subspan(at, layer), rows);
  };
  const auto transfer = [&] { between.exchange(out, in); };
  const auto both = [&] {
    const std::jthread beside(transfer);
    pass();
  };
  const auto five = [&](const auto& call) {
    std::vector<double> times;
    for (int k = 0; k < 5; ++k) times.push_back(timed(between, call));
    return median(times);
  };
  const double alone = five(transfer);
  for (int guess = 0; guess < 2; ++guess)  // Estimated as in bench/gradients.
    rows = static_cast<std::size_t>(longer * static_cast<double>(rows) * alone / five(pass)) + 1;
  std::vector<double> times[3];
  for (int round = 0; round < rounds; ++round) {
    times[0].push_back(timed(between, transfer));
    times[1].push_back(timed(between, pass));
    times[2].push_back(timed(between, both));
  }
  if (rank != 0) return;
  const double moved = median(times[0]), computed = median(times[1]), together = median(times[2]);
  std::printf("plain sockets, nothing summed: transfer %.2f ms  backward %.2f ms  together %.2f ms  hidden %.1f %%\n",
              moved, computed, together, 100 * (computed + moved - together) / moved);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 3) throw std::runtime_error("a rank and an address are needed (see the top of the source); give both");
    const int rank = std::stoi(argv[1]);
    const auto megabytes = argc > 3 ? std::stoul(argv[3]) : 25;
    const connection between(rank, argv[2]);
    measure(rank, between, megabytes * 1000000, argc > 4 ? std::stoi(argv[4]) : 51,
            argc > 5 ? std::stod(argv[5]) : 1.25);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "overlap_limit: error: %s\n", failure.what());
    return 1;
  }
  return 0;
}
