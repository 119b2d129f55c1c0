// The highest rate at which one process can pass values to another process, which adds the values to a table (push) or
// stores them (pull). The values pass through a ring of shared memory as large as the ring of muster's messages, which
// is one copy in and one pass out, or over a connection of the loopback. There are no frames, acknowledgements or
// bookkeeping. Rows have the names of bench/ps.
//
//   build/release/bench/peers/stream_limit ring|socket [SECONDS_A_TURN [TURNS]]
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "limit.hpp"
#include "loopback.hpp"

namespace {

constexpr std::size_t ring_bytes = std::size_t{128} << 10;
// Bytes through the ring at a time; other sizes are no faster.
constexpr std::size_t piece_bytes = std::size_t{16} << 10;
constexpr std::size_t socket_bytes = std::size_t{64} << 10;  // Bytes of a system call.
constexpr std::size_t sizes[] = {std::size_t{1} << 20, std::size_t{16} << 20};

// Copies by cache lines. Above some size the C library uses an instruction that is twenty times slower on some
// processors when source and destination have the same offset in their pages.
void copy(std::byte* to, const std::byte* from, std::size_t n) {
  constexpr std::size_t line = 64;
  for (std::size_t at = 0; at < n; at += line) std::memcpy(to + at, from + at, line);
}

struct ring {
  alignas(64) std::atomic<std::size_t> head{0};
  alignas(64) std::atomic<std::size_t> tail{0};
  alignas(64) std::byte bytes[ring_bytes];

  void put(const std::byte* from, std::size_t n) {
    const auto at = head.load(std::memory_order_relaxed);
    while (at + n - tail.load(std::memory_order_acquire) > ring_bytes) {
    }
    copy(bytes + at % ring_bytes, from, n);
    head.store(at + n, std::memory_order_release);
  }
  template <class Take>
  void get(std::size_t n, const Take& take) {
    const auto at = tail.load(std::memory_order_relaxed);
    while (head.load(std::memory_order_acquire) - at < n) {
    }
    take(bytes + at % ring_bytes, n);
    tail.store(at + n, std::memory_order_release);
  }
};

struct connection : bench::loopback {
  void put(const std::byte* from, std::size_t n) const {
    while (n > 0) {
      const auto sent = ::send(ends[0], from, n, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EAGAIN) continue;  // Sleeping would cost more.
      if (sent <= 0) bench::fail_with_errno("send");
      from += sent;
      n -= static_cast<std::size_t>(sent);
    }
  }
  template <class Take>
  void get(std::size_t n, std::vector<std::byte>& room, const Take& take) const {
    std::size_t got = 0;
    while (got < n) {
      const auto some = ::recv(ends[1], room.data() + got, n - got, MSG_DONTWAIT);
      if (some < 0 && errno == EAGAIN) continue;
      if (some <= 0) bench::fail_with_errno("recv");
      got += static_cast<std::size_t>(some);
    }
    take(room.data(), n);
  }
};

void add(float* to, const std::byte* from, std::size_t bytes) {
  const auto* const values = reinterpret_cast<const float*>(from);
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i) to[i] += values[i];
}

struct way {
  std::size_t piece;
  std::function<void(const std::byte*, std::size_t)> put;
  std::function<void(std::size_t, const std::function<void(const std::byte*, std::size_t)>&)> get;
};

// Returns GB/s as measured by rank 0. The receiver has read the last byte when the two processes meet.
double stream(const way& by, bench::meeting& barrier, int rank, std::size_t size, bool adds, double seconds) {
  const std::size_t piece = std::min(by.piece, size);
  std::vector<float> values(size / sizeof(float), 1e-6f);
  auto* const here = reinterpret_cast<std::byte*>(values.data());
  const auto once = [&] {
    for (std::size_t at = 0; at < size; at += piece) {
      if (rank == 0) {
        by.put(here + at, piece);
      } else {
        by.get(piece, [&](const std::byte* from, std::size_t n) {
          adds ? add(values.data() + at / sizeof(float), from, n) : copy(here + at, from, n);
        });
      }
    }
  };
  once();
  // Number of transfers that take about this many seconds at 4 GB/s; current machines are faster.
  const auto times = std::max<std::size_t>(3, static_cast<std::size_t>(seconds * 4e9 / static_cast<double>(size)));
  barrier.meet();
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < times; ++i) once();
  barrier.meet();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(size * times) / took.count() / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string method = argc > 1 ? argv[1] : "";
    if (method != "ring" && method != "socket")
      throw std::runtime_error("no method is named (there are ring and socket); name one");
    const double seconds = argc > 2 ? std::stod(argv[2]) : 0.3;
    const int turns = argc > 3 ? std::stoi(argv[3]) : 5;
    auto& barrier = *new (bench::share_with_children(sizeof(bench::meeting))) bench::meeting(bench::limit_ranks, false);
    auto& shared = *new (bench::share_with_children(sizeof(ring))) ring;
    const connection between;
    const pid_t child = fork();
    if (child < 0) bench::fail_with_errno("fork");
    const int rank = child == 0 ? 1 : 0;
    if (rank == 1) prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench::pin_to_core(rank);
    std::vector<std::byte> room(socket_bytes);
    const way by = method == "ring"
                       ? way{piece_bytes, [&](const std::byte* from, std::size_t n) { shared.put(from, n); },
                             [&](std::size_t n, const auto& take) { shared.get(n, take); }}
                       : way{socket_bytes, [&](const std::byte* from, std::size_t n) { between.put(from, n); },
                             [&](std::size_t n, const auto& take) { between.get(n, room, take); }};
    for (const bool adds : {true, false}) {
      for (const std::size_t size : sizes) {
        std::vector<double> rates;
        for (int turn = 0; turn < turns; ++turn) rates.push_back(stream(by, barrier, rank, size, adds, seconds));
        std::ranges::sort(rates);
        if (rank == 0)
          std::printf("ps/%s/1/1/%zu  %.4g GB/s a worker\n", adds ? "push" : "pull", size, rates[rates.size() / 2]);
      }
    }
    if (rank == 1) return 0;
    int status = 0;
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "stream_limit: error: %s\n", failure.what());
    return 1;
  }
}
