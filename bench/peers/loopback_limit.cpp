// How fast two processes can hand each other bytes over a connection of the loopback at all: each sends and receives as
// many as the buffer has, both ways at once, without waiting in the system, from memory that stays in the cache. That
// is what an allreduce of two ranks over tcp has to move, and nothing else: no frames, no sums, no deadline.
//   build/release/bench/peers/loopback_limit [BYTES...]
// Prints lines of JSON as peers/mpi_collectives does, and takes --turns=FOLDER as it does.
#include "limit.hpp"
#include "loopback.hpp"

namespace {

// Never so much further sent than received: what lies in the system is then still in the cache when it is copied out.
// Of windows from 8 KiB to 1 MiB this was the fastest for a megabyte and more, and none was faster below.
constexpr std::size_t window = std::size_t{128} << 10;

// How many bytes went through a call of the system that would not wait; 0 when none could.
std::size_t moved(ssize_t n, const char* what) {
  if (n > 0) return static_cast<std::size_t>(n);
  if (n == 0) throw std::runtime_error("the other process is gone");
  if (errno != EAGAIN && errno != EINTR) bench::fail_with_errno(what);
  return 0;
}

void exchange(int end, std::span<char> room, std::size_t bytes) {
  for (std::size_t sent = 0, received = 0; sent < bytes || received < bytes;) {
    if (sent < bytes && sent < received + window) {
      const std::size_t most = std::min({bytes - sent, received + window - sent, room.size()});
      sent += moved(::send(end, room.data(), most, MSG_DONTWAIT | MSG_NOSIGNAL), "send");
    }
    if (received < bytes) {
      const std::size_t most = std::min(bytes - received, room.size());
      received += moved(::recv(end, room.data(), most, MSG_DONTWAIT), "recv");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const bench::loopback between;
    std::vector<char> room(window);
    return bench::run_limit(argc, argv, "loopback_limit", bench::limit_ranks,
                            [&](const bench::turn& now, bench::meeting& node_id, int rank) {
                              const auto once = [&] { exchange(between.ends[rank], room, now.bytes); };
                              (void)node_id.times_of(now.what, rank, bench::warm_up_for(now.what, now.bytes), once);
                              return node_id.times_of(now.what, rank, bench::iterations_for(now.what, now.bytes), once);
                            });
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "loopback_limit: error: %s\n", failure.what());
    return 1;
  }
}
