// How fast two processes can hand each other bytes over a connection of the loopback at all: each sends and receives as
// many as the buffer has, both ways at once, without waiting in the system, from memory that stays in the cache. That
// is what an allreduce of two ranks over tcp has to move, and nothing else: no frames, no sums, no deadline.
//   build/release/bench/peers/loopback_limit [BYTES...]
// Prints lines of JSON as peers/mpi_collectives does, and takes --turns=FOLDER as it does.
#include "limit.hpp"
#include "loopback.hpp"

namespace {

// Never so much further sent than received: what lies in the system is then still in the cache when it is copied out.
// Which of these is the fastest differs by size and machine.
constexpr std::size_t windows[] = {std::size_t{128} << 10, std::size_t{256} << 10, std::size_t{512} << 10,
                                   std::size_t{1} << 20};
constexpr bench::repeats tries{7};  // of each
struct alignas(64) line {
  char bytes[64];
};

// How many bytes went through a call of the system that would not wait; 0 when none could.
std::size_t moved(ssize_t n, const char* what) {
  if (n > 0) return static_cast<std::size_t>(n);
  if (n == 0) throw std::runtime_error("the other process is gone");
  if (errno != EAGAIN && errno != EINTR) bench::fail_with_errno(what);
  return 0;
}

// One end, and the memory that is sent from and received into. A byte lies as far from a line of the cache as it does
// in the stream: AMD's processors copy slowly what lies a few bytes apart otherwise, and the system makes that copy.
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
  std::size_t sent_ = 0, received_ = 0;  // since there is a connection
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
            return all.times_of(now.what, rank, count, [&] { ends[rank].exchange(now.bytes, window); });
          };
          (void)times_with(windows[0], bench::warm_up_for(now.what, now.bytes));
          const auto seconds = [&](std::size_t window) { return bench::median(times_with(window, tries)); };
          const auto fastest = std::ranges::min_element(windows, {}, seconds);  // the same at both
          return times_with(*fastest, bench::repeats_for(now.what, now.bytes));
        });
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "loopback_limit: error: %s\n", failure.what());
    return 1;
  }
}
