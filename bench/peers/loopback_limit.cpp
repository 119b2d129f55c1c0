// The highest rate at which two processes can exchange bytes over a connection of the loopback. Each process sends and
// receives as many bytes as the buffer has, in both directions at once, without blocking in the system, from memory
// that stays in the cache. An allreduce of two ranks over tcp has to move the same bytes. There are no frames, sums or
// deadlines.
//   build/release/bench/peers/loopback_limit [BYTES...]
// Prints lines of JSON in the form of peers/mpi_collectives, and accepts --turns=FOLDER like it.
#include "limit.hpp"
#include "loopback.hpp"

namespace {

// Limits of the bytes sent but not yet received, so that data in the socket buffers are still in the cache when they
// are copied out. The fastest limit depends on size and machine.
constexpr std::size_t windows[] = {std::size_t{128} << 10, std::size_t{256} << 10, std::size_t{512} << 10,
                                   std::size_t{1} << 20};
constexpr bench::repeats tries{7};  // Number of measurements for each window.
struct alignas(64) line {
  char bytes[64];
};

// Returns the number of bytes that a non-blocking system call moved; 0 if the call would have blocked.
std::size_t moved(ssize_t n, const char* call) {
  if (n > 0) return static_cast<std::size_t>(n);
  if (n == 0) throw std::runtime_error("the other process is gone");
  if (errno != EAGAIN && errno != EINTR) bench::fail_with_errno(call);
  return 0;
}

// One end of the connection, and the memory for sending and receiving. A byte has the same offset from a cache line in
// memory as in the stream: AMD's processors copy slowly between addresses that differ by a few bytes, and the system
// makes this copy.
class end {
 public:
  end(int file, line* room) : file_(file), room_(room->bytes) {}

  void exchange(std::size_t bytes, std::size_t window) {
    for (std::size_t sent = 0, received = 0; sent < bytes || received < bytes;) {
      if (sent < bytes && sent < received + window) {
        const std::size_t most = std::min(bytes - sent, received + window - sent);
        sent += count(sent_, moved(::send(file_, at(sent_), most, MSG_DONTWAIT | MSG_NOSIGNAL), "send"));
      }
      if (received < bytes) {
        const std::size_t most = std::min(bytes - received, window);
        received += count(received_, moved(::recv(file_, at(received_), most, MSG_DONTWAIT), "recv"));
      }
    }
  }

 private:
  static std::size_t count(std::size_t& all, std::size_t bytes) {
    all += bytes;
    return bytes;
  }
  char* at(std::size_t position) const { return room_ + position % sizeof(line); }

  int file_;
  char* room_;
  std::size_t sent_ = 0, received_ = 0;  // Since the connection was opened.
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const bench::loopback between;
    std::vector<line> room(windows[std::size(windows) - 1] / sizeof(line) + 1);
    end ends[] = {{between.ends[0], room.data()}, {between.ends[1], room.data()}};
    return bench::run_limit(
        argc, argv, "loopback_limit", bench::limit_ranks, [&](const bench::turn& now, bench::meeting& all, int rank) {
          const auto times_with = [&](std::size_t window, bench::repeats count) {
            return all.times_of(now.operation, rank, count, [&] { ends[rank].exchange(now.bytes, window); });
          };
          (void)times_with(windows[0], bench::warm_up_for(now.operation, now.bytes));
          const auto seconds = [&](std::size_t window) { return bench::median(times_with(window, tries)); };
          const auto fastest = std::ranges::min_element(windows, {}, seconds);  // Equal at both processes.
          return times_with(*fastest, bench::repeats_for(now.operation, now.bytes));
        });
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "loopback_limit: error: %s\n", failure.what());
    return 1;
  }
}
